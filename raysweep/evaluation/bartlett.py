"""Bartlett's identity along training: see `raysweep.flatness.theory.bartlett` for its terms.

    Tr Σ = Tr ∇²L    at saturation,

Σ the covariance of the gradient of one sampled word.  Both traces are of the same inputs and directions, the
same at every milestone and for every model, so that their difference is measured far better than either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator

from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.labels import LabelledEvaluation, model_of
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations, gradient
from raysweep.evaluation.sharding import shard_count, shard_range
from raysweep.flatness.theory.bartlett import BLOCK, bartlett_terms
from raysweep.languages.base import Language

COVARIANCE = Quantity(
    name="bartlett/covariance", heading="trace of the gradient covariance", unit="nats", kind="flatness"
)
HESSIAN = Quantity(
    name="bartlett/hessian", heading="trace of the Hessian", unit="nats", kind="flatness", better="less"
)
DIFFERENCE = Quantity(name="bartlett/difference", heading="covariance less Hessian", unit="nats")
RATIO = Quantity(name="bartlett/ratio", heading="covariance over Hessian", unit="fraction")
GAUSS_NEWTON = Quantity(
    name="bartlett/gauss_newton", heading="Gauss-Newton part", unit="nats", kind="flatness"
)
RESIDUAL = Quantity(name="bartlett/residual", heading="residual part", unit="nats", kind="flatness")
SQUARED_GRADIENT = Quantity(
    name="bartlett/squared_gradient", heading="squared gradient of the mean loss", unit="nats"
)
EXCESS_LOSS = Quantity(
    name="bartlett/excess_loss", heading="excess loss", unit="nats", kind="loss", better="less", least=0.0
)
LOSS = Quantity(name="bartlett/loss", heading="loss", unit="nats", kind="loss", better="less")

#: Words times width in a batch: small models take few batches, and large ones no more memory.
_BATCH = 1 << 17


class BartlettConfig(LabelledEvaluation):
    """Traces of gradient covariance and Hessian over `inputs` sentences with one masked position each.

    Metrics, in nats but for the ratio, with standard errors over blocks of inputs:

    - `bartlett/covariance` and `bartlett/hessian`: Tr Σ and Tr ∇²L;
    - `bartlett/difference` and `bartlett/ratio` of the first to the second, paired;
    - `bartlett/gauss_newton` and `bartlett/residual`, the parts of the Hessian;
    - `bartlett/squared_gradient`: ‖∇L‖², the second moment less the covariance;
    - `bartlett/excess_loss` on the same inputs, or `bartlett/loss` where the labels are hard.
    """

    kind: Literal["bartlett"] = "bartlett"
    needs_parameters: ClassVar[bool] = True

    #: Sentences, with one masked position each.
    inputs: int = Field(default=1024, gt=0)
    #: Inputs a shard.
    shard_size: int = Field(default=256, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(inputs=48, shard_size=16)

    @field_validator("inputs", "shard_size")
    @classmethod
    def _whole_blocks(cls, inputs: int) -> int:
        if inputs % BLOCK:
            raise ValueError(f"{inputs} is no multiple of {BLOCK}; choose one")
        return inputs

    def quantities(self) -> Sequence[Quantity]:
        return COVARIANCE, HESSIAN, GAUSS_NEWTON, RESIDUAL

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return inputs · 30·P·T: a gradient, and two products for the parts of the Hessian."""
        return Operations.fixed(5 * self.inputs * gradient(parameters, language))

    def shards(self) -> int:
        return shard_count(self.inputs, self.shard_size)

    def labelled(self, shard: int) -> range:
        return shard_range(self.inputs, self.shard_size, shard)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the shard's terms, float64: [n] each, and [n / BLOCK] of the squared gradient."""
        numbers = self.labelled(shard)
        pool = self.pool(subject, numbers, reference)
        model = model_of(self.kind, subject)
        batch = max(64, _BATCH // (pool.masked.shape[1] * model.width))
        terms = bartlett_terms(model, pool, seed=self.seed, start=numbers.start, batch=batch)
        return {name: values.numpy() for name, values in vars(terms).items()}

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        terms = {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}
        squared = terms.pop("squared_gradient")
        # Blocks are independent, and each holds a value of everything.
        of = {name: values.reshape(-1, BLOCK).mean(axis=1) for name, values in terms.items()}
        covariance = of["second_moment"] - squared
        hessian = of["gauss_newton"] + of["residual"]
        return [
            COVARIANCE.mean(covariance),
            HESSIAN.mean(hessian),
            DIFFERENCE.mean(covariance - hessian),
            GAUSS_NEWTON.mean(of["gauss_newton"]),
            RESIDUAL.mean(of["residual"]),
            SQUARED_GRADIENT.mean(squared),
            (EXCESS_LOSS if self.labels == "soft" else LOSS).mean(of["loss"]),
            _ratio(covariance, hessian),
        ]


def _ratio(over: np.ndarray, under: np.ndarray) -> Metric:
    """Return the ratio of two means of paired values [n], with its standard error to first order."""
    ratio, n = float(over.mean() / under.mean()), len(over)
    error = None
    if n > 1:
        error = float((over - ratio * under).std(ddof=1) / (abs(under.mean()) * np.sqrt(n)))
    return RATIO.number(ratio, n=n, standard_error=error)
