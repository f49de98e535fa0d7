"""The trace of the Hessian at a milestone, also off saturation: see `raysweep.flatness.trace.hessian`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, field_validator
from torch import Tensor

from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.labels import LabelledEvaluation, model_of
from raysweep.evaluation.metric import NOT_TRUSTED, Metric, Quantity
from raysweep.evaluation.notes import method_arrays, method_notes
from raysweep.evaluation.operations import Operations, gradient
from raysweep.evaluation.sharding import draw_inputs, shard_count, shard_range
from raysweep.evaluation.trace import TraceConfig
from raysweep.evaluation.trace_arrays import statistics_of
from raysweep.flatness.trace.estimate import doubt, largest_share, ratio
from raysweep.flatness.trace.fisher import input_traces
from raysweep.flatness.trace.hessian import residual_traces
from raysweep.flatness.trace.places import all_statistics
from raysweep.flatness.trace.regression import adjusted
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig
from raysweep.training.config import check_mask
from raysweep.training.data import masked_words

TRACE = Quantity(
    name="hessian/trace", heading="trace of the Hessian", unit="nats", kind="flatness", better="less"
)
GAUSS_NEWTON = Quantity(
    name="hessian/gauss_newton",
    heading="Gauss-Newton part of the trace",
    unit="nats",
    kind="flatness",
    better="less",
)
RESIDUAL = Quantity(
    name="hessian/residual", heading="residual part of the trace", unit="nats", kind="flatness"
)
LARGEST_SHARE = Quantity(
    name="hessian/largest_share", heading="share of the largest input", unit="fraction", better="less"
)
INTERVAL_TRUSTED = Quantity(
    name="hessian/interval_trusted", heading="interval trusted", unit="1 or 0", better="more"
)

log = logging.getLogger("raysweep.evaluation")


class HessianConfig(LabelledEvaluation):
    """Trace of the Hessian over `inputs` sentences with masked positions.

    `mask` is "one" position a sentence, or a rate as in `pretrain`: the loss is then the mean over masked
    words, each hidden by the mask token.  `draws` random directions are averaged at each input.  Inputs and
    test vectors are those of `trace` with the same seed and mask, whose value `hessian/gauss_newton` is.
    Metrics, in nats where nothing else is said:

    - `hessian/trace`: Tr H, its standard error over inputs, each with both its parts;
    - `hessian/gauss_newton`: the part that is the Fisher trace;
    - `hessian/residual`: the rest, zero for a model that has reached its language;
    - `hessian/largest_share` (a fraction): the largest |value| of an input as a share of the sum of all; the
      residual's values have long tails;
    - `hessian/interval_trusted`: 1 where nothing speaks against the interval of the trace, else 0.
    """

    kind: Literal["hessian"] = "hessian"
    needs_parameters: ClassVar[bool] = True
    #: 5 takes off what the place of the masked word explains of the Gauss-Newton part.
    version: ClassVar[int] = 5

    inputs: int = Field(default=1024, gt=0)
    draws: int = Field(default=1, gt=0)
    mask: Literal["one"] | float = "one"
    #: Inputs a shard.
    shard_size: int = Field(default=256, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(inputs=40, shard_size=16)

    @field_validator("mask", mode="before")
    @classmethod
    def _mask_is_one_or_a_rate(cls, value: object) -> object:
        return check_mask(value)

    def problems(self, language: Language) -> list[tuple[str, str]]:
        found = super().problems(language)
        if found or not self.needs_reference or language.most_hidden is None:
            return found
        most = int(masked_words(torch.tensor([language.max_length]), self.mask))
        if most <= language.most_hidden:
            return []
        known = f"exact conditionals of a {type(language).__name__} hide {language.most_hidden} at most"
        return [("mask", f"{self.mask} hides {most} words, and {known}; use 'one', or labels: hard")]

    def reference_bytes(self, language: Language) -> int:
        return super().reference_bytes(language) * (1 if self.mask == "one" else language.max_length)

    def draw(self, language: Language, numbers: range) -> tuple[Tensor, Tensor]:
        return draw_inputs(language, numbers, mask=self.mask, seed=self.seed)

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        return TraceConfig().model_problems(model, language)

    def quantities(self) -> Sequence[Quantity]:
        return TRACE, GAUSS_NEWTON, RESIDUAL

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return inputs · draws · 18·P·T: a gradient and a product with the Hessian each."""
        return Operations.fixed(3 * self.inputs * self.draws * gradient(parameters, language))

    def shards(self) -> int:
        return shard_count(self.inputs, self.shard_size)

    def labelled(self, shard: int) -> range:
        return shard_range(self.inputs, self.shard_size, shard)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return both parts [n] of the shard's inputs, float64, and the control [n, K] of the first.

        The parts are sums over the `weights` [n] masked positions of each.  `places` [n, 2] are those of
        `raysweep.flatness.trace.places`, where one is masked.
        """
        numbers = self.labelled(shard)
        model = model_of(self.kind, subject)
        ids, positions = self.draw(subject.language, numbers)
        pool = self.pool(subject, numbers, reference)
        traces = input_traces(
            model,
            ids,
            positions,
            seed=self.seed,
            start=numbers.start,
            draws=self.draws,
            uniform=self.mask == "one",
        )
        residual = residual_traces(model, pool, seed=self.seed, start=numbers.start, draws=self.draws)
        arrays = {
            "gauss_newton": traces.values.sum(dim=1).numpy(),
            "residual": residual.numpy(),
            "weights": traces.weights.numpy(),
        }
        if traces.control is not None:
            arrays["control"] = traces.control.numpy()
        if traces.places is not None:
            arrays["places"] = traces.places.numpy()
        return arrays | method_arrays(traces)

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        def joined(name: str) -> Tensor:
            return torch.from_numpy(np.concatenate([shard[name] for shard in shards]))

        residual, weights = joined("residual"), joined("weights")
        gauss_newton = adjusted(joined("gauss_newton"), weights, all_statistics(*statistics_of(shards)))
        # Of the sums, not of the parts: both parts of an input go together.
        both = gauss_newton + residual
        doubtful = doubt(both, weights)
        if doubtful is not None:
            log.warning("the interval of this Hessian trace is not to be trusted: %s", doubtful)
        n, reservations = len(both), [] if doubtful is None else [NOT_TRUSTED]
        return [
            TRACE.estimate(ratio(both, weights), reservations=reservations),
            GAUSS_NEWTON.estimate(ratio(gauss_newton, weights)),
            RESIDUAL.estimate(ratio(residual, weights)),
            LARGEST_SHARE.number(largest_share(both), n=n),
            INTERVAL_TRUSTED.number(float(doubtful is None), n=n),
        ]

    def notes(self, shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
        return method_notes(shards)
