"""The states of runs as lines of text, one for each change: for a pipe and for the log of a launch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raysweep.evaluation.metric import Metric
    from raysweep.sweep.run_state import RunState

#: States of a run that asks for nothing more.
OVER = ("done", "stopped", "failed", "cancelled")


def live_metrics(states: Iterable[RunState]) -> list[Metric]:
    """Return one metric of each name that asks to be shown live.

    The trace in one space takes the place of the trace in the model's own parameters, if all runs have both.
    """
    from raysweep.evaluation.metric import in_order
    from raysweep.evaluation.trace import ENLARGED, TRACE

    named: dict[str, Metric] = {}
    own = enlarged = 0
    for state in states:
        for metric in state.metrics:
            if metric.live or metric.name == ENLARGED.name:
                named[metric.name] = metric
            own += metric.name == TRACE.name
            enlarged += metric.name == ENLARGED.name
    named.pop(TRACE.name if own == enlarged else ENLARGED.name, None)
    return in_order(named.values())


class Told:
    """Remembers the states that it has seen, and says what is new."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, tuple[str, ...]]] = {}

    def changes(self, states: Iterable[RunState]) -> Iterator[str]:
        """Yield a line for each run whose state, milestone or trouble has changed."""
        for run in states:
            measured = tuple(f"{metric.narrow} {metric.value:.4g}" for metric in live_metrics([run]))
            now = (run.state, (*measured, run.trouble))
            before = self._seen.get(run.run_id, ("queued", ("",)))
            self._seen[run.run_id] = now
            if now == before or (run.state in ("queued", "blocked") and not measured):
                continue
            where = f"{run.state}, step {run.step}/{run.steps}" if run.steps else run.state
            # Evaluations may be far behind training: a number goes with the step that it was measured at.
            of = f"step {run.evaluated}: " if run.evaluated not in (0, run.step) else ""
            parts = [where, *([of + ", ".join(measured)] if measured else [])]
            because = f": {run.trouble}" if run.trouble else ""
            yield f"{run.label}: {('; ' if of else ', ').join(parts)}{because}"
