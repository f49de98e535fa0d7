"""The order in which Tune gets runs that start from others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ray.tune.search import Searcher

from helpers import tiny_sweeps as tiny
from raysweep.engine import ready
from raysweep.engine.board import News
from raysweep.engine.ready import Ready
from raysweep.sweep import Sweep, load_sweep

TEXT = f"""{tiny.HEAD}axes: {{seed: [0, 1]}}
include:
  - {{algorithm: {{kind: sgd}}, seed: 0, init_from: {{run: '*-adamw-s0-*@50'}}}}
  - {{algorithm: {{kind: sgd}}, seed: 1, init_from: {{run: '*-adamw-s1-*@50'}}}}
"""


class _Board:
    def __init__(self) -> None:
        self.news: dict[str, News] = {}

    def post(self, run_id: str, news: News) -> None:
        self.news[run_id] = news


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.setattr(ready, "_PERIOD", 0.0)
    (tmp_path / "tiny.yaml").write_text(TEXT)
    return load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")


def searcher(sweep: Sweep) -> tuple[Ready, Any]:
    board: Any = _Board()
    return Ready(sweep, [run.run_id for run in sweep.runs], board), board


def test_a_run_comes_as_soon_as_its_source_is_there(sweep: Sweep) -> None:
    first, second, from_first, from_second = sweep.runs
    found, _ = searcher(sweep)
    assert found.suggest("a") == {"run": first.run_id}
    assert found.suggest("b") == {"run": second.run_id}
    assert found.suggest("c") is None
    # In mid-training of its source, and before those that stand in front of it.
    tiny.checkpoint(sweep.ledger().run(second), 50)
    assert found.suggest("c") == {"run": from_second.run_id}
    assert found.suggest("d") is None
    tiny.checkpoint(sweep.ledger().run(first), 50)
    found.on_trial_complete("a")
    assert found.suggest("d") == {"run": from_first.run_id}
    assert found.suggest("e") == Searcher.FINISHED


def test_it_ends_when_those_that_are_waited_for_have_ended(sweep: Sweep) -> None:
    found, board = searcher(sweep)
    assert found.suggest("a") is not None
    assert found.suggest("b") is not None
    found.on_trial_complete("a", error=True)
    assert found.suggest("c") is None
    found.on_trial_complete("b")
    assert found.suggest("c") == Searcher.FINISHED
    assert board.news == {}


def test_a_run_whose_source_failed_is_dropped(sweep: Sweep) -> None:
    first, _, from_first, _ = sweep.runs
    found, board = searcher(sweep)
    assert found.suggest("a") is not None
    assert found.suggest("b") is not None
    sweep.ledger().run(first).record_failure("step 3: nan", error="RunFailedError", step=3)
    found.on_trial_complete("a")
    assert found.suggest("c") is None
    assert board.news == {from_first.run_id: News(state="failed")}
    found.on_trial_complete("b")
    assert found.suggest("c") == Searcher.FINISHED


def test_tune_can_keep_its_state(sweep: Sweep, tmp_path: Path) -> None:
    found, _ = searcher(sweep)
    found.save_to_dir(str(tmp_path), "session")
    found.restore_from_dir(str(tmp_path))
    assert found.suggest("a") == {"run": sweep.runs[0].run_id}
