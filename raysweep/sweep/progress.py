"""The progress of a launch: the share of all work that is done, and the time that is left.

Work is counted in seconds of a single run: steps times the seconds of a step, and evaluations times the
seconds of one of their kind.  The seconds of a step are those of the run in this launch; else those of other
runs of its model; else those that were timed before the launch, scaled by what the launch makes of others.
The seconds of an evaluation are the mean over runs of the model, in which those that were expected before
the launch count as one more; else those expected, scaled by what the launch makes of the others of its kind;
else the mean of other models, scaled by the seconds of a step.

The least time left is that of the work left at the pace of the launch so far, which holds its start and its
pauses.  The most is that of runs, `slots` of them at once, that do their work one thing after another: it is
larger where few runs are left at the end.  The range is the one that these predictions of the latter half of
the time so far lie in: a prediction that still moves is worth little, and makes no range.

The time left of a single run is found in the same way, from its own work since it was first seen at work.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from raysweep.sweep.estimate import one_after_another
from raysweep.sweep.run_state import RunState
from raysweep.sweep.told import OVER

#: Seconds, and share of the work that a launch has to do, before its end is predicted.
_LEAST_SECONDS, _LEAST_SHARE = 20.0, 0.05
#: The ends of a range differ by this factor at most, or by so many seconds.
_FACTOR, _NEAR = 2.0, 10.0
#: A time left is not known where nothing was gained for longer than this share of its least value.
_STILL = 0.25
#: The least half width of a range, relative to the prediction.
_LEAST_WIDTH = 0.1
#: Predictions that are kept of the time so far, about.
_KEPT = 200
#: Seconds of training after which its pace is known.
_PACE = 2.0
#: States of a run at work.
_AT_WORK = ("starting", "training", "evaluating")


class Progress:
    """Estimates share and time left from the states of all runs at growing times in seconds.

    `rows` are the states at the start, `timed` the seconds of a step by run id as timed before it, `expected`
    those of an evaluation by run id and kind, and `slots` is the number of runs at once.
    """

    def __init__(
        self,
        rows: Iterable[RunState],
        timed: Mapping[str, float],
        expected: Mapping[tuple[str, str], float] | None = None,
        *,
        slots: int,
        now: float,
    ) -> None:
        self._timed = dict(timed)
        self._expected = dict(expected or {})
        self._slots = slots
        self._last = now
        self._first = {row.run_id: _amounts(row) for row in rows}
        self._steps = {run_id: amounts[""] for run_id, amounts in self._first.items()}
        self._trained = dict.fromkeys(self._first, 0.0)
        self._end = _End(now)
        self._ends: dict[str, _End] = {}
        #: Seconds that are left of single runs at work, by id, as far as they are known.
        self.runs: dict[str, float] = {}

    def see(self, now: float, rows: Sequence[RunState]) -> tuple[float | None, tuple[float, float] | None]:
        """Return the share of all work that is done, and the least and the most seconds that are left.

        Each is None as long as it is not known.
        """
        for row in rows:
            if row.run_id not in self._first:  # a search has added it
                self._first[row.run_id] = _amounts(row)
                self._steps[row.run_id] = row.step
                self._trained[row.run_id] = 0.0
            if row.state == "training":
                self._trained[row.run_id] += now - self._last
        self._last = now
        step, load = self._step_seconds(rows)
        kinds = self._evaluation_seconds(rows, step, load)
        done = gained = moves = 0.0
        known = True
        left: list[float] = []
        self.runs = {}
        for row in rows:
            first, wanted, amounts = self._first[row.run_id], _wanted(row), _amounts(row)
            own = remaining = 0.0
            told = row.state in _AT_WORK
            for what, amount in amounts.items():
                lacks = 0.0 if row.state in OVER else max(0.0, wanted[what] - amount)
                seconds = step.get(row.run_id) if what == "" else kinds.get((row.run_id, what))
                if seconds is None:
                    if lacks or amount:
                        known = told = False
                    continue
                done += amount * seconds
                own += max(0.0, amount - first.get(what, 0.0)) * seconds
                remaining += lacks * seconds
            gained += own
            moves += sum(amounts.values())
            left.append(remaining)
            if row.state in _AT_WORK:
                end = self._ends.setdefault(row.run_id, _End(now))
                if told and (span := end.see(now, sum(amounts.values()), own, [remaining], slots=1)):
                    self.runs[row.run_id] = sum(span) / 2
        if not known:
            return None, None
        whole = done + sum(left)
        return (done / whole if whole else 1.0), self._end.see(now, moves, gained, left, slots=self._slots)

    def _step_seconds(self, rows: Sequence[RunState]) -> tuple[dict[str, float], float]:
        """Return the seconds of a step by run id, as far as known, and their ratio to those timed."""
        own, alike = {}, dict[str, list[float]]()
        for row in rows:
            spent, steps = self._trained[row.run_id], row.step - self._steps[row.run_id]
            if spent >= _PACE and steps > 0:
                own[row.run_id] = spent / steps
                alike.setdefault(row.model, []).append(spent / steps)
        scale = _ratio(own, self._timed)
        means = {model: statistics.fmean(seconds) for model, seconds in alike.items()}
        found = {}
        for row in rows:
            if row.run_id in own:
                found[row.run_id] = own[row.run_id]
            elif row.model in means:
                found[row.run_id] = means[row.model]
            elif row.run_id in self._timed:
                found[row.run_id] = scale * self._timed[row.run_id]
        return found, scale

    def _evaluation_seconds(
        self, rows: Sequence[RunState], step: Mapping[str, float], load: float
    ) -> dict[tuple[str, str], float]:
        """Return the seconds of an evaluation by run id and kind, as far as they are known."""
        spent, counted = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
        paces = {row.model: step[row.run_id] for row in rows if row.run_id in step}
        for row in rows:
            for kind, of in row.evaluations.items():
                spent[row.model, kind] = spent.get((row.model, kind), 0.0) + of.seconds
                counted[row.model, kind] = counted.get((row.model, kind), 0.0) + of.done
        expected = {
            (row.model, kind): load * self._expected[row.run_id, kind]
            for row in rows
            for kind in row.evaluations
            if (row.run_id, kind) in self._expected
        }
        known = {key: spent[key] / counted[key] for key in spent if counted[key] > 0}
        off = {kind: _off(kind, known, counted, expected) for _, kind in expected}
        found = {}
        for row in rows:
            for kind in row.evaluations:
                here, before = known.get((row.model, kind)), expected.get((row.model, kind))
                if before is not None:
                    before *= off[kind]
                    many = counted[row.model, kind]
                    here = before if here is None else (before + here * many) / (1 + many)
                if here is None:
                    others = {model: value for (model, other), value in known.items() if other == kind}
                    scaled = [
                        value * paces[row.model] / paces[model] if {model, row.model} <= set(paces) else value
                        for model, value in others.items()
                    ]
                    here = statistics.fmean(scaled) if scaled else None
                if here is not None:
                    found[row.run_id, kind] = here
        return found


class _End:
    """The end of some work, predicted again and again since its begin."""

    def __init__(self, begun: float) -> None:
        self._begun = self._moved = begun
        self._amount = 0.0
        self._ends: deque[tuple[float, float, float]] = deque()

    def see(
        self, now: float, amount: float, gained: float, left: Sequence[float], *, slots: int
    ) -> tuple[float, float] | None:
        """Return the range of the time left; None where it is not known.

        `amount` tells whether anything was done since the last look.  `gained` is the work done since the
        begin, and `left` that left in order.  What goes on without news is taken to go on as before.
        """
        if amount != self._amount:
            self._moved, self._amount = now, amount
        elapsed = self._moved - self._begun
        if elapsed <= 0 or gained <= 0 or gained < _LEAST_SHARE * (gained + sum(left)):
            return None
        pace = gained / elapsed
        least = sum(left) / pace
        # What shares a processor has more seconds of work than the clock has.
        most = max(least, one_after_another(left, slots) / max(1.0, pace / slots))
        if not self._ends or now - self._ends[-1][0] >= elapsed / _KEPT:
            self._ends.append((now, self._moved + least, self._moved + most))
        while self._ends[0][0] < now - elapsed / 2:
            self._ends.popleft()
        still = now - self._moved
        ends = [(1 - _LEAST_WIDTH) * least - still, *(end - now for _, end, _ in self._ends)]
        least = max(0.0, min(ends))
        most = max((1 + _LEAST_WIDTH) * most - still, *(end - now for _, _, end in self._ends))
        steady = most <= max(_FACTOR * least, least + _NEAR) and still <= _STILL * least
        return (least, most) if steady and now - self._begun >= _LEAST_SECONDS else None


def _amounts(row: RunState) -> dict[str, float]:
    """Return what is done of a run: steps under "", and evaluations under their kinds."""
    return {"": row.step, **{kind: of.done for kind, of in row.evaluations.items()}}


def _wanted(row: RunState) -> dict[str, float]:
    """Return what is wanted of a run, under the same keys."""
    return {"": row.steps, **{kind: of.wanted for kind, of in row.evaluations.items()}}


def _off(
    kind: str,
    known: Mapping[tuple[str, str], float],
    counted: Mapping[tuple[str, str], float],
    expected: Mapping[tuple[str, str], float],
) -> float:
    """Return the seconds of the evaluations of a kind over those expected; 1 where there are none."""
    both = [key for key in known if key in expected and key[1] == kind]
    planned = sum(counted[key] * expected[key] for key in both)
    return sum(counted[key] * known[key] for key in both) / planned if planned else 1.0


def _ratio(own: Mapping[str, float], timed: Mapping[str, float]) -> float:
    """Return the median of own over timed seconds; 1 where there is no pair."""
    ratios = [seconds / timed[run_id] for run_id, seconds in own.items() if timed.get(run_id)]
    return statistics.median(ratios) if ratios else 1.0
