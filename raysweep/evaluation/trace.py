"""The Fisher trace at a milestone (`raysweep.flatness.trace.fisher` defines it).

Sentences, masked positions and test vectors are keyed by the evaluation's seed and the input's number, so all
runs and milestones are measured on common random numbers, and the stored values of their inputs make paired
differences (`raysweep.report.contrasts`).

Traces of models of different size are of different parameter spaces.  `trace_enlarged` is the trace of each
model seen as one of a common shape (`raysweep.models.common`), in closed form from stored values of its
inputs.  These do not depend on that shape, so a sweep that gets a larger size is not measured again.

With `target_rse` the number of inputs follows the sequential rule of
`raysweep.flatness.trace.fisher.fisher_trace`, applied when whole shards are there.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.evaluation.base import Arrays, Evaluation, Subject
from raysweep.evaluation.metric import NOT_TRUSTED, Metric, Quantity
from raysweep.evaluation.notes import PREFIX, method_arrays, method_notes
from raysweep.evaluation.operations import Operations, gradient
from raysweep.evaluation.sharding import draw_inputs, shard_count, shard_range
from raysweep.evaluation.trace_arrays import (
    OWN,
    enlarged_arrays,
    group_means,
    inputs_of,
    spread_of,
    whole_and_control,
)
from raysweep.flatness.trace.enlarged import Parts
from raysweep.flatness.trace.estimate import (
    doubt,
    effective_sample_size,
    largest_share,
    ratio,
    reaches,
    relative_error,
)
from raysweep.flatness.trace.fisher import FIRST_LOOK, input_traces, next_look
from raysweep.flatness.trace.places import all_statistics
from raysweep.flatness.trace.regression import adjusted, coefficients, pool_variance
from raysweep.flatness.vectors import Vectors
from raysweep.languages.base import Estimate, Language
from raysweep.models.base import ModelConfig, without_values
from raysweep.models.common import common_shape, one_architecture
from raysweep.models.enlarge import enlargement
from raysweep.models.subject import ModelSubject
from raysweep.seeding import derive
from raysweep.training.config import check_mask

TRACE = Quantity(
    name="trace", heading="trace", unit="nats", kind="flatness", better="less", live=True, report=True
)
PART = Quantity(name="trace/{group}", heading="trace", unit="nats", kind="flatness", better="less")
ENLARGED = Quantity(
    name="trace_enlarged",
    heading="trace in one space",
    unit="nats",
    kind="flatness",
    better="less",
    report=True,
)
EFFECTIVE_INPUTS = Quantity(
    name="trace_effective_inputs", heading="effective inputs of the trace", unit="inputs", better="more"
)
LARGEST_SHARE = Quantity(
    name="trace_largest_share", heading="share of the largest input", unit="fraction", better="less"
)
INTERVAL_TRUSTED = Quantity(
    name="trace_interval_trusted", heading="interval trusted", unit="1 or 0", better="more"
)
TARGET_REACHED = Quantity(name="trace_target_reached", heading="target reached", unit="1 or 0", better="more")
POOL_STANDARD_ERROR = Quantity(
    name="trace_pool_standard_error",
    heading="standard error with the inputs held fixed",
    unit="nats",
    better="less",
)
STD = Quantity(name="trace_std", heading="standard deviation between repeats", unit="nats", better="less")
EXCLUDED = Quantity(name="trace_excluded/{parameter}", heading="left out of the trace", unit="parameters")
#: The reservation on a trace that ran out of inputs before its target.
NOT_REACHED = "target not reached"

log = logging.getLogger("raysweep.evaluation")

#: The settings of a preset, where a sweep does not say otherwise.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"inputs": 10_000, "vectors": "label", "draws": 50, "repeats": 5},
}


class TraceConfig(Evaluation):
    """Fisher trace over `inputs` sentences, in all and by parameter group.

    `vectors` and `draws` are the test vectors at each input; more inputs serve better than more draws.
    `repeats` draws them anew on the same inputs: the trace is the mean of all, and `trace_std` the standard
    deviation between them.  `mask` is "one" position a sentence, or a rate as in `pretrain`: the trace is
    then that of the mean loss over masked words, each hidden by the mask token.

    `trace_enlarged` is the trace of the model seen as one of the shape `enlarged_to`.  With `common: auto` a
    sweep of several sizes takes the smallest shape that holds them all; where there is none, it says why.
    With `common: null` models are not enlarged.

    With `target_rse` (0.02 for 2 %) inputs are measured until the relative standard error of the trace is at
    most that and nothing speaks against its interval, at most `inputs` of them.  The rule is that of
    `raysweep.flatness.trace.fisher.fisher_trace`, with every look put off until whole shards are there, so
    that milestones of one sweep may have different numbers of inputs: the first ones of the same list.  Where
    the inputs' values are very skewed a larger `shard_size`, and so a later first look, makes it less
    probable that the rule ends early because the largest values have not come yet.  The rule sees the trace
    of the model in its own parameters.

    `preset: paper` is the published form (Liu et al., ICML 2023, appendices B.1 and B.2): 10,000 inputs, 50
    labels each, five times; the decoder's bias and a pooler are left out, as in the released code, and named
    in the result.  Of its numbers, those given beside it take precedence.
    """

    kind: Literal["trace"] = "trace"
    needs_parameters: ClassVar[bool] = True
    #: 4 takes off what the place of the masked word explains.
    version: ClassVar[int] = 4

    preset: Literal["paper"] | None = None
    inputs: int = Field(default=1024, gt=0)
    target_rse: float | None = Field(default=None, gt=0, lt=1)
    vectors: Vectors = "rademacher"
    draws: int = Field(default=1, gt=0)
    repeats: int = Field(default=1, gt=0)
    mask: Literal["one"] | float = "one"
    common: Literal["auto"] | None = "auto"
    enlarged_to: str | None = None
    #: Decides all draws.
    seed: int = Field(default=0, ge=0)
    #: Inputs a shard.
    shard_size: int = Field(default=512, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(inputs=40, shard_size=16)

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_in(cls, data: Any) -> Any:
        found = PRESETS.get(str(data.get("preset")), {}) if isinstance(data, dict) else {}
        return {**found, **data} if found else data

    @field_validator("mask", mode="before")
    @classmethod
    def _mask_is_one_or_a_rate(cls, value: object) -> object:
        return check_mask(value)

    @model_validator(mode="after")
    def _target_goes_with_one_repeat(self) -> TraceConfig:
        if self.target_rse is None:
            return self
        if self.preset is not None:
            raise ValueError(
                f"target_rse: {self.target_rse:g} does not go with preset '{self.preset}', whose number of "
                "inputs is fixed; leave one of them out"
            )
        if self.repeats > 1:
            raise ValueError(
                f"target_rse: {self.target_rse:g} does not go with repeats {self.repeats}, which are of a "
                "fixed number of inputs; leave repeats out"
            )
        return self

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        if self.enlarged_to is None:
            return []
        with without_values():
            module = model.module(language)
        try:
            enlargement(module, self.enlarged_to)
        except ConfigError as error:
            return [("enlarged_to", str(error))]
        return []

    def content(self) -> dict[str, Any]:
        """Return what identifies the measurement; the common shape counts, not how it was found."""
        return {name: value for name, value in super().content().items() if name != "common"}

    def arrays_content(self) -> dict[str, Any]:
        return {name: value for name, value in self.content().items() if name != "enlarged_to"}

    def among(self, models: Sequence[ModelConfig]) -> tuple[Self, str | None]:
        """Return the evaluation with the smallest shape that holds all models as its `enlarged_to`."""
        if self.common is None or self.enlarged_to is not None or one_architecture(models):
            return self, None
        try:
            return self.model_copy(update={"enlarged_to": str(common_shape(models))}), None
        except ConfigError as error:
            said = "no shape holds all models, so their traces are of different parameter spaces"
            return self, f"evaluate.{self.key}.common: {said}: {error}; null turns this off"

    def quantities(self) -> Sequence[Quantity]:
        enlarged = self.common is not None or self.enlarged_to is not None
        return (TRACE, *((ENLARGED,) if enlarged else ()), PART)

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return inputs · draws · repeats · 6·P·T; with a target, from the first look's inputs to all."""
        one = self.draws * self.repeats * gradient(parameters, language)
        least = min(self.inputs, self.next_shards([]) * self.shard_size)
        return Operations(least * one, self.inputs * one)

    def shards(self) -> int:
        return shard_count(self.inputs, self.shard_size)

    def next_shards(self, done: Sequence[Mapping[str, np.ndarray]]) -> int:
        if self.target_rse is None:
            return self.shards()
        if not done:
            return min(self.shards(), shard_count(FIRST_LOOK, self.shard_size))
        inputs = inputs_of(done)
        look = _Look.at(adjusted(inputs.plain, inputs.weights, inputs.known), inputs.weights)
        if look.reaches(self.target_rse):
            return len(done)
        upto = next_look(look.whole.n, look.relative_error, self.target_rse, self.inputs)
        return shard_count(upto, self.shard_size)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the shard's values [n], float64, of each parameter group, sums over masked positions.

        Further arrays are `weights`, the numbers of masked positions; `control` [n, K], statistics of mean
        zero, where there are some; `places` [n, 2] (`raysweep.flatness.trace.places`), where one word is
        masked and vectors are no labels; `spread` [n, 1+K, 1+K], the covariance of value and statistics by
        test vectors, where there are draws or repeats; `enlarged/shape` [n, k], the model's shape, and
        `enlarged/powers` [n, 3] and `enlarged/last` [n], the parts that a larger shape takes
        (`raysweep.flatness.trace.enlarged`), where there are larger ones; `repeat/<k>` [n, 1+K], value and
        statistics of a repeat; and the size of each parameter left out.
        """
        if not isinstance(subject, ModelSubject):
            raise ConfigError(f"trace: {type(subject).__name__} has no parameters, so it has no Fisher trace")
        model, language = subject.model, subject.language
        if self.enlarged_to is not None:
            enlargement(model, self.enlarged_to)
        numbers = shard_range(self.inputs, self.shard_size, shard)
        ids, positions = draw_inputs(language, numbers, mask=self.mask, seed=self.seed)
        left_out = [n for n, _ in model.named_parameters() if self.preset == "paper" and _paper_omits(n)]
        with _without(model, left_out):
            found = [
                input_traces(
                    model,
                    ids,
                    positions,
                    seed=self.seed if k == 0 else derive(self.seed, "repeat", k),
                    start=numbers.start,
                    vectors=self.vectors,
                    draws=self.draws,
                    uniform=self.mask == "one",
                )
                for k in range(self.repeats)
            ]
        arrays = {group: value.numpy() for group, value in group_means(found).items()}
        arrays["weights"] = found[0].weights.numpy()
        controls = [t.control for t in found if t.control is not None]
        if controls:
            arrays["control"] = torch.stack(controls).mean(dim=0).numpy()
        if found[0].places is not None:
            arrays["places"] = found[0].places.numpy()
        spread = spread_of(found)
        if spread is not None:
            arrays["spread"] = spread.numpy()
        arrays |= enlarged_arrays([Parts.of(traces, model) for traces in found])
        if self.repeats > 1:
            for k, traces in enumerate(found):
                arrays[f"repeat/{k}"] = whole_and_control(traces).numpy()
        sizes = dict(model.named_parameters())
        for name in found[0].excluded:
            arrays[f"excluded/{name}"] = np.array([float(sizes[name].numel())])
        return arrays | method_arrays(found[0])

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return `trace`, its parts `trace/<group>`, and what its standard error rests on.

        `trace_effective_inputs` is (Σx)²/Σx² of the inputs' values, `trace_largest_share` the share of Σ|x|
        that the largest has, and `trace_interval_trusted` 1 where `raysweep.flatness.trace.estimate.doubt`
        finds nothing against the interval, else 0.  With a target, `trace_target_reached` is 1 where
        the rule ended at it, and 0 where the inputs ran out.  Where they are known there are also
        `trace_pool_standard_error`, the standard error with the inputs held fixed; `trace_std`, the standard
        deviation between repeats; `trace_enlarged`, whose interval is judged like that of `trace`; and
        `trace_excluded/<parameter>`, the sizes of what is left out.
        """
        arrays = {
            name: np.concatenate([shard[name] for shard in shards])
            for name in shards[0]
            # Some shards may have notes and others none, and statistics are read with the values.
            if not name.startswith(("control", "places", PREFIX))
        }
        inputs = inputs_of(shards)
        plain, weights, known = inputs.plain, inputs.weights, inputs.known
        n, masked = len(plain), float(weights.sum())
        groups = {name: torch.from_numpy(v) for name, v in arrays.items() if not name.startswith(OWN)}
        left = adjusted(torch.stack([plain, *groups.values()], dim=1), weights, known)
        whole, parts = left[:, 0], left[:, 1:]
        look = _Look.at(whole, weights)
        reached = self.target_rse is None or look.reaches(self.target_rse)
        reservations = [NOT_TRUSTED] * (look.doubt is not None) + [NOT_REACHED] * (not reached)
        metrics = [
            TRACE.estimate(look.whole, reservations=reservations),
            *(PART.estimate(ratio(parts[:, k], weights), of={"group": g}) for k, g in enumerate(groups)),
        ]
        if look.doubt is not None:
            log.warning("the interval of this Fisher trace is not to be trusted: %s", look.doubt)
        metrics += [
            EFFECTIVE_INPUTS.number(effective_sample_size(whole), n=n),
            LARGEST_SHARE.number(largest_share(whole), n=n),
            INTERVAL_TRUSTED.number(float(look.doubt is None), n=n),
        ]
        if self.target_rse is not None:
            metrics.append(TARGET_REACHED.number(float(reached), n=n))
            if not reached:
                log.warning(
                    "trace.target_rse=%g is not reached: %d inputs give a relative standard error of %.3g; "
                    "set a larger trace.inputs",
                    *(self.target_rse, n, look.relative_error),
                )
        if "spread" in arrays:
            variance = pool_variance(torch.from_numpy(arrays["spread"]), coefficients(plain, weights, known))
            error = math.sqrt(max(0.0, variance)) / masked
            metrics.append(POOL_STANDARD_ERROR.number(error, n=n))
        repeats = [torch.from_numpy(a) for name, a in arrays.items() if name.startswith("repeat/")]
        if repeats:
            totals = [
                float(adjusted(r[:, 0], weights, all_statistics(r[:, 1:], inputs.places)).sum()) / masked
                for r in repeats
            ]
            metrics.append(STD.number(float(np.std(totals, ddof=1)), n=len(repeats)))
        if self.enlarged_to is not None:
            larger = adjusted(inputs_of(shards, self.enlarged_to).plain, weights, known)
            seen = _Look.at(larger, weights)
            reservations = [NOT_TRUSTED] * (seen.doubt is not None)
            metrics.append(ENLARGED.estimate(seen.whole, reservations=reservations))
        for name, sizes in arrays.items():
            if name.startswith("excluded/"):
                of = {"parameter": name.removeprefix("excluded/")}
                metrics.append(EXCLUDED.number(float(sizes[0]), n=1, of=of))
        return metrics

    def notes(self, shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
        notes = method_notes(shards)
        if self.enlarged_to is not None:
            notes["enlarged"] = f"trace in one space is that of the model seen as {self.enlarged_to}"
        return notes


@dataclass(frozen=True, kw_only=True)
class _Look:
    """A look of the sequential rule: the trace of the first inputs, and the doubt about its interval."""

    whole: Estimate
    doubt: str | None

    @classmethod
    def at(cls, values: Tensor, weights: Tensor) -> _Look:
        return cls(whole=ratio(values, weights), doubt=doubt(values, weights, positive=True))

    @property
    def relative_error(self) -> float:
        return relative_error(self.whole.value, self.whole.standard_error)

    def reaches(self, target: float) -> bool:
        return reaches(target, self.relative_error, self.doubt)


def _paper_omits(name: str) -> bool:
    """Return whether the released code leaves a parameter out."""
    return name == "decoder.bias" or "pooler" in name.split(".")


@contextmanager
def _without(model: nn.Module, names: Sequence[str]) -> Iterator[None]:
    """Leave parameters out of what is measured."""
    frozen = [p for name, p in model.named_parameters() if name in names and p.requires_grad]
    for parameter in frozen:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in frozen:
            parameter.requires_grad_(True)
