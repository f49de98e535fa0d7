"""The services that the driver of a launch lends to every trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray

from raysweep.engine.board import Board
from raysweep.engine.references import References
from raysweep.engine.scratch import make_scratch
from raysweep.sweep import Sweep

#: Share of the object store that exact conditionals may fill.
REFERENCE_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Services:
    """Handles of the actors that all trials share, and two settings."""

    board: Board
    references: References
    #: Most evaluation tasks of one run that are in flight.
    window: int
    #: The folder of Ray's own bookkeeping.
    scratch: Path
    #: Parts into which a run's micro-batch is divided, because its memory did not suffice; by run id.
    parts: Mapping[str, int] = field(default_factory=dict)

    def divided(self, run_ids: Iterable[str]) -> Services:
        """Return these services with the micro-batches of some runs divided once more."""
        return replace(self, parts={**self.parts, **{r: 2 * self.parts.get(r, 1) for r in run_ids}})


def start_services(sweep: Sweep) -> Services:
    """Start the actors that the trials of a sweep share; needs a connected Ray."""
    resources = ray.cluster_resources()
    limit = int(REFERENCE_SHARE * resources.get("object_store_memory", 1e9))
    return Services(
        board=Board(),
        references=References(limit, sweep.storage),
        # A cluster that adds nodes on demand is small at first, and each run still needs tasks to send there.
        window=max(16, 2 * int(resources.get("CPU", 1))),
        scratch=make_scratch(sweep.directory),
    )
