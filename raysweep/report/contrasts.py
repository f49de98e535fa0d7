"""How the trace changes between the milestones of a run, by paired differences.

All milestones are measured on the same inputs with the same test vectors, and the ledger keeps each input's
value, so that a difference has the standard error of the inputs' own differences: far less than the two
traces' standard errors would give.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch

from raysweep.evaluation.trace import TraceConfig, inputs_of
from raysweep.flatness.estimate import Z95, ratio
from raysweep.sweep import evaluation_identity

if TYPE_CHECKING:
    from raysweep.sweep import RunLedger, Sweep


@dataclass(frozen=True, kw_only=True)
class Change:
    """The trace at step `after` minus that at step `before` of a run, in nats.

    `independent` is the standard error that the difference would have without pairing.
    """

    run_id: str
    before: int
    after: int
    difference: float
    standard_error: float
    independent: float

    @property
    def interval(self) -> tuple[float, float]:
        """The normal 95 % interval of the difference."""
        margin = Z95 * self.standard_error
        return self.difference - margin, self.difference + margin


def changes(sweep: Sweep) -> list[Change]:
    """Return the changes between neighbouring measured milestones of every run, then from first to last."""
    ledger, found = sweep.ledger(), []
    for spec in sweep.runs:
        evaluation = spec.evaluations.get("trace")
        if not isinstance(evaluation, TraceConfig):
            continue
        run = ledger.open(spec.run_id)
        steps = [step for step in spec.milestones if run.evaluation(step, evaluation) is not None]
        measured = {step: values for step in steps if (values := _values(run, step, evaluation)) is not None}
        pairs = list(pairwise(measured))
        if len(measured) > 2:
            pairs.append((min(measured), max(measured)))
        for before, after in pairs:
            (x, m), (y, _) = measured[before], measured[after]
            change, first, second = ratio(y - x, m), ratio(x, m), ratio(y, m)
            found.append(
                Change(
                    run_id=spec.run_id,
                    before=before,
                    after=after,
                    difference=change.value,
                    standard_error=change.standard_error,
                    independent=(first.standard_error**2 + second.standard_error**2) ** 0.5,
                )
            )
    return found


def _values(run: RunLedger, step: int, evaluation: TraceConfig) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the inputs' values and weights [n] at a milestone; None where they are not all there."""
    identity = evaluation_identity(evaluation)
    shards: list[Any] = []
    for shard in range(evaluation.shards()):
        arrays = run.load_arrays(step, "trace", identity, shard)
        if arrays is None:
            return None
        shards.append(arrays)
    return inputs_of(shards)
