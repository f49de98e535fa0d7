"""The trace of the Hessian at a milestone, also off saturation: see `raysweep.flatness.hessian`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from raysweep.evaluation.base import Arrays, Metric, Subject
from raysweep.evaluation.labels import LabelledEvaluation, model_of
from raysweep.evaluation.notes import method_arrays, method_notes
from raysweep.evaluation.sharding import shard_count, shard_range
from raysweep.evaluation.trace import TraceConfig
from raysweep.flatness.estimate import doubt, largest_share
from raysweep.flatness.fisher import input_traces
from raysweep.flatness.hessian import residual_traces
from raysweep.flatness.regression import adjusted
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig

log = logging.getLogger("raysweep.evaluation")


class HessianConfig(LabelledEvaluation):
    """Trace of the Hessian over `inputs` sentences with one masked position each.

    `draws` random directions are averaged at each input.  Inputs and test vectors are those of `trace` with
    the same seed, whose value `hessian/gauss_newton` is.  Metrics, in nats where nothing else is said:

    - `hessian/trace`: Tr H, its standard error over inputs, each with both its parts;
    - `hessian/gauss_newton`: the part that is the Fisher trace;
    - `hessian/residual`: the rest, zero for a model that has reached its language;
    - `hessian/largest_share` (a fraction): what the largest |value| of an input is of the sum of all, for the
      residual's values have long tails;
    - `hessian/interval_trusted`: 1 where nothing speaks against the normal interval of the trace, else 0.
    """

    kind: Literal["hessian"] = "hessian"
    needs_parameters: ClassVar[bool] = True
    #: 2 takes the regression on control statistics off.
    version: ClassVar[int] = 2

    inputs: int = Field(default=1024, gt=0)
    draws: int = Field(default=1, gt=0)
    #: Inputs a shard.
    shard_size: int = Field(default=256, gt=0)

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        return TraceConfig().model_problems(model, language)

    def shards(self) -> int:
        return shard_count(self.inputs, self.shard_size)

    def labelled(self, shard: int) -> range:
        return shard_range(self.inputs, self.shard_size, shard)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return both parts [n] of the shard's inputs, float64, and the control [n, K] of the first."""
        numbers = self.labelled(shard)
        model = model_of(self.kind, subject)
        ids, positions = self.draw(subject.language, numbers)
        pool = self.pool(subject, numbers, reference)
        traces = input_traces(model, ids, positions, seed=self.seed, start=numbers.start, draws=self.draws)
        residual = residual_traces(model, pool, seed=self.seed, start=numbers.start, draws=self.draws)
        arrays = {"gauss_newton": traces.values.sum(dim=1).numpy(), "residual": residual.numpy()}
        if traces.control is not None:
            arrays["control"] = traces.control.numpy()
        return arrays | method_arrays(traces)

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        def joined(name: str) -> Tensor:
            return torch.from_numpy(np.concatenate([shard[name] for shard in shards]))

        residual = joined("residual")
        control = joined("control") if all("control" in shard for shard in shards) else None
        gauss_newton = adjusted(joined("gauss_newton"), torch.ones_like(residual), control)
        # Of the sums, not of the parts: both parts of an input go together.
        both = gauss_newton + residual
        told = doubt(both, torch.ones_like(both))
        if told is not None:
            log.warning("the interval of this Hessian trace is not to be trusted: %s", told)
        n = len(both)
        return [
            Metric.mean("hessian/trace", both.numpy(), "nats"),
            Metric.mean("hessian/gauss_newton", gauss_newton.numpy(), "nats"),
            Metric.mean("hessian/residual", residual.numpy(), "nats"),
            Metric.number("hessian/largest_share", largest_share(both), "fraction", n=n),
            Metric.number("hessian/interval_trusted", float(told is None), "1 or 0", n=n),
        ]

    def notes(self, shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
        return method_notes(shards)
