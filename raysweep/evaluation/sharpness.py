"""Other measures of flatness at a milestone: sharpness, scaled trace, Fisher-Rao norm, complexity, norms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
from pydantic import Field, field_validator

from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.labels import LabelledEvaluation, model_of
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations, gradient
from raysweep.evaluation.sharding import shard_count, shard_range
from raysweep.flatness.curvature.complexity import geometric_complexities
from raysweep.flatness.curvature.loss import gradient_norm, weight_norm
from raysweep.flatness.curvature.relative import fisher_rao_norms, scaled_traces
from raysweep.flatness.curvature.sharpness import sharpness
from raysweep.flatness.pool import Pool
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM

Measure = Literal[
    "sam", "asam", "gradient_norm", "weight_norm", "scaled_trace", "fisher_rao", "geometric_complexity"
]
MEASURES: tuple[Measure, ...] = (
    *("sam", "asam", "gradient_norm", "weight_norm"),
    *("scaled_trace", "fisher_rao", "geometric_complexity"),
)


def _quantity(measure: str, heading: str, unit: str) -> Quantity:
    return Quantity(name=f"sharpness/{measure}", heading=heading, unit=unit, kind="flatness", better="less")


QUANTITIES: dict[str, Quantity] = {
    "sam": _quantity("sam", "sharpness", "nats"),
    "asam": _quantity("asam", "adaptive sharpness", "nats"),
    "sam_first_order": _quantity("sam_first_order", "sharpness to first order", "nats"),
    "asam_first_order": _quantity("asam_first_order", "adaptive sharpness to first order", "nats"),
    "gradient_norm": _quantity("gradient_norm", "gradient norm", "nats/‖θ‖"),
    "weight_norm": _quantity("weight_norm", "weight norm", "‖θ‖"),
    "scaled_trace": _quantity("scaled_trace", "scaled trace", "nats"),
    "fisher_rao": _quantity("fisher_rao", "Fisher-Rao norm", "nats"),
    "geometric_complexity": _quantity("geometric_complexity", "geometric complexity", "logits²/embedding²"),
}
#: Measures that are means over inputs; the others are of a pool as a whole.
MEANS: tuple[Measure, ...] = ("scaled_trace", "fisher_rao", "geometric_complexity")


class SharpnessConfig(LabelledEvaluation):
    """The measures of `which`, all by default.

    Means over `inputs` sentences, with standard errors over these:

    - `sharpness/scaled_trace` (nats): Σθ²F_ii; `sharpness/fisher_rao` (nats): θᵀFθ
      (raysweep.flatness.curvature.relative);
    - `sharpness/geometric_complexity`: ‖∂ logits / ∂ embedded sentence‖²
      (raysweep.flatness.curvature.complexity).

    Of the loss of the first `pool_size` of these sentences, with `labels`:

    - `sharpness/sam` (nats): its largest rise within `radius`, found in `steps` steps, with the standard
      error over the pool at the point found, and `sharpness/sam_first_order` the rise by the gradient alone;
      `sharpness/asam` and `sharpness/asam_first_order` likewise within `adaptive_radius`, every parameter
      measured by its own size (raysweep.flatness.curvature.sharpness);
    - `sharpness/gradient_norm` (nats a unit of ‖θ‖) and `sharpness/weight_norm` ‖θ‖
      (raysweep.flatness.curvature.loss).
    """

    kind: Literal["sharpness"] = "sharpness"
    needs_parameters: ClassVar[bool] = True

    #: The measures to take.
    which: Annotated[tuple[Measure, ...], Field(min_length=1)] = MEASURES
    #: Sentences of the means.
    inputs: int = Field(default=1024, gt=0)
    #: The first of them, on which the loss is followed.
    pool_size: int = Field(default=512, gt=0)
    #: Largest distance from the weights, for `sam`.
    radius: float = Field(default=0.05, gt=0)
    #: Largest distance with every parameter measured by its own size, for `asam`.
    adaptive_radius: float = Field(default=0.5, gt=0)
    #: Steps of the search for the largest rise.
    steps: int = Field(default=4, gt=0)
    #: Inputs a shard; the measures of the pool belong to the first shard.
    shard_size: int = Field(default=256, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(inputs=40, pool_size=8, steps=2, shard_size=16)

    @field_validator("which")
    @classmethod
    def _each_once(cls, measures: tuple[Measure, ...]) -> tuple[Measure, ...]:
        if len(set(measures)) < len(measures):
            raise ValueError(f"{', '.join(measures)}: name each measure once")
        return tuple(measure for measure in MEASURES if measure in measures)

    def uses_labels(self) -> bool:
        return bool({"sam", "asam", "gradient_norm"} & set(self.which))

    def quantities(self) -> Sequence[Quantity]:
        return [q for name, q in QUANTITIES.items() if name.removesuffix("_first_order") in self.which]

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return 12·P·T for each mean and input, and 6·P·T for each step of the pool's searches and input."""
        means = 2 * self.inputs * len(set(self.which) & set(MEANS))
        searches = (self.steps + 2) * len({"sam", "asam"} & set(self.which)) + ("gradient_norm" in self.which)
        return Operations.fixed((means + searches * self.pool_size) * gradient(parameters, language))

    def shards(self) -> int:
        return shard_count(self.inputs, self.shard_size)

    def labelled(self, shard: int) -> range:
        shard_range(self.inputs, self.shard_size, shard)
        return range(self.pool_size if shard == 0 else 0)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return values [n] of the shard's inputs; of the pool's measures [1] in shard 0, [0] in others."""
        numbers = shard_range(self.inputs, self.shard_size, shard)
        model = model_of(self.kind, subject)
        found = self._means(subject, model, numbers)
        whole = self._of_pool(model, self.pool(subject, self.labelled(0), reference)) if shard == 0 else {}
        for name in self._pool_names():
            found[name] = np.array([whole[name]] if name in whole else [], dtype=np.float64)
        return found

    def _means(self, subject: Subject, model: MaskedLM, numbers: range) -> Arrays:
        chosen = [measure for measure in self.which if measure in MEANS]
        if not chosen:
            return {}
        ids, positions = self.draw(subject.language, numbers)
        inputs = Pool.of(model, ids, positions)
        keys = {"seed": self.seed, "start": numbers.start}
        makers = {
            "scaled_trace": lambda: scaled_traces(model, inputs, **keys),
            "fisher_rao": lambda: fisher_rao_norms(model, inputs),
            "geometric_complexity": lambda: geometric_complexities(model, inputs, **keys),
        }
        return {measure: makers[measure]().numpy() for measure in chosen}

    def _pool_names(self) -> list[str]:
        names: list[str] = []
        for measure in self.which:
            if measure in ("sam", "asam"):
                names += [measure, f"{measure}_error", f"{measure}_first_order"]
            elif measure not in MEANS:
                names.append(measure)
        return names

    def _of_pool(self, model: MaskedLM, pool: Pool) -> dict[str, float]:
        found: dict[str, float] = {}
        for measure, radius in (("sam", self.radius), ("asam", self.adaptive_radius)):
            if measure in self.which:
                result = sharpness(
                    model, pool, radius=radius, steps=self.steps, adaptive=measure == "asam", seed=self.seed
                )
                found[measure] = result.rise.value
                # One input has no spread.
                found[f"{measure}_error"] = result.rise.standard_error if len(pool) > 1 else 0.0
                found[f"{measure}_first_order"] = result.first_order
        if "gradient_norm" in self.which:
            found["gradient_norm"] = gradient_norm(model, pool)
        if "weight_norm" in self.which:
            found["weight_norm"] = weight_norm(model)
        return found

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        whole = {key: np.concatenate([shard[key] for shard in shards]) for key in shards[0]}
        n, metrics = self.pool_size, []
        for measure in self.which:
            quantity = QUANTITIES[measure]
            if measure in MEANS:
                metrics.append(quantity.mean(whole[measure]))
                continue
            value = float(whole[measure][0])
            if measure not in ("sam", "asam"):
                metrics.append(quantity.number(value, n=n))
                continue
            error = float(whole[f"{measure}_error"][0]) if n > 1 else None
            metrics.append(quantity.number(value, n=n, standard_error=error))
            first = f"{measure}_first_order"
            metrics.append(QUANTITIES[first].number(float(whole[first][0]), n=n))
        return metrics
