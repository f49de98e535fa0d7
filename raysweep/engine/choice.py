"""The choice between nested training and warm lanes, and the CPUs that training leaves to evaluations.

Nested training starts the processes of a Ray Train job for each run, which takes some ten seconds.  A lane
(`raysweep.engine.lane`) keeps them for the next run.  `resources.engine` names one of the two, or leaves the
choice to `auto`.  `auto` takes lanes if the sweep asks for CPUs alone, and for a fixed number of workers, and
training is expected to take at most `SHORT` seconds a run, in the mean over those to train.  What was not
measured counts as long: steps that are too slow to be timed here, or that nobody timed, as when
`raysweep.launch` is called from Python on a new sweep.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from raysweep.errors import ConfigError
from raysweep.sweep import Plan, Resources

Engine = Literal["nested", "lanes"]

#: Seconds of training of a short run.
SHORT = 60.0

#: Share of its CPUs that training leaves to evaluations, which ask for the same share of theirs.
#:
#: Evaluations would wait until a run has ended, and beside lanes for ever.  With shares, Ray finds room for
#: as many evaluations as there are CPUs, and the operating system divides the time.  The share is so small
#: that a node, up to one of 98 CPUs, takes no more runs than it has CPUs for.
EVALUATION_SHARE = 0.01


def choose_engine(resources: Resources, plan: Plan) -> Engine:
    """Return the engine for the runs of a plan.

    Raises `ConfigError` for lanes beside evaluations that need more than CPUs.
    """
    if resources.engine != "auto":
        return checked(resources)
    named = {*resources.per_worker, *resources.evaluate}
    costs = [run.cost.training for run in plan.to_do if run.train_steps]
    known = [seconds for seconds in costs if seconds is not None]
    short = bool(known) and len(known) == len(costs) and sum(known) <= SHORT * len(known)
    return "lanes" if short and named <= {"CPU"} and resources.min_workers is None else "nested"


def checked(resources: Resources) -> Engine:
    """Return the engine that `resources` names, nested for `auto`; raises as `choose_engine` does."""
    if resources.engine != "lanes":
        return "nested"
    others = sorted(set(resources.evaluate) - {"CPU"})
    if others:
        raise ConfigError(
            "resources.engine: lanes keep what they hold from one run to the next, so evaluations might wait "
            f"for {', '.join(others)} for ever; use nested, or let resources.evaluate ask for CPU alone"
        )
    return "lanes"


def shares(resources: Resources, engine: Engine, *, embedded: bool) -> bool:
    """Return whether evaluations share the CPUs of training.

    They do beside lanes, and in a Ray that was started here for work on CPUs alone.  Elsewhere Ray itself
    spreads evaluations over the nodes, and asks for more of them, by the CPUs that they need.
    """
    return engine == "lanes" or (embedded and {*resources.per_worker, *resources.evaluate} == {"CPU"})


def reserved(resources: Resources, shared: bool) -> Resources:
    """Return the resources that Ray reserves for training.

    Where CPUs are shared, the number of workers is fixed: the one machine of a Ray that was started here does
    not come and go, and in 2.97 CPUs Ray Train finds room for two elastic workers of 0.99.
    """
    if not shared:
        return resources
    per_worker = _scaled(resources.per_worker, 1 - EVALUATION_SHARE)
    return resources.model_copy(update={"per_worker": per_worker, "min_workers": None})


def evaluation_need(resources: Resources, shared: bool) -> dict[str, float]:
    """Return the resources that Ray reserves for an evaluation task."""
    return _scaled(resources.evaluate, EVALUATION_SHARE if shared else 1.0)


def _scaled(amounts: Mapping[str, float], share: float) -> dict[str, float]:
    """Return amounts with the CPUs scaled, to the four digits that Ray reads."""
    return {name: round(n * share, 4) if name == "CPU" else n for name, n in amounts.items()}
