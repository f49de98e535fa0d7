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
from raysweep.remote import local_place
from raysweep.sweep import Sweep

#: Share of the object store that exact conditionals may fill.
REFERENCE_SHARE = 0.25


@dataclass(frozen=True, kw_only=True)
class Services:
    """Handles of the actors that all trials share, and two settings."""

    board: Board
    references: References
    #: Whether evaluations share the CPUs of training.
    shared: bool
    #: CPUs of an evaluation task.
    each: float
    #: The folder of Ray's own bookkeeping.
    scratch: Path
    engine: Engine
    #: Parts into which a run's micro-batch is divided, because its memory did not suffice; by run id.
    parts: Mapping[str, int] = field(default_factory=dict)

    def window(self, at_work: int) -> int:
        """Return the most evaluation tasks of one run that are in flight now, of so many at work."""
        cpus = ray.cluster_resources().get("CPU", 1)
        return most_in_flight(self.shared, cpus / self.each, at_work)

    def close(self) -> None:
        """End the actors; a caller that has connected to Ray itself goes on with it."""
        self.board.close()
        self.references.close()

    def divided(self, run_ids: Iterable[str]) -> Services:
        """Return these services with the micro-batches of some runs divided once more."""
        return replace(self, parts={**self.parts, **{r: 2 * self.parts.get(r, 1) for r in run_ids}})


def start_services(sweep: Sweep, engine: Engine, shared: bool) -> Services:
    """Start the actors that the trials of a sweep share; needs a connected Ray."""
    limit = int(REFERENCE_SHARE * ray.cluster_resources().get("object_store_memory", 1e9))
    return Services(
        board=Board(),
        references=References(limit, sweep.storage),
        shared=shared,
        each=max(1.0, sweep.resources.evaluate.get("CPU", 1.0)),
        scratch=make_scratch(local_place(sweep.directory)),
        engine=engine,
    )


def most_in_flight(shared: bool, cpus: float, runs: int) -> int:
    """Return the most evaluation tasks of one run that are in flight.

    `runs` are at work, and there are CPUs for `cpus` tasks.

    Where evaluations share the CPUs of training, Ray does not count theirs in full, so all runs together keep
    to the number of CPUs here, with one task more for each run, so that no CPU waits for the next one.
    Otherwise there are plenty: a cluster that adds nodes on demand is small at first, and each run needs
    tasks to send there.

    >>> most_in_flight(True, 64, 64), most_in_flight(True, 64, 1), most_in_flight(False, 4, 1)
    (2, 65, 16)
    """
    return 1 + max(1, int(cpus) // max(1, runs)) if shared else max(16, 2 * int(cpus))
