"""The time that is left of the work of some runs, from what was gained so far.

It is that of a model with few parts:

- The start is what goes by before the first gain.  It is expected to be over soon, and it is no work.
- The rates of a launch hold for what it has measured within `_SURE`, and those of before within `_UNSURE`.
  A mean of both is as sure as its weights.
- The pace is the work that is gained in a second of the clock: at first one for each run at once, and that
  of the launch as soon as it has worked for longer than `_PRIOR`.  Who waits gains nothing, so where less
  than half a second of work was gained in a second of the clock there was a pause, and only the gain counts.
- Pauses come again with every run that is yet to begin.
- The least is that of the work left at the pace, but no less than the training of a single run.  The most is
  that of runs, `slots` of them at once, that do their work one thing after another.

The range meets those that were predicted in the last third of the work so far, so it is wide where they move.
One that is too wide to be of use is not told.  Without news the evaluations under way go on, and no more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from raysweep.sweep.estimate import NOTHING, START, Span, one_after_another
from raysweep.sweep.run_state import RunState
from raysweep.sweep.told import OVER

#: Seconds within which the first gain is expected; Ray has started by then.
_START = START.least
#: Seconds of work by which the pace is as much that of the launch as that which was expected.
_PRIOR = 5.0
#: Work takes what was measured in a launch, and what was expected before it, up to so much more or less.
_SURE, _UNSURE = 0.1, 0.4
#: The ends of a range differ by this factor at most, or by so many seconds.
_FACTOR, _NEAR = 3.0, 60.0
#: Pace and predictions are those since this share of the work so far.
_LATEST = 2 / 3
#: Predictions that are kept of the work so far, about.
_KEPT = 200
#: States of a run at work.
AT_WORK = ("starting", "training", "evaluating")


class Rate(NamedTuple):
    """Seconds of a step or of an evaluation, and how far they are what was expected: 1 if altogether."""

    seconds: float
    doubt: float


@dataclass
class Work:
    """The work of a run, in seconds, as far as it is `known`."""

    known: bool = True
    #: Steps and evaluations that are done, which tell whether anything was done since the last look.
    amount: float = 0.0
    done: float = 0.0
    gained: float = 0.0
    left: float = 0.0
    span: Span = NOTHING
    #: The least that is left of the training, and the longest evaluation that may be under way.
    training: float = 0.0
    under_way: float = 0.0
    #: Whether the run is yet to begin.
    waits: bool = False

    @classmethod
    def of(cls, row: RunState, first: Mapping[str, float], rates: Mapping[tuple[str, str], Rate]) -> Work:
        """Return the work of a run that had done `first` at the begin."""
        work, wanted = cls(), _wanted(row)
        least = most = 0.0
        for what, amount in amounts_of(row).items():
            lacks = 0.0 if row.state in OVER else max(0.0, wanted[what] - amount)
            if (rate := rates.get((row.run_id, what))) is None:
                work.known = work.known and not (lacks or amount)
                continue
            off = _SURE + (_UNSURE - _SURE) * rate.doubt
            left = lacks * rate.seconds
            least, most = least + (1 - off) * left, most + (1 + off) * left
            work.amount += amount
            work.done += amount * rate.seconds
            work.gained += max(0.0, amount - first.get(what, 0.0)) * rate.seconds
            work.left += left
            if what == "":
                work.training = (1 - off) * left
            elif row.state in AT_WORK:
                work.under_way = max(work.under_way, min(left, rate.seconds))
        work.span = Span(least, most)
        work.waits = work.left > 0 and row.state not in AT_WORK
        return work


class End:
    """The end of some work, predicted again and again since its begin."""

    def __init__(self, begun: float) -> None:
        self._begun = self._moved = begun
        self._amount = self._gained = 0.0
        #: Seconds of the clock with work, and those between the first and the last work without any.
        self._working = self._pauses = 0.0
        #: Seconds of evaluations under way that were counted before there were news of them.
        self._ahead = 0.0
        #: Of the last third of the work: seconds with work so far, what was gained by then, and the range of
        #: the whole as predicted then.
        self._latest: deque[tuple[float, float, float, float]] = deque()

    def see(self, now: float, works: Sequence[Work], *, slots: int) -> tuple[float, float] | None:
        """Return the range of the time left; None where nothing is left, or the range is too wide."""
        left = [work for work in works if work.left > 0]
        gained = sum(work.gained for work in works)
        if not left:
            return None
        at_once = min(slots, len(left))
        self._see_gain(now, sum(work.amount for work in works), gained, at_once)
        again = self._pauses * sum(work.waits for work in left) / max(1, sum(w.gained > 0 for w in works))
        pace = self._pace(gained, at_once)
        # What shares a processor has more seconds of work than the clock has.
        shared = max(1.0, pace / slots)

        def end(seconds: Iterable[float]) -> tuple[float, float]:
            each = list(seconds)
            least = sum(each) / pace
            return least + again, max(least, one_after_another(each, slots) / shared) + again

        least, _ = end(work.span.least for work in left)
        _, most = end(work.span.most for work in left)
        least = max(least, *(work.training for work in left), 0.0)
        if gained <= 0:
            most += max(0.0, _START - (now - self._begun))
        else:
            least, most = self._steadied(gained, least, most)
            under_way = max(work.under_way for work in left)
            self._ahead = max(self._ahead, min(now - self._moved, under_way))
            least = max(0.0, least - self._ahead)
        return (least, most) if most <= max(_FACTOR * least, least + _NEAR) else None

    def _see_gain(self, now: float, amount: float, gained: float, at_once: int) -> None:
        """Count the time since the last news as work or as a pause, if there are news."""
        if amount == self._amount:
            return
        gap, gain = now - self._moved, max(0.0, gained - self._gained)
        if self._gained > 0:
            pause = gap - gain if gain < gap / 2 else 0.0
            self._pauses += pause
        else:  # all of it but the work is the start
            pause = max(0.0, gap - gain / at_once)
        self._working += gap - pause
        self._ahead = max(0.0, self._ahead - gain)
        self._moved, self._amount, self._gained = now, amount, gained

    def _pace(self, gained: float, at_once: int) -> float:
        """Return the seconds of work in one of the clock, `at_once` of them as expected."""
        working, before, *_ = self._latest[0] if self._latest else (0.0, 0.0)
        lately = max(0.0, gained - before)
        return (lately + _PRIOR * at_once) / (self._working - working + _PRIOR)

    def _steadied(self, gained: float, least: float, most: float) -> tuple[float, float]:
        """Return the least range that holds this one, and meets those of the last third of the work."""
        working, latest = self._working, self._latest
        if not latest or working - latest[-1][0] >= working / _KEPT:
            latest.append((working, gained, working + least, working + most))
        while latest[0][0] < _LATEST * working:
            latest.popleft()
        return (
            min(least, *(high - working for *_, high in latest)),
            max(most, *(low - working for *_, low, _ in latest)),
        )


def amounts_of(row: RunState) -> dict[str, float]:
    """Return what is done of a run: steps under "", and evaluations under their kinds."""
    return {"": row.step, **{kind: of.done for kind, of in row.evaluations.items()}}


def _wanted(row: RunState) -> dict[str, float]:
    """Return what is wanted of a run, under the same keys."""
    return {"": row.steps, **{kind: of.wanted for kind, of in row.evaluations.items()}}
