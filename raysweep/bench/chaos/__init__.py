"""`raysweep bench chaos`: random faults on a small sweep, until it is done with the results of a quiet one.

A sweep is launched, and seeded random faults hit its processes, its disk and, between launches, its files.
It is launched again after each end until it is done.  Then its tidy table must have the bytes of an
undisturbed launch's, and MLflow must hold each point once.  More sweeps follow until enough faults have been
applied.  The record also tells which launches ended badly: without a word, with a trace, or with processes
left behind.

The results lie on a small file system of their own, so that a fault can fill it.  It is mounted in a
namespace, which needs no rights of an administrator.  Where the system allows no namespaces, this kind of
fault is left out.
"""

from __future__ import annotations

from raysweep.bench.chaos.summary import summary
from raysweep.bench.chaos.volume import WRAPPER, possible
from raysweep.bench.environment import environment
from raysweep.bench.process import call
from raysweep.bench.record import Record
from raysweep.errors import ConfigError, RunFailedError


def measure(*, kills: int, seed: int, seconds: float) -> Record:
    """Apply `kills` faults, drawn with `seed`, in a process of its own; raises `RunFailedError`.

    No fault is applied after `seconds`.
    """
    small = possible()
    request = {"kills": kills, "seconds": seconds, "seed": seed, "small_volume": small}
    return Record.model_validate_json(
        call("raysweep.bench.chaos", request, threads=1, wrapper=WRAPPER if small else ())
    )


def appendable(earlier: Record) -> None:
    """Raise `ConfigError` for a record that a campaign on this machine cannot be added to."""
    here = environment(1)
    facts = ("cpu", "cpu_capability", "cores", "system")
    if earlier.suite != "chaos" or any(
        getattr(earlier.environment, fact) != getattr(here, fact) for fact in facts
    ):
        raise ConfigError(
            f"--onto: this is a record of {earlier.suite} on {earlier.environment.cpu} with "
            f"{earlier.environment.cores} cores; take one of chaos on {here.cpu} with {here.cores}"
        )


def joined(earlier: Record, later: Record) -> Record:
    """Return the record of two campaigns as one, in the environment of the later one."""
    works = [f"{record.cases[0].work} (commit {record.environment.commit})" for record in (earlier, later)]
    passes = (*earlier.passes, *later.passes)
    case = summary(passes, work=", then ".join(works))
    return later.model_copy(update={"cases": (case,), "passes": passes})


def judge(record: Record) -> None:
    """Raise `RunFailedError` where the results of a sweep differ from an undisturbed one's."""
    tables = sum(not found.equal for found in record.passes)
    points = sum(found.points_unlike for found in record.passes)
    if tables or points:
        raise RunFailedError(
            f"bench chaos: {tables} of {len(record.passes)} tidy tables and {points} points of MLflow are "
            "unlike those of an undisturbed launch"
        )
