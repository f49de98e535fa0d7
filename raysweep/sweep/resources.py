"""Resources of a run, which are never part of its identity."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from raysweep.registry import Config

#: Ray takes these from a node; any other name is a resource that the cluster's owner gave it.
_OF_RAY = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}

_RESIZE_EVERY = 600.0


def _own_name(name: str) -> str:
    """Refuse another spelling of a name of Ray's: no node has such a resource."""
    meant = _OF_RAY.get(name.lower().removesuffix("s"), name)
    if meant != name:
        raise ValueError(f"no resource of Ray has the name '{name}'; did you mean '{meant}'?")
    return name


def _whole_gpus(amounts: dict[str, float]) -> dict[str, float]:
    """Refuse a part of a GPU beside whole ones, which Ray does not give."""
    gpus = amounts.get("GPU", 0.0)
    if gpus > 1 and not gpus.is_integer():
        raise ValueError(f"GPU: {gpus:g}: Ray gives whole GPUs, or a part of one; write {round(gpus)} or 0.5")
    return amounts


Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Amounts = Annotated[dict[Annotated[str, AfterValidator(_own_name)], Amount], AfterValidator(_whole_gpus)]


class Resources(Config):
    """The resources that a run may use; never part of an identity."""

    #: Training processes of one run (data parallel).
    workers: int = Field(default=1, ge=1)
    #: The fewest workers with which a run goes on while the cluster has no room for all; None: all of them.
    min_workers: Annotated[int, Field(ge=1)] | None = None
    #: Seconds after which a run with fewer than all of its workers, as `min_workers` allows, looks for room
    #: for more; taking them costs the steps since its last checkpoint.
    resize_every: Annotated[float, Field(gt=0, allow_inf_nan=False)] = _RESIZE_EVERY
    #: Weights, gradients and optimizer state are on each worker (`none`), or shared out over all workers
    #: (`full`) or over each group of this many (see `raysweep.training.sharding`).
    sharding: Literal["none", "full"] | Annotated[int, Field(ge=2)] = "none"
    #: Ray resources of each training process, e.g. {CPU: 1} or {GPU: 1}.
    per_worker: Amounts = Field(default_factory=lambda: {"CPU": 1.0}, examples=[{"CPU": 1}])
    #: Ray resources of each evaluation task.
    evaluate: Amounts = Field(default_factory=lambda: {"CPU": 1.0}, examples=[{"CPU": 1}])
    #: The most runs trained at once; "auto": as many as fit, also while the cluster grows and shrinks.
    max_concurrent: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    #: `nested` starts new training processes for each run; `lanes` keeps them for the next run; `auto` takes
    #: lanes for short runs (see `raysweep.engine.choice`).
    engine: Literal["auto", "nested", "lanes"] = "auto"

    def shards(self, workers: int) -> int:
        """Return how many of so many workers hold one copy of the weights together."""
        named = {"none": 1, "full": workers}
        return self.sharding if isinstance(self.sharding, int) else named[self.sharding]

    @model_validator(mode="after")
    def _workers_share_evenly(self) -> Resources:
        if self.sharding == "full" and self.workers == 1:
            raise ValueError("sharding: 'full' shares weights out over workers; use workers: 2 or more")
        if self.workers % self.shards(self.workers):
            raise ValueError(
                f"sharding: {self.workers} workers make no groups of {self.sharding}; use 'full', or a "
                "number that divides the workers"
            )
        return self

    @model_validator(mode="after")
    def _fewer_workers_do_too(self) -> Resources:
        if self.min_workers is None:
            # Records name every field, so one at its default may not be the file's.
            if self.resize_every != _RESIZE_EVERY:
                raise ValueError(
                    "resize_every: a run without min_workers keeps all of its workers; add min_workers: 1, "
                    "or leave this out"
                )
            return self
        if self.min_workers > self.workers:
            raise ValueError(f"min_workers: {self.min_workers} is more than the {self.workers} workers")
        if isinstance(self.sharding, int):
            raise ValueError(
                "min_workers: workers that come and go make no groups of one size; use sharding: full or none"
            )
        if self.engine == "lanes":
            raise ValueError("min_workers: lanes keep all of their workers; use engine: nested")
        return self
