"""Resources of a run, which are never part of its identity."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from raysweep.registry import Config

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Resources(Config):
    """The resources that a run may use; never part of an identity."""

    #: Training processes of one run (data parallel).
    workers: int = Field(default=1, ge=1)
    #: Ray resources of each training process, e.g. {CPU: 1} or {GPU: 1}.
    per_worker: dict[str, Amount] = Field(default_factory=lambda: {"CPU": 1.0})
    #: Ray resources of each evaluation task.
    evaluate: dict[str, Amount] = Field(default_factory=lambda: {"CPU": 1.0})
    #: Number of runs trained at once; "auto" depends on the cluster.
    max_concurrent: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
