"""Eigenvalues of the Hessian and the Gauss-Newton matrix: see `raysweep.flatness.curvature.spectrum`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field

from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.labels import LabelledEvaluation, model_of
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations, gradient
from raysweep.evaluation.sharding import shard_range
from raysweep.flatness.curvature.operator import CurvatureOperator, Matrix
from raysweep.flatness.curvature.spectrum import Density, density, extreme_eigenvalues
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig

EIGENVALUE = Quantity(
    name="spectrum/{matrix}/{rank}", heading="eigenvalue", unit="nats", kind="flatness", better="less"
)
SMALLEST = Quantity(
    name="spectrum/{matrix}/smallest", heading="smallest eigenvalue", unit="nats", kind="flatness"
)
TRACE = Quantity(
    name="spectrum/{matrix}/trace", heading="trace by quadrature", unit="nats", kind="flatness", better="less"
)
SQUARES = Quantity(
    name="spectrum/{matrix}/squares", heading="sum of squared eigenvalues", unit="nats²", kind="flatness",
    better="less",
)  # fmt: skip

#: Words times width up to which the graphs of the whole pool are kept, a few hundred MB for some layers.
_KEPT = 1 << 20
#: Bytes that the vectors of the Lanczos method may take.
_BASIS = 4 << 30


class SpectrumConfig(LabelledEvaluation):
    """Largest eigenvalues and spectral density of the loss's curvature over a fixed pool of `inputs`.

    It finds `eigenvalues` of the largest to a relative `tolerance`, and the smallest of the Hessian to 1 %.
    The density takes `steps` of the Lanczos method from each of `vectors` random vectors; there is none with
    `vectors: 0`.  Metrics, for each of `matrices`, in nats where nothing else is said:

    - `spectrum/<matrix>/1`, `.../2`, ...: the largest eigenvalues, descending;
    - `spectrum/hessian/smallest`: the most negative one;
    - `spectrum/<matrix>/trace` and `.../squares` (nats²): Σλ and Σλ² of the pool by quadrature, with their
      standard errors over random vectors; of fewer than 16 vectors an upper bound, √(2 Σλ² / vectors) for Σλ.

    The arrays `<matrix>/nodes` and `<matrix>/weights` [vectors, steps] of the shard are the density itself
    (`raysweep.flatness.curvature.spectrum.Density`).  Eigenvalues have no standard error: they are those of
    the pool.
    """

    kind: Literal["spectrum"] = "spectrum"
    needs_parameters: ClassVar[bool] = True

    #: Sentences of the pool, with one masked position each.
    inputs: int = Field(default=256, gt=0)
    #: The matrices whose eigenvalues are found.
    matrices: Annotated[tuple[Matrix, ...], Field(min_length=1)] = ("hessian", "gauss_newton")
    #: Number of largest eigenvalues.
    eigenvalues: int = Field(default=10, gt=0)
    #: Relative error of the largest eigenvalues.
    tolerance: float = Field(default=1e-3, gt=0, lt=1)
    #: Steps of the Lanczos method for the density.
    steps: int = Field(default=32, gt=0)
    #: Random vectors of the density; 0 leaves it out.
    vectors: int = Field(default=2, ge=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(inputs=6, eigenvalues=2, tolerance=0.1, steps=4)

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        size = model.parameters(language)
        most = _BASIS // 8 // size
        found = []
        if self.eigenvalues >= size:
            found.append(
                ("eigenvalues", f"{self.eigenvalues} of a model of {size} parameters; ask for fewer")
            )
        if self.vectors and self.steps > most:
            advice = f"use at most {most}" if most else "use vectors: 0"
            found.append(("steps", f"{self.steps} vectors of {size} parameters exceed 4 GB; {advice}"))
        return found

    def quantities(self) -> Sequence[Quantity]:
        kinds = (EIGENVALUE, *((TRACE, SQUARES) if self.vectors else ()))
        found = [_of(kind, matrix) for matrix in self.matrices for kind in kinds]
        return [*found, *([_of(SMALLEST, "hessian")] if "hessian" in self.matrices else [])]

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return products · inputs · 12·P·T, with 4 products an eigenvalue and one a step of the density."""
        products = len(self.matrices) * (4 * self.eigenvalues + self.vectors * self.steps)
        return Operations.fixed(2 * products * self.inputs * gradient(parameters, language))

    def shards(self) -> int:
        return 1

    def labelled(self, shard: int) -> range:
        return shard_range(self.inputs, self.inputs, shard)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return `<matrix>/largest`, `hessian/smallest`, `<matrix>/nodes` and `.../weights`, float64."""
        numbers = self.labelled(shard)
        model = model_of(self.kind, subject)
        pool = self.pool(subject, numbers, reference)
        found: Arrays = {}
        keep = pool.masked.numel() * model.width <= _KEPT
        for matrix in self.matrices:
            operator = CurvatureOperator(model, pool, matrix=matrix, keep=keep)
            found[f"{matrix}/largest"] = extreme_eigenvalues(
                operator, self.eigenvalues, seed=self.seed, tolerance=self.tolerance
            )
            if matrix == "hessian":
                found["hessian/smallest"] = extreme_eigenvalues(
                    operator, 1, end="smallest", seed=self.seed, tolerance=1e-2
                )
            if self.vectors:
                whole = density(operator, steps=self.steps, vectors=self.vectors, seed=self.seed)
                found[f"{matrix}/nodes"], found[f"{matrix}/weights"] = whole.nodes, whole.weights
                found[f"{matrix}/size"] = np.array([whole.size])
        return found

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        (arrays,) = shards
        metrics = []
        for matrix in self.matrices:
            of = {"matrix": matrix}
            for rank, value in enumerate(arrays[f"{matrix}/largest"], start=1):
                metrics.append(EIGENVALUE.number(float(value), n=self.inputs, of=of | {"rank": rank}))
            if matrix == "hessian":
                smallest = float(arrays["hessian/smallest"][0])
                metrics.append(SMALLEST.number(smallest, n=self.inputs, of=of))
            if self.vectors:
                whole = Density(
                    nodes=arrays[f"{matrix}/nodes"],
                    weights=arrays[f"{matrix}/weights"],
                    size=int(arrays[f"{matrix}/size"][0]),
                )
                metrics.append(TRACE.estimate(whole.trace, of=of))
                metrics.append(SQUARES.estimate(whole.squares, of=of))
        return metrics


def _of(quantity: Quantity, matrix: Matrix) -> Quantity:
    """Return a quantity of one matrix."""
    return quantity.model_copy(update={"name": quantity.name.replace("{matrix}", matrix)})
