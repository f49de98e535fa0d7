"""Share and time left of launches that are played through second by second with known costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import pytest

from raysweep.sweep.progress import Progress
from raysweep.sweep.run_state import Evaluated, RunState

#: Seconds of a step, and of an evaluation of each kind, by model.
STEP = {"small": 0.02, "large": 0.1}
MEASURE = {"small": {"probe": 4.0, "finetune": 20.0}, "large": {"probe": 20.0, "finetune": 100.0}}
STEPS, MILESTONES, SLOTS = 1000, 3, 2


@dataclass
class Played:
    """A launch of runs that train and are then evaluated, `SLOTS` at once, at `load` times their cost."""

    models: list[str]
    load: float = 1.0
    rows: list[RunState] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = [
            RunState(
                run_id=f"{model}{k}",
                model=model,
                label="",
                steps=STEPS,
                evaluations={kind: Evaluated(0, MILESTONES, 0.0) for kind in MEASURE[model]},
            )
            for k, model in enumerate(self.models)
        ]

    @property
    def timed(self) -> dict[str, float]:
        """The seconds of a step on an idle machine, by run id."""
        return {row.run_id: STEP[row.model] for row in self.rows}

    def tick(self) -> None:
        """Let a second pass."""
        for row in [row for row in self.rows if row.state not in ("done", "failed")][:SLOTS]:
            self._work(row)

    def _work(self, row: RunState) -> None:
        if row.step < row.steps:
            row.state = "training"
            row.step = min(row.steps, row.step + round(1 / (self.load * STEP[row.model])))
            return
        row.state = "evaluating"
        for kind, of in row.evaluations.items():
            if of.done < of.wanted:
                seconds = self.load * MEASURE[row.model][kind]
                now = Evaluated(min(of.wanted, of.done + 1 / seconds), of.wanted, of.seconds + 1)
                row.evaluations = {**row.evaluations, kind: now}
                return
        row.state = "done"

    def share(self) -> float:
        """Return the true share of work that is done."""
        done = total = 0.0
        for row in self.rows:
            costs = MEASURE[row.model]
            total += row.steps * STEP[row.model] + MILESTONES * sum(costs.values())
            done += row.step * STEP[row.model]
            done += sum(costs[kind] * of.done for kind, of in row.evaluations.items())
        return done / total


def test_the_share_is_that_of_the_seconds_and_the_range_holds_the_end() -> None:
    played = Played(["small", "large", "small", "large"], load=1.7)
    progress = Progress(played.rows, played.timed, slots=SLOTS, now=0.0)
    shares: list[tuple[int, float | None, float]] = []
    ranges: list[tuple[int, tuple[float, float]]] = []
    for second in itertools.count(1):
        played.tick()
        share, left = progress.see(float(second), played.rows)
        shares.append((second, share, played.share()))
        ranges += [(second, left)] if left is not None else []
        if all(row.state == "done" for row in played.rows):
            break
    end = shares[-1][0]
    # Nothing is known of fine-tuning until the first run gets there, so the share is not known.
    assert shares[0][1] is None
    assert next(second for second, share, _ in shares if share is not None) < 0.15 * end
    assert all(share == pytest.approx(true, abs=0.06) for _, share, true in shares if share is not None)
    assert shares[-1][1] == pytest.approx(1.0)
    assert ranges[0][0] >= 20
    assert len(ranges) > 0.5 * end
    held = [least - 2 <= end - second <= most + 2 for second, (least, most) in ranges]
    assert sum(held) > 0.8 * len(held)
    assert all(most <= max(3 * least, least + 60) for _, (least, most) in ranges)


def test_a_size_that_was_never_seen_counts_by_its_timing() -> None:
    """Large models wait; what the launch makes of the small ones says how slow they will be."""
    played = Played(["small", "small", "large", "large"], load=3.0)
    progress = Progress(played.rows, played.timed, slots=SLOTS, now=0.0)
    untimed = Progress(played.rows, {}, slots=SLOTS, now=0.0)
    share: float | None = None
    unknown: float | None = None
    for second in itertools.count(1):
        played.tick()
        share, _ = progress.see(float(second), played.rows)
        unknown, _ = untimed.see(float(second), played.rows)
        if played.rows[0].state == "done":
            break
    assert share == pytest.approx(played.share(), abs=0.03)
    assert unknown is None


def test_evaluations_that_nobody_has_seen_count_as_expected() -> None:
    """Their number is known from the start, so no share falls and no end jumps as soon as they begin."""
    played = Played(["small", "large", "small", "large"], load=1.5)
    # One of them is expected to be faster than it is, the other slower.
    off = {"probe": 0.7, "finetune": 1.3}
    expected = {
        (row.run_id, kind): off[kind] * seconds
        for row in played.rows
        for kind, seconds in MEASURE[row.model].items()
    }
    progress = Progress(played.rows, played.timed, expected, slots=SLOTS, now=0.0)
    shares, ends = [], []
    for second in itertools.count(1):
        played.tick()
        share, left = progress.see(float(second), played.rows)
        assert share is not None
        shares.append((share, played.share()))
        ends += [(second + least, second + most) for least, most in ([left] if left is not None else [])]
        if all(row.state == "done" for row in played.rows):
            break
    assert all(share == pytest.approx(true, abs=0.12) for share, true in shares)
    assert ends[0][0] <= len(shares) <= ends[0][1]
    assert all(later <= 1.5 * sooner for ((_, sooner), (_, later)) in itertools.pairwise(ends))


@pytest.mark.parametrize("off", [0.2, 5.0])
def test_the_share_never_falls_while_the_work_is_the_same(off: float) -> None:
    """Estimates of evaluations that are wrong by much are put right as soon as some of them are measured."""
    played = Played(["small", "small", "small", "small"])
    expected = {
        (row.run_id, kind): off * seconds
        for row in played.rows
        for kind, seconds in MEASURE[row.model].items()
    }
    progress = Progress(played.rows, played.timed, expected, slots=SLOTS, now=0.0)
    shares = [0.0]
    for second in itertools.count(1):
        played.tick()
        share, _ = progress.see(float(second), played.rows)
        assert share is not None
        assert share >= shares[-1]
        shares.append(share)
        if all(row.state == "done" for row in played.rows):
            break
    assert shares[-1] == pytest.approx(1.0)
    # What a search adds is more work.
    more = Played(["small"] * 5).rows[4]
    share, _ = progress.see(second + 1.0, [*played.rows, more])
    assert share is not None
    assert share < 0.9


def test_what_is_recorded_is_no_work_of_this_launch_and_failed_runs_ask_for_none() -> None:
    played = Played(["small", "small", "small"])
    whole, failed, waiting = played.rows
    whole.state, whole.step = "done", STEPS
    whole.evaluations = {
        kind: Evaluated(MILESTONES, MILESTONES, MILESTONES * cost) for kind, cost in MEASURE["small"].items()
    }
    failed.state = "failed"
    progress = Progress(played.rows, played.timed, slots=SLOTS, now=0.0)
    # 92 of 184 seconds of work are done, and nothing by this launch.
    share, before = progress.see(100.0, played.rows)
    assert share == pytest.approx(0.5)
    waiting.state, waiting.step = "training", STEPS // 2
    share, left = progress.see(110.0, played.rows)
    # 10 of the 92 seconds; the start took a hundred, and does not come again.
    assert share == pytest.approx(102 / 184)
    assert before is not None
    assert before[0] <= 92 <= before[1] <= 2 * 92
    assert left is not None
    assert left[0] <= 82 <= left[1] <= 1.5 * 82


def test_nothing_left_and_nothing_gained_has_no_time_left() -> None:
    played = Played(["small"])
    progress = Progress(played.rows, played.timed, slots=SLOTS, now=0.0)
    [row] = played.rows
    row.state = "failed"
    assert progress.see(30.0, played.rows) == (1.0, None)


def test_a_prediction_that_moves_much_is_not_told() -> None:
    [row] = Played(["small"]).rows
    row.evaluations, row.state = {}, "training"
    progress = Progress([row], {row.run_id: 1.0}, slots=1, now=0.0)
    found = []
    for second, step in ((30, 60), (60, 70), (90, 80), (120, 500)):
        row.step = step
        found.append(progress.see(float(second), [row])[1])
    assert found[0] is not None
    # A jump: what was said half of the time ago is far from what is said now.
    assert found[3] is None


class First:
    """A launch of one small run: it starts, trains, waits for the processes that measure, and is measured.

    `load` is the time that all takes over that on an idle machine, `wait` the seconds until the first shard.
    """

    COSTS: ClassVar = {"excess_loss": 0.7, "trace": 0.5, "probe": 1.5}

    def __init__(self, *, load: float, wait: float, expected: float) -> None:
        self.load, self.wait = load, wait
        self.row = RunState(run_id="a", model="m", label="a", steps=1000)
        self._measured(0.0)
        timed = {("a", kind): expected * seconds for kind, seconds in self.COSTS.items()}
        self.progress = Progress([self.row], {"a": 0.014}, timed, slots=1, now=0.0)

    def _measured(self, busy: float) -> None:
        """Set what `busy` seconds of measuring have done: all kinds at a milestone, then at the next."""
        busy /= self.load
        done = dict.fromkeys(self.COSTS, 0.0)
        for _ in range(MILESTONES):
            for kind, seconds in self.COSTS.items():
                done[kind] += min(1.0, max(0.0, busy / seconds))
                busy -= seconds
        took = {kind: done[kind] * seconds * self.load for kind, seconds in self.COSTS.items()}
        self.row.evaluations = {kind: Evaluated(done[kind], MILESTONES, took[kind]) for kind in self.COSTS}

    def play(self) -> Iterator[tuple[float, tuple[float, float] | None, float | None]]:
        """Yield the seconds that are truly left, the range of the launch and the seconds of the run."""
        begun, trained = 3 * self.load, (3 + 14) * self.load
        measured = trained + self.wait
        end = measured + MILESTONES * self.load * sum(self.COSTS.values())
        for now in np.arange(0.0, end, 0.5):
            self.row.state = "starting" if now < begun else "training" if now < trained else "evaluating"
            self.row.step = int(np.clip((now - begun) / (0.014 * self.load), 0, 1000))
            self._measured(now - measured)
            _, left = self.progress.see(float(now), [self.row])
            yield float(end - now), left, self.progress.runs.get("a")


def test_half_a_minute_has_no_time_left_of_minutes() -> None:
    """All of it is start-up and first results, so there is little to predict from."""
    for expected in (0.5, 1.0, 2.0):
        told = list(First(load=1.0, wait=4.0, expected=expected).play())
        assert told[0][0] == pytest.approx(29.1)
        assert all(most <= 60 for _, left, _ in told if left is not None for most in left)
        # From second 20 on, when the model and its pace are known.
        told = told[40:]
        assert all(most <= 30 for _, left, _ in told if left is not None for most in left)
        assert all(run <= 30 for _, _, run in told if run is not None)


@pytest.mark.parametrize("wait", [5.0, 20.0, 60.0])
def test_the_time_left_never_goes_backwards_while_a_run_waits_for_its_first_shard(wait: float) -> None:
    # From second 20 on: by then the launch has found that all takes twice what was expected.
    told = list(First(load=2.0, wait=wait, expected=1.2).play())[40:]
    ranges = [left for _, left, _ in told if left is not None]
    runs = [run for _, _, run in told if run is not None]
    assert len(ranges) > 20
    assert len(runs) > 20
    for values in ([least for least, _ in ranges], [most for _, most in ranges], runs):
        assert all(later <= sooner + 1 for sooner, later in itertools.pairwise(values))
    assert all(most <= 90 for _, most in ranges)
    assert all(run <= 2 * true + 10 for true, _, run in told if run is not None)


def test_a_run_that_works_alone_has_the_time_left_of_the_launch() -> None:
    for _, left, run in First(load=3.0, wait=5.0, expected=1.0).play():
        assert (left is None) == (run is None)
        assert left is None or run == pytest.approx(sum(left) / 2, rel=0.2)


def test_loading_before_the_first_steps_is_no_pace() -> None:
    row = RunState(run_id="a", model="m", label="", steps=4000, evaluations={}, state="starting")
    progress = Progress([row], {"a": 0.01}, now=0.0, slots=1)
    told = []
    for second in range(1, 46):
        row.state = "training" if second > 3 else "starting"
        row.step = max(0, 100 * (second - 8))  # until then, code is loaded
        _, span = progress.see(float(second), [row])
        if second > 9 and span is not None:
            told.append((second, *span))
    assert len(told) > 30
    for second, low, high in told:
        assert low <= 48 - second + 3, (second, low, high)
        assert high <= 1.6 * (48 - second) + 8, (second, low, high)
