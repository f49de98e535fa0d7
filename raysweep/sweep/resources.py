"""Resources of a run, which are never part of its identity."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from raysweep.registry import Config

#: Ray takes these from a node; any other name is a resource that the cluster's owner gave it.
_OF_RAY = {"cpu": "CPU", "gpu": "GPU", "memory": "memory"}


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
    #: Ray resources of each training process, e.g. {CPU: 1} or {GPU: 1}.
    per_worker: Amounts = Field(default_factory=lambda: {"CPU": 1.0}, examples=[{"CPU": 1}])
    #: Ray resources of each evaluation task.
    evaluate: Amounts = Field(default_factory=lambda: {"CPU": 1.0}, examples=[{"CPU": 1}])
    #: The most runs trained at once; "auto": as many as fit, also while the cluster grows and shrinks.
    max_concurrent: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    #: `nested` starts new training processes for each run; `lanes` keeps them for the next run; `auto` takes
    #: lanes for short runs (see `raysweep.engine.choice`).
    engine: Literal["auto", "nested", "lanes"] = "auto"
