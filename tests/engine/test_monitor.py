"""The state of a launch, as the monitor reads it from the news on the board."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.engine import monitor
from raysweep.engine.board import News
from raysweep.engine.monitor import Monitor
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.sweep import load_sweep, make_plan
from raysweep.sweep.estimate import END
from raysweep.sweep.run_state import LaunchState


def test_the_time_left_of_a_run_holds_its_evaluations_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """100 steps of half a second and two evaluations of two; what was never timed is not promised."""
    (tmp_path / "tiny.yaml").write_text(
        tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\naxes: {seed: [0, 1, 2]}\n"
    )
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    first, second, _ = sweep.runs
    tiny.finish(sweep.ledger().run(first), first)
    news: dict[str, News] = {}
    seen: list[LaunchState] = []
    board: Any = type("Board", (), {"read": lambda self, since: (since, news)})()
    now = 1000.0
    monkeypatch.setattr(monitor.time, "monotonic", lambda: now)
    watched = Monitor(sweep, make_plan(sweep), board, seen.append, slots=2)
    for second_of_launch in range(31):
        now = 1000.0 + second_of_launch
        news[second.run_id] = News(state="training", step=2 * second_of_launch)
        watched.look()
        # The estimate from before the launch comes first: no more than half off.
        eta = seen[-1].runs[1].eta
        assert eta is not None
        assert 0.5 <= eta / (50 + 4 - second_of_launch) <= 1.5
    assert [row.eta for row in seen[-1].runs] == [0.0, pytest.approx(20 + 4), None]


def test_the_time_left_of_a_launch_holds_its_end(tmp_path: Path) -> None:
    """100 steps of half a second, nothing measured; then Ray, MLflow and the report."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "axes: {seed: [0, 1]}\n")
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    first, second = sweep.runs
    tiny.finish(sweep.ledger().run(first), first)
    news = {second.run_id: News(state="training", step=0)}
    seen: list[LaunchState] = []
    board: Any = type("Board", (), {"read": lambda self, since: (since, news)})()
    watched = Monitor(sweep, make_plan(sweep), board, seen.append, slots=2)
    watched.look()
    assert seen[-1].left is not None
    assert seen[-1].left[0] >= 0.5 * 50 + END.least
    news[second.run_id] = News(state="done", step=100)
    watched.look()
    assert seen[-1].left == END


def test_metrics_come_with_the_milestone_that_they_are_of(tmp_path: Path) -> None:
    """Training is ahead of the evaluations, and goes on after the news of a milestone."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    [spec] = sweep.runs
    first, last = spec.milestones[0], spec.milestones[-1]
    metrics = [EXCESS_LOSS.number(0.5, n=64)]
    news = {spec.run_id: News(state="training", step=last - 1, evaluated=first, metrics=metrics)}
    seen: list[LaunchState] = []
    board: Any = type("Board", (), {"read": lambda self, since: (since, news)})()
    Monitor(sweep, make_plan(sweep), board, seen.append, slots=2).look()
    [row] = seen[-1].runs
    assert (row.step, row.evaluated, list(row.metrics)) == (last - 1, first, metrics)


def test_the_share_of_all_work_holds_what_was_there_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger has one of two runs whole: its steps took 0.5 s, its two evaluations 2 s each."""
    (tmp_path / "tiny.yaml").write_text(
        tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\naxes: {seed: [0, 1]}\n"
    )
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    first, second = sweep.runs
    tiny.finish(sweep.ledger().run(first), first)
    news: dict[str, News] = {}
    seen: list[LaunchState] = []
    board: Any = type("Board", (), {"read": lambda self, since: (since, news)})()
    watched = Monitor(sweep, make_plan(sweep), board, seen.append, slots=2)
    watched.look()
    # 100 steps and two evaluations take 50 s and 4 s, of each run.
    assert seen[-1].share == pytest.approx(0.5)
    assert (seen[-1].steps, seen[-1].evaluations) == ((100, 200), (2, 4))
    parts = {"excess_loss": (1.5, 3.0)}
    news[second.run_id] = News(state="evaluating", step=100, shards=(3, 4), evaluations=parts)
    watched.look()
    assert seen[-1].share == pytest.approx((54.0 + 53.0) / 108.0)
    assert seen[-1].evaluations == (3, 4)
    # 54 of 108 seconds were there before, and 53 more took no time.
    assert seen[-1].left is not None
    least, most = np.subtract(seen[-1].left, END)
    assert 0 < least < most < 2


def test_a_run_that_fails_in_the_launch_has_its_reason(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD)
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    [spec] = sweep.runs
    news: dict[str, News] = {}
    seen: list[LaunchState] = []
    board: Any = type("Board", (), {"read": lambda self, since: (since, news)})()
    watched = Monitor(sweep, make_plan(sweep), board, seen.append, slots=1)
    sweep.ledger().run(spec).record_failure("loss is nan", error="RunFailedError", step=7)
    news[spec.run_id] = News(state="failed")
    watched.look()
    [row] = seen[-1].runs
    assert (row.state, row.trouble) == ("failed", "loss is nan")


def test_news_of_a_run_that_is_added_later_are_not_lost(tmp_path: Path) -> None:
    """The board tells each news once, and a search may post before the monitor follows."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "axes: {seed: [0, 1]}\n")
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    first, second = sweep.runs
    told = [{second.run_id: News(state="training", step=7)}, {}, {}]
    seen: list[LaunchState] = []
    board: Any = type("Board", (), {"read": lambda self, since: (since + 1, told[since])})()
    alone = replace(sweep, runs=(first,))
    watched = Monitor(alone, make_plan(alone), board, seen.append, slots=1)
    watched.look()
    watched.follow(sweep)
    watched.look()
    watched.look()
    assert [[(row.run_id, row.state, row.step) for row in state.runs] for state in seen] == [
        [(first.run_id, "queued", 0)],
        *[[(first.run_id, "queued", 0), (second.run_id, "training", 7)]] * 2,
    ]


def test_a_dear_look_is_taken_less_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A view of ten thousand runs must leave the processor to the launch."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD)
    sweep = load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    board: Any = type("Board", (), {"read": lambda self, since: (since, {})})()
    watched = Monitor(sweep, make_plan(sweep), board, lambda state: None, slots=1, period=0.5)
    used = iter([0.0, 0.01, 1.0, 3.0])
    monkeypatch.setattr(monitor.time, "thread_time", lambda: next(used))
    pauses: list[float] = []

    def wait(pause: float) -> bool:
        pauses.append(pause)
        return len(pauses) == 3

    monkeypatch.setattr(watched._ended, "wait", wait)
    watched._watch()
    assert pauses == [0.5, 0.5, 20.0]
