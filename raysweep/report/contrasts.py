"""The change of the trace between the milestones of a run, by paired differences.

All milestones are measured on the same inputs with the same test vectors, and the ledger keeps each input's
value.  A difference therefore has the standard error of the inputs' own differences.  The more two milestones
resemble each other, the smaller it is beside the standard error of two independent traces.  Where one
milestone took more inputs than the other (`trace.target_rse`), the first inputs, which both have, are
compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from raysweep.evaluation.trace import TraceConfig
from raysweep.evaluation.trace_arrays import inputs_of
from raysweep.flatness.trace.contrast import Difference, difference
from raysweep.report.paired import shards_of
from raysweep.report.statistics import holm, normal_p

if TYPE_CHECKING:
    from raysweep.sweep import RunSpec, Sweep

#: The permitted probability that the report calls any change a fall or a rise that is none.
LEVEL = 0.05


@dataclass(frozen=True, kw_only=True)
class Change(Difference):
    """The trace at step `after` minus that at step `before` of a run.

    `significant` is whether the change differs from zero: by a trusted interval, and at `LEVEL` for all
    changes of the sweep together (Holm, "A simple sequentially rejective multiple test procedure", 1979).
    """

    run_id: str
    before: int
    after: int
    significant: bool = False


def changes(sweep: Sweep, runs: Sequence[RunSpec] | None = None) -> list[Change]:
    """Return the changes between neighbouring measured milestones of runs, then from first to last.

    They are those of all runs of the sweep, or of `runs` alone.
    """
    ledger, found = sweep.ledger(), []
    for spec in sweep.runs if runs is None else runs:
        evaluation = spec.evaluations.get("trace")
        if not isinstance(evaluation, TraceConfig):
            continue
        run = ledger.open(spec.run_id)
        stored = {step: shards_of(run, step, "trace", evaluation) for step in spec.milestones}
        measured = {step: inputs_of(shards) for step, shards in stored.items() if shards}
        pairs = list(pairwise(measured))
        if len(measured) > 2:
            pairs.append((min(measured), max(measured)))
        for before, after in pairs:
            apart = difference(measured[before], measured[after])
            found.append(Change(run_id=spec.run_id, before=before, after=after, **vars(apart)))
    return _judged(found)


def _judged(found: Sequence[Change]) -> list[Change]:
    """Return the changes with `significant`; a doubtful one counts as tested and is never significant."""
    p = [1.0 if c.warning is not None else normal_p(c.deviate, 1.0) for c in found]
    return [replace(c, significant=level <= LEVEL) for c, level in zip(found, holm(p), strict=True)]
