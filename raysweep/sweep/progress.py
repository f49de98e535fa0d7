"""The progress of a launch: the share of all work that is done, and the time that is left.

Work is counted in seconds of a single run: steps times the seconds of a step, and evaluations times the
seconds of one of their kind.  The seconds of a step are those of the run in this launch; else those of other
runs of its model; else those that were timed before the launch, scaled by what the launch makes of others.
The seconds of an evaluation are the mean over runs of the model, in which those that were expected before
the launch count as one more; else those expected, scaled by what the launch makes of the others of its kind;
else the mean of other models, scaled by the seconds of a step.

The share never falls while the work is the same: where an estimate was too high, it waits.

The time left is that of the model in `raysweep.sweep.time_left`; that of a single run comes from its own work
since it was first seen at work.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from raysweep.sweep.run_state import RunState
from raysweep.sweep.time_left import AT_WORK, End, Rate, Work, amounts_of

#: Seconds of training after which its pace is known.
_PACE = 2.0


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
        self.slots = slots
        self._last = now
        self._first = {row.run_id: amounts_of(row) for row in rows}
        #: Of runs that have trained some steps: seconds since the first news of that, and their step then.
        self._trained: dict[str, tuple[float, int]] = {}
        #: The largest share so far, and the number of runs that it is of.
        self._share, self._runs = 0.0, 0
        self._end = End(now)
        self._ends: dict[str, End] = {}
        #: Seconds that are left of single runs at work, by id, as far as they are known.
        self.runs: dict[str, float] = {}

    def see(self, now: float, rows: Sequence[RunState]) -> tuple[float | None, tuple[float, float] | None]:
        """Return the share of all work that is done, and the least and the most seconds that are left.

        Each is None as long as it is not known.
        """
        for row in rows:
            if row.run_id not in self._first:  # a search has added it
                self._first[row.run_id] = amounts_of(row)
            # What goes by before the first news of a training is loading, too.
            if row.state == "training" and row.step > self._first[row.run_id][""]:
                seconds, step = self._trained.get(row.run_id, (self._last - now, row.step))
                self._trained[row.run_id] = seconds + now - self._last, step
        self._last = now
        steps, load = self._step_seconds(rows)
        rates = {(run_id, ""): rate for run_id, rate in steps.items()}
        rates |= self._evaluation_seconds(rows, steps, load)
        works = [Work.of(row, self._first[row.run_id], rates) for row in rows]
        self.runs = {}
        for row, work in zip(rows, works, strict=True):
            if row.state in AT_WORK:
                end = self._ends.setdefault(row.run_id, End(now))
                if work.known and (span := end.see(now, [work], slots=1)):
                    self.runs[row.run_id] = sum(span) / 2
        if not all(work.known for work in works):
            return None, None
        done = sum(work.done for work in works)
        whole = done + sum(work.left for work in works)
        share = done / whole if whole else 1.0
        # The runs that a search adds are more work.
        self._share = max(share, self._share if len(rows) == self._runs else 0.0)
        self._runs = len(rows)
        return self._share, self._end.see(now, works, slots=self.slots)

    def _step_seconds(self, rows: Sequence[RunState]) -> tuple[dict[str, Rate], float]:
        """Return the seconds of a step by run id, as far as known, and their ratio to those timed."""
        own, alike = {}, dict[str, list[float]]()
        for row in rows:
            spent, first = self._trained.get(row.run_id, (0.0, 0))
            steps = row.step - first
            if spent >= _PACE and steps > 0:
                own[row.run_id] = spent / steps
                alike.setdefault(row.model, []).append(spent / steps)
        scale = _ratio(own, self._timed)
        means = {model: statistics.fmean(seconds) for model, seconds in alike.items()}
        found = {}
        for row in rows:
            if row.run_id in own:
                found[row.run_id] = Rate(own[row.run_id], 0.0)
            elif row.model in means:
                found[row.run_id] = Rate(means[row.model], 0.0)
            elif row.run_id in self._timed:
                found[row.run_id] = Rate(scale * self._timed[row.run_id], 1.0)
        return found, scale

    def _evaluation_seconds(
        self, rows: Sequence[RunState], step: Mapping[str, Rate], load: float
    ) -> dict[tuple[str, str], Rate]:
        """Return the seconds of an evaluation by run id and kind, as far as they are known."""
        spent, counted = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
        paces = {row.model: step[row.run_id].seconds for row in rows if row.run_id in step}
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
                many = counted[row.model, kind]
                here, before = known.get((row.model, kind)), expected.get((row.model, kind))
                if before is not None:
                    before *= off[kind]
                    here = before if here is None else (before + here * many) / (1 + many)
                if here is None:
                    others = {model: value for (model, other), value in known.items() if other == kind}
                    scaled = [
                        value * paces[row.model] / paces[model] if {model, row.model} <= set(paces) else value
                        for model, value in others.items()
                    ]
                    here = statistics.fmean(scaled) if scaled else None
                if here is not None:
                    found[row.run_id, kind] = Rate(here, 1 / (1 + many))
        return found


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
