"""Evaluations that ask for shards round by round, on a stand-in for Ray that ends tasks in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.engine import evaluations
from raysweep.engine.board import Answer, News
from raysweep.engine.evaluations import Evaluations
from raysweep.evaluation.run import stored_shards
from raysweep.evaluation.trace import TraceConfig
from raysweep.sweep import RunLedger, Sweep, arrays_identity, load_sweep

FILE = tiny.HEAD + "evaluate: {trace: {inputs: 40000, shard_size: 256, target_rse: 0.02}}\n"


def arrays(step: int, shard: int) -> dict[str, np.ndarray]:
    """Return a shard of made-up values, a pure function of its number; later milestones are more skewed."""
    generator = np.random.default_rng((step, shard))
    values = generator.lognormal(sigma=step / 80, size=256)
    parts = {"shape": np.tile([16, 1, 1, 32], (256, 1)), "powers": np.outer(values, [0.5, 0.0, 0.0])}
    larger = {f"enlarged/{name}": part for name, part in parts.items()}
    return {"head": values, "weights": np.ones(256)} | larger


class AnyOrder:
    """A window whose tasks are done when they are looked at, a few at a time in an order of its own."""

    def __init__(self, generator: np.random.Generator) -> None:
        self._generator = generator
        self._waiting: list[tuple[Any, Callable[[], Any]]] = []

    def add(self, key: Any, submit: Callable[[], Any]) -> None:
        self._waiting.append((key, submit))

    def ready(self, timeout: float) -> Iterator[tuple[Any, Any]]:
        for _ in range(min(3, len(self._waiting))):
            key, submit = self._waiting.pop(int(self._generator.integers(len(self._waiting))))
            yield key, submit()

    def cancel(self) -> None:
        self._waiting.clear()


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "tiny.yaml").write_text(FILE)
    return load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")


class Launch:
    """One launch of the evaluations of a run: counts what it measures."""

    def __init__(self, sweep: Sweep, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
        [self.spec] = sweep.runs
        self.run: RunLedger = sweep.ledger().run(self.spec)
        self.measured: list[tuple[int, int]] = []
        monkeypatch.setattr(evaluations, "Window", lambda size: AnyOrder(np.random.default_rng(seed)))
        monkeypatch.setattr(evaluations.ray, "get", lambda reference: reference)
        monkeypatch.setattr(Evaluations, "_task", lambda _, *shard: lambda: self._measure(*shard))
        self.news: list[News] = []
        board = SimpleNamespace(
            post=self._posted, send=self._posted, answer=lambda asked: Answer(stop=False, at_work=1)
        )
        services: Any = SimpleNamespace(board=board, references=None, window=lambda at_work: 4)
        self.evaluations = Evaluations(self.spec, self.run, services, {"CPU": 1})
        for step in self.spec.milestones:
            self.evaluations.submit(step)

    def _posted(self, _: str, news: News) -> None:
        if news != News():
            self.news.append(news)

    def _measure(self, step: int, kind: str, shard: int, references: list[Any]) -> tuple[float, float]:
        self.measured.append((step, shard))
        identity = arrays_identity(self.spec.evaluations[kind])
        self.run.save_arrays(step, kind, identity, shard, arrays(step, shard))
        return 0.5, 0.25

    def go_on(self, rounds: int = 10_000) -> None:
        for _ in range(rounds):
            if len(self.evaluations):
                self.evaluations.advance(timeout=0.0)

    def records(self) -> list[dict[str, Any]]:
        found = [self.run.evaluation(step, self.spec.evaluations["trace"]) for step in self.spec.milestones]
        assert None not in found
        return [
            record.model_dump(exclude={"time", "seconds", "cpu_seconds"})
            for record in found
            if record is not None
        ]


@pytest.fixture
def expected(sweep: Sweep) -> dict[int, list[int]]:
    """The shards that each milestone wants."""
    [spec] = sweep.runs
    trace = spec.evaluations["trace"]
    found = {}
    for step in spec.milestones:
        shards, missing = stored_shards(trace, lambda shard, step=step: arrays(step, shard))
        assert missing == []
        found[step] = list(range(len(shards)))
    assert len(found[50]) < len(found[100]) < trace.shards()
    return found


def test_rounds_until_the_target_is_reached(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, expected: dict[int, list[int]]
) -> None:
    launch = Launch(sweep, monkeypatch, seed=0)
    assert not launch.evaluations.complete(50)
    launch.go_on()
    assert launch.evaluations.complete(50)
    assert launch.evaluations.complete(100)
    for step, shards in expected.items():
        assert sorted(shard for at, shard in launch.measured if at == step) == shards
    for record, shards in zip(launch.records(), expected.values(), strict=True):
        metrics = {metric["name"]: metric for metric in record["metrics"]}
        values = np.concatenate([arrays(record["step"], shard)["head"] for shard in shards])
        assert metrics["trace"]["n"] == 256 * len(shards)
        assert metrics["trace"]["value"] == pytest.approx(values.mean())
        assert metrics["trace"]["standard_error"] < 0.02 * metrics["trace"]["value"]
        assert metrics["trace_target_reached"]["value"] == 1
        assert record["notes"] == {"method": "ghost norms"}


def test_another_common_shape_is_recorded_without_measuring(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Launch(sweep, monkeypatch, seed=0)
    first.go_on()
    assert first.measured
    seen = load_sweep(tmp_path / "tiny.yaml", ["evaluate.trace.enlarged_to=48/3/1/96"], storage=sweep.storage)
    second = Launch(seen, monkeypatch, seed=0)
    assert second.evaluations.complete(100)
    assert second.measured == []
    for record in second.records():
        metrics = {metric["name"]: metric["value"] for metric in record["metrics"]}
        # Half of each value is that of embeddings.
        assert metrics["trace_enlarged"] == pytest.approx(2 * metrics["trace"])


def test_killed_and_resumed_with_lost_and_damaged_shards_equals_never_killed(
    sweep: Sweep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[int, list[int]],
) -> None:
    whole = Launch(sweep, monkeypatch, seed=1)
    whole.go_on()
    again = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "again")
    killed = Launch(again, monkeypatch, seed=2)
    killed.go_on(rounds=11)
    # In the middle of a round, with shards of an earlier one lost or torn.
    trace = killed.spec.evaluations["trace"]
    folder = killed.run.arrays_directory(100, "trace", arrays_identity(trace))
    there = sorted(folder.iterdir())
    assert 3 < len(there) < len(expected[100])
    there[0].unlink()
    there[2].write_bytes(there[2].read_bytes()[:100])
    resumed = Launch(again, monkeypatch, seed=3)
    resumed.go_on()
    assert {(100, int(path.stem)) for path in (there[0], there[2])} <= set(resumed.measured)
    assert resumed.records() == whole.records()
    both = set(killed.measured) | set(resumed.measured)
    assert both == {(step, shard) for step, shards in expected.items() for shard in shards}


def test_a_fixed_number_of_inputs_is_one_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE.replace("40000", "1000").replace(", target_rse: 0.02", ""))
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    monkeypatch.setattr(evaluations, "_PERIOD", 0.0)
    monkeypatch.setattr(evaluations, "pause", lambda at_work: 0.0)
    launch = Launch(sweep, monkeypatch, seed=0)
    launch.go_on()
    assert sorted(launch.measured) == [(step, shard) for step in (50, 100) for shard in range(4)]
    # Progress is on the board before every look, and at the end: three shards at a time of the eight.
    assert [news.shards for news in launch.news if news.shards] == [(0, 8), (3, 8), (6, 8), (8, 8)]
    assert isinstance(launch.spec.evaluations["trace"], TraceConfig)
    told = [news.evaluations["trace"] for news in launch.news if news.evaluations]
    done, seconds = zip(*told, strict=True)
    assert list(done) == sorted(done)
    assert (done[0], done[-1]) == (0, 2)
    assert list(seconds) == pytest.approx([4.0 * part for part in (0, 3 / 8, 6 / 8, 1)])
    # Another launch begins with what is recorded.
    again = Launch(sweep, monkeypatch, seed=0)
    again.evaluations.advance(timeout=0.0)
    assert again.news[-1].evaluations == {"trace": (2, 4.0)}


def test_a_run_calls_the_board_the_less_often_the_more_runs_are_at_work(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch = Launch(sweep, monkeypatch, seed=0)
    now, calls, windows = [0.0], list[float](), list[int]()
    board: Any = launch.evaluations._services.board
    services: Any = launch.evaluations._services
    board.send = lambda *_: calls.append(now[0])
    board.answer = lambda asked: Answer(stop=False, at_work=5000)
    services.window = lambda at_work: windows.append(at_work) or 4
    monkeypatch.setattr(evaluations.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(AnyOrder, "ready", lambda self, timeout: iter(()))
    for _ in range(100):
        launch.evaluations.advance(timeout=0.0)
        now[0] += 0.5
    # 5,000 runs, 250 calls a second.
    assert calls == [0.0, 20.0, 40.0]
    assert windows == [5000] * 3
