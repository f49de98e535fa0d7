"""The trace of the Hessian at a milestone, also off saturation: see `raysweep.flatness.hessian`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from raysweep.evaluation.base import Arrays, Metric, Subject
from raysweep.evaluation.labels import LabelledEvaluation, model_of
from raysweep.evaluation.sharding import shard_count, shard_range
from raysweep.evaluation.trace import TraceConfig
from raysweep.flatness.fisher import input_traces
from raysweep.flatness.hessian import residual_traces
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig


class HessianConfig(LabelledEvaluation):
    """Trace of the Hessian over `inputs` sentences with one masked position each.

    `draws` random directions are averaged at each input.  Inputs and test vectors are those of `trace` with
    the same seed, whose value `hessian/gauss_newton` is.  Metrics, in nats where nothing else is said:

    - `hessian/trace`: Tr H, its standard error over inputs, each with both its parts;
    - `hessian/gauss_newton`: the part that is the Fisher trace;
    - `hessian/residual`: the rest, zero for a model that has reached its language;
    - `hessian/largest_share` (a fraction): what the largest |value| of an input is of the sum of all, for the
      residual's values have long tails: a standard error is to be trusted where this is small.
    """

    kind: Literal["hessian"] = "hessian"
    needs_parameters: ClassVar[bool] = True

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
        """Return both parts [n] of the shard's inputs, float64."""
        numbers = self.labelled(shard)
        model = model_of(self.kind, subject)
        ids, positions = self.draw(subject.language, numbers)
        pool = self.pool(subject, numbers, reference)
        traces = input_traces(model, ids, positions, seed=self.seed, start=numbers.start, draws=self.draws)
        residual = residual_traces(model, pool, seed=self.seed, start=numbers.start, draws=self.draws)
        return {"gauss_newton": traces.values.sum(dim=1).numpy(), "residual": residual.numpy()}

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        parts = {key: np.concatenate([shard[key] for shard in shards]) for key in shards[0]}
        both = parts["gauss_newton"] + parts["residual"]
        sizes = np.abs(both)
        return [
            # Of the sums, not of the parts: both parts of an input go together.
            Metric.mean("hessian/trace", both, "nats"),
            Metric.mean("hessian/gauss_newton", parts["gauss_newton"], "nats"),
            Metric.mean("hessian/residual", parts["residual"], "nats"),
            Metric.number("hessian/largest_share", float(sizes.max() / sizes.sum()), "fraction", n=len(both)),
        ]
