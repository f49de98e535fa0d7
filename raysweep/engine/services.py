"""The services that the driver of a launch lends to every trial."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import ray

from raysweep.engine.board import Board
from raysweep.engine.choice import Engine
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
    engine: Engine
    #: Parts into which a run's micro-batch is divided, because its memory did not suffice; by run id.
    parts: Mapping[str, int] = field(default_factory=dict)

    def divided(self, run_ids: Iterable[str]) -> Services:
        """Return these services with the micro-batches of some runs divided once more."""
        return replace(self, parts={**self.parts, **{r: 2 * self.parts.get(r, 1) for r in run_ids}})


def start_services(sweep: Sweep, engine: Engine, slots: int) -> Services:
    """Start the actors that the trials of a sweep share, `slots` of them at once; needs a connected Ray."""
    resources = ray.cluster_resources()
    limit = int(REFERENCE_SHARE * resources.get("object_store_memory", 1e9))
    return Services(
        board=Board(),
        references=References(limit, sweep.storage),
        window=_window(engine, slots, int(resources.get("CPU", 1))),
        scratch=make_scratch(sweep.directory),
        engine=engine,
    )


def _window(engine: Engine, slots: int, cpus: int) -> int:
    """Return the most evaluation tasks of one run that are in flight.

    Beside lanes, Ray does not count the CPUs of evaluations in full, so all runs together keep to the number
    of CPUs here, with one task more for each run, so that no CPU waits for the next one.  Otherwise there
    are plenty: a cluster that adds nodes on demand is small at first, and each run needs tasks to send there.
    """
    return 1 + max(1, cpus // slots) if engine == "lanes" else max(16, 2 * cpus)
