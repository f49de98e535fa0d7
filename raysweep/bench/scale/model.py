"""The load of the parts that a launch has once, by the costs of a run.

A part is one process whose threads take turns, so it is full where it uses one core.  A run goes through all
parts and is then trained on a GPU, which waits meanwhile.  With N GPUs, T seconds of training a run, and D
seconds of a run at all parts together, N / (T + D) runs end in a second, unless a part is full before: the
asymptotic bounds of a closed queueing network (Lazowska et al., Quantitative System Performance, 1984,
chapter 5).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from raysweep.bench.record import Figure, Goal
from raysweep.engine.board import pause

#: Seconds between two looks of the view, and the share of a core that it takes at most
#: (`raysweep.engine.monitor`).
_VIEW, _VIEW_MOST = 0.5, 0.1
#: Seconds between two looks of a trial at a run that trains for long (`raysweep.engine.trial`).
_TRIAL = 5.0
#: GPUs beyond which nothing is said.
_MANY = 1e9

#: The names of the parts.
OWN, STORE, RAYLET, BOARD = (
    "the launch's own process",
    "Ray's control store",
    "the raylet beside the launch",
    "the notice board",
)


@dataclass(frozen=True, kw_only=True)
class Use:
    """Processor seconds of a part: for each run, for each second, and for each second of a run at work."""

    run: float
    second: float = 0.0
    at_work: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of runs, calls and looks: processor seconds, or operations on the files of the storage."""

    #: What the parts need by name; for the board without the calls of runs at work.
    parts: dict[str, Use]
    #: Of a call at the notice board.
    call: float
    #: Of a look of the view: for a run with news, and for each run of the sweep.
    news: float
    row: float
    #: Of writing a run into MLflow, which is also in that of the launch's own process, and each point.
    tracked_run: float
    tracked_point: float
    #: Operations of a run from its start to its end, and of each look of its trial.
    operations: float
    look: float

    def figures(self) -> tuple[Figure, ...]:
        """Return the costs as figures of a record."""
        milli = {f"{name}, for a run": use.run for name, use in self.parts.items()}
        milli |= {f"{name}, for a second of a launch": use.second for name, use in self.parts.items()}
        milli |= {
            f"{name}, for a second of a run at work": use.at_work
            for name, use in self.parts.items()
            if name != BOARD
        }
        milli |= {
            "a call at the notice board": self.call,
            "a look of the view, for a run with news": self.news,
            "a look of the view, for a run without": self.row,
            "a run in MLflow, in the launch's own process": self.tracked_run,
            "a point in MLflow, in the launch's own process": self.tracked_point,
        }
        counts = {"a run": self.operations, "a look of a trial at its run": self.look}
        return (
            *(Figure(name=name, unit="ms", value=1e3 * value) for name, value in milli.items()),
            *(Figure(name=f"operations on files: {name}", unit="", value=n) for name, n in counts.items()),
        )


@dataclass(frozen=True, kw_only=True)
class Demand:
    """Runs that are trained for some seconds each, on a GPU each, with so many points in MLflow."""

    gpus: float
    runs: int
    seconds: float
    points: int = 1000

    @property
    def at_once(self) -> float:
        """The most runs that are at work at once."""
        return min(self.gpus, self.runs)


def busy(costs: Costs, demand: Demand, rate: float) -> dict[str, float]:
    """Return the cores that each part uses where `rate` runs a second end."""
    at_work = min(demand.at_once, rate * (demand.seconds + waiting(costs, demand)))
    looks = (min(1.0, _VIEW / pause(int(at_work))) * at_work * costs.news + demand.runs * costs.row) / _VIEW
    more = {
        OWN: rate * demand.points * costs.tracked_point + min(_VIEW_MOST, looks),
        BOARD: at_work / pause(int(at_work)) * costs.call,
    }
    return {
        name: rate * use.run + use.second + at_work * use.at_work + more.get(name, 0.0)
        for name, use in costs.parts.items()
    }


def waiting(costs: Costs, demand: Demand) -> float:
    """Return the seconds that a GPU waits for a run where no part is full."""
    return sum(use.run for use in costs.parts.values()) + demand.points * costs.tracked_point


def rate(costs: Costs, demand: Demand) -> float:
    """Return the number of runs that end in a second: as the GPUs can, or the most that no part hinders."""
    most = demand.at_once / (demand.seconds + waiting(costs, demand))
    return _largest(lambda found: max(busy(costs, demand, found).values()) <= 1.0, most)


def full(costs: Costs, demand: Demand, part: str) -> float:
    """Return the most GPUs that a part can serve, if no other part hinders them."""

    def serves(gpus: float) -> bool:
        # A sweep has many more runs than GPUs, and the view of more runs takes its share.
        larger = replace(demand, gpus=gpus, runs=max(demand.runs, int(gpus)))
        return busy(costs, larger, gpus / (demand.seconds + waiting(costs, demand)))[part] <= 1.0

    return _largest(serves, _MANY)


def _largest(holds: Callable[[float], bool], most: float) -> float:
    """Return the largest number up to `most` for which something holds that holds for all smaller ones."""
    if holds(most):
        return most
    low, high = 0.0, most
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def operations(costs: Costs, demand: Demand, found: float) -> float:
    """Return the operations on files of the storage in a second where `found` runs a second end."""
    return found * (costs.operations + demand.seconds / _TRIAL * costs.look)


def figures(costs: Costs, demand: Demand, price: float | None = None) -> tuple[Figure, ...]:
    """Return what a sweep asks of each part, the GPUs at which the part is full, and what the sweep takes.

    `price` is that of a GPU for an hour.
    """
    wanted = demand.at_once / (demand.seconds + waiting(costs, demand))
    found = rate(costs, demand)
    hours = demand.runs / found / 3600
    trained = found * demand.seconds
    most = {name: full(costs, demand, name) for name in costs.parts}
    core = Goal(sense="at most", value=1.0)
    tracked = wanted * (costs.tracked_run + demand.points * costs.tracked_point)
    return (
        *(
            Figure(name=f"{name}: cores for all GPUs", unit="", value=cores, goal=core)
            for name, cores in busy(costs, demand, wanted).items()
        ),
        Figure(name=f"of {OWN}: MLflow", unit="", value=tracked),
        *(
            Figure(name=f"{name}: full at so many GPUs", unit="", value=float(int(gpus)))
            for name, gpus in most.items()
            if gpus < _MANY
        ),
        Figure(
            name="operations on files of the storage", unit="a second", value=operations(costs, demand, found)
        ),
        Figure(name="time of the sweep", unit="h", value=hours),
        Figure(name="GPUs that train", unit="", value=trained),
        Figure(name="GPUs that wait", unit="", value=demand.gpus - trained),
        *(
            ()
            if price is None
            else (
                Figure(name="price of an hour", unit="", value=price * demand.gpus),
                Figure(
                    name="price of an hour, of GPUs that wait", unit="", value=price * (demand.gpus - trained)
                ),
                Figure(name="price of the sweep", unit="", value=price * demand.gpus * hours),
            )
        ),
    )
