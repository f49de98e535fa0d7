"""Bartlett's identity along training: see `raysweep.flatness.bartlett` for its terms.

    Tr Σ = Tr ∇²L    at saturation,

Σ the covariance of the gradient of one sampled word.  Both traces are of the same inputs and directions, the
same at every milestone and for every model, so that their difference is measured far better than either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator

from raysweep.evaluation.base import Arrays, Metric, Subject
from raysweep.evaluation.labels import LabelledEvaluation, model_of
from raysweep.evaluation.sharding import shard_count, shard_range
from raysweep.flatness.bartlett import BLOCK, bartlett_terms

#: Words times width in a batch: small models are worked off in few batches, large ones in no more memory.
_BATCH = 1 << 17


class BartlettConfig(LabelledEvaluation):
    """Traces of gradient covariance and Hessian over `inputs` sentences with one masked position each.

    Metrics, in nats but for the ratio, with standard errors over blocks of inputs:

    - `bartlett/covariance` and `bartlett/hessian`: Tr Σ and Tr ∇²L;
    - `bartlett/difference` and `bartlett/ratio` of the first to the second, paired;
    - `bartlett/gauss_newton` and `bartlett/residual`, the parts of the Hessian;
    - `bartlett/squared_gradient`: ‖∇L‖², by which the covariance is less than the second moment;
    - `bartlett/excess_loss` on the same inputs, or `bartlett/loss` where the labels are hard.
    """

    kind: Literal["bartlett"] = "bartlett"
    needs_parameters: ClassVar[bool] = True

    inputs: int = Field(default=1024, gt=0)
    #: Inputs a shard.
    shard_size: int = Field(default=256, gt=0)

    @field_validator("inputs", "shard_size")
    @classmethod
    def _whole_blocks(cls, inputs: int) -> int:
        if inputs % BLOCK:
            raise ValueError(f"{inputs} is no multiple of {BLOCK}; choose one")
        return inputs

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
        means = {
            "covariance": covariance,
            "hessian": hessian,
            "difference": covariance - hessian,
            "gauss_newton": of["gauss_newton"],
            "residual": of["residual"],
            "squared_gradient": squared,
            "excess_loss" if self.labels == "soft" else "loss": of["loss"],
        }
        metrics = [Metric.mean(f"bartlett/{name}", values, "nats") for name, values in means.items()]
        return [*metrics, _ratio("bartlett/ratio", covariance, hessian)]


def _ratio(name: str, over: np.ndarray, under: np.ndarray) -> Metric:
    """Return the ratio of two means of paired values [n], with its standard error to first order."""
    ratio, n = float(over.mean() / under.mean()), len(over)
    error = None
    if n > 1:
        error = float((over - ratio * under).std(ddof=1) / (abs(under.mean()) * np.sqrt(n)))
    return Metric.number(name, ratio, "fraction", n=n, standard_error=error)
