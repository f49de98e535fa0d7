"""The Fisher trace at a milestone: see `raysweep.flatness.fisher` for what it is.

Sentences, masked positions and test vectors are keyed by the evaluation's seed and the input's number, so all
runs and milestones are measured on common random numbers, and the stored values of their inputs make paired
differences (`raysweep.report.contrasts`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.evaluation.base import Arrays, Evaluation, Metric, Subject
from raysweep.evaluation.sharding import draw_sentences, shard_count, shard_range
from raysweep.evaluation.subject import ModelSubject
from raysweep.flatness.enlarged import enlarged, width_factor
from raysweep.flatness.estimate import doubt, effective_sample_size, largest_share, ratio
from raysweep.flatness.fisher import InputTraces, draw_positions, input_traces
from raysweep.flatness.vectors import Vectors
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig
from raysweep.seeding import derive
from raysweep.training.config import check_mask
from raysweep.training.data import some_positions

log = logging.getLogger("raysweep.evaluation")

#: What a preset stands for, where a sweep does not say otherwise.
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"inputs": 10_000, "vectors": "label", "draws": 50, "repeats": 5},
}
#: Arrays of a shard that are no parameter group.
_OWN = ("weights", "spread", "enlarged", "repeat/", "excluded/")


class TraceConfig(Evaluation):
    """Fisher trace over `inputs` sentences, in all and by parameter group.

    `vectors` and `draws` are the test vectors at each input; more inputs serve better than more draws.
    `repeats` draws them anew on the same inputs: the trace is the mean of all, and `trace_std` the standard
    deviation between them.  `mask` is "one" position a sentence, or a rate as in `pretrain`: the trace is
    then that of the mean loss over masked words, each hidden by the mask token.  With `enlarged_to` the trace
    of the model seen as an encoder of that shape is measured as well.

    `preset: paper` is the published form (Liu et al., ICML 2023, appendices B.1 and B.2): 10,000 inputs, 50
    labels each, five times; the decoder's bias and a pooler are left out, as in the released code, and named
    in the result.  Of its numbers, those given beside it take precedence.
    """

    kind: Literal["trace"] = "trace"
    needs_parameters: ClassVar[bool] = True

    preset: Literal["paper"] | None = None
    inputs: int = Field(default=1024, gt=0)
    vectors: Vectors = "rademacher"
    draws: int = Field(default=1, gt=0)
    repeats: int = Field(default=1, gt=0)
    mask: Literal["one"] | float = "one"
    enlarged_to: str | None = None
    seed: int = Field(default=0, ge=0)
    #: Inputs a shard.
    shard_size: int = Field(default=512, gt=0)

    @model_validator(mode="before")
    @classmethod
    def _preset_fills_in(cls, data: Any) -> Any:
        found = PRESETS.get(data.get("preset") or "", {}) if isinstance(data, dict) else {}
        return {**found, **data} if found else data

    @field_validator("mask", mode="before")
    @classmethod
    def _mask_is_one_or_a_rate(cls, value: object) -> object:
        return check_mask(value)

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        if self.enlarged_to is None:
            return []
        with torch.device("meta"):
            module = model.module(language)
        try:
            width_factor(module, self.enlarged_to)
        except ConfigError as error:
            return [("enlarged_to", str(error).removeprefix("enlarged_to: "))]
        return []

    def shards(self) -> int:
        return shard_count(self.inputs, self.shard_size)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the shard's values [n], float64, of each parameter group, sums over masked positions.

        Beside them stand `weights`, the numbers of masked positions; `spread`, the variance by test vectors,
        where draws tell; `enlarged`; `repeat/<k>`; and the size of each parameter left out.
        """
        if not isinstance(subject, ModelSubject):
            raise ConfigError(f"trace: {type(subject).__name__} has no parameters, so it has no Fisher trace")
        model, language = subject.model, subject.language
        numbers = shard_range(self.inputs, self.shard_size, shard)
        ids = draw_sentences(language, numbers, seed=self.seed, purpose="trace")
        positions = self._positions(ids, language, numbers)
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
                )
                for k in range(self.repeats)
            ]
            larger = [] if self.enlarged_to is None else [enlarged(t, model, self.enlarged_to) for t in found]
        arrays = {group: value.numpy() for group, value in _mean(found).items()}
        arrays["weights"] = found[0].weights.numpy()
        spreads = [t.spread for t in found if t.spread is not None]
        if spreads:
            arrays["spread"] = torch.stack(spreads).mean(dim=0).numpy() / self.repeats
        if larger:
            arrays["enlarged"] = torch.stack([t.values.sum(dim=1) for t in larger]).mean(dim=0).numpy()
        if self.repeats > 1:
            for k, traces in enumerate(found):
                arrays[f"repeat/{k}"] = traces.values.sum(dim=1).numpy()
        sizes = dict(model.named_parameters())
        for name in found[0].excluded:
            arrays[f"excluded/{name}"] = np.array([float(sizes[name].numel())])
        return arrays

    def _positions(self, ids: Tensor, language: Language, numbers: range) -> Tensor:
        if self.mask == "one":
            return draw_positions(ids, language.pad_id, seed=self.seed, start=numbers.start)
        return some_positions(
            language.lengths(ids),
            ids.shape[1],
            self.mask,
            seed=derive(self.seed, "trace", "mask"),
            sentences=torch.arange(numbers.start, numbers.stop),
        )

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return `trace`, its parts `trace/<group>`, and how far its standard error is to be trusted.

        `trace_effective_inputs` is (Σx)²/Σx² of the inputs' values, `trace_largest_share` the share of the
        sum that the largest brings, and `trace_interval_trusted` 1 where `raysweep.flatness.estimate.doubt`
        finds nothing against the normal interval, else 0.  Where they are known there are also
        `trace_pool_standard_error`, the standard error with the inputs held fixed; `trace_std`, the standard
        deviation between repeats; `trace_enlarged`; and `trace_excluded/<parameter>`, the sizes of what is
        left out.
        """
        arrays = {name: np.concatenate([shard[name] for shard in shards]) for name in shards[0]}
        groups = {name: values for name, values in arrays.items() if not name.startswith(_OWN)}
        whole, weights = inputs_of(shards)
        n, masked = len(whole), float(weights.sum())
        told = doubt(whole, weights)
        if told is not None:
            log.warning("the interval of this Fisher trace is not to be trusted: %s", told)
        metrics = [
            _metric("trace", whole.numpy(), weights),
            *(_metric(f"trace/{group}", values, weights) for group, values in groups.items()),
            Metric.number("trace_effective_inputs", effective_sample_size(whole), "inputs", n=n),
            Metric.number("trace_largest_share", largest_share(whole), "fraction", n=n),
            Metric.number("trace_interval_trusted", float(told is None), "1 or 0", n=n),
        ]
        if "spread" in arrays:
            error = float(np.sqrt(arrays["spread"].sum())) / masked
            metrics.append(Metric.number("trace_pool_standard_error", error, "nats", n=n))
        repeats = [arrays[name].sum() / masked for name in arrays if name.startswith("repeat/")]
        if repeats:
            std = float(np.std(repeats, ddof=1))
            metrics.append(Metric.number("trace_std", std, "nats", n=len(repeats)))
        if "enlarged" in arrays:
            metrics.append(_metric("trace_enlarged", arrays["enlarged"], weights))
        for name, sizes in arrays.items():
            if name.startswith("excluded/"):
                what = name.removeprefix("excluded/")
                metrics.append(Metric.number(f"trace_excluded/{what}", float(sizes[0]), "parameters", n=1))
        return metrics


def inputs_of(shards: Sequence[Mapping[str, np.ndarray]]) -> tuple[Tensor, Tensor]:
    """Return the values of all inputs of an evaluation's shards, in order, and their masked words [n]."""
    values, weights = [], []
    for shard in shards:
        values.append(np.sum([a for name, a in shard.items() if not name.startswith(_OWN)], axis=0))
        weights.append(shard["weights"])
    return torch.from_numpy(np.concatenate(values)), torch.from_numpy(np.concatenate(weights))


def _paper_omits(name: str) -> bool:
    """Return whether the released code leaves a parameter out."""
    return name == "decoder.bias" or "pooler" in name.split(".")


def _mean(found: Sequence[InputTraces]) -> dict[str, Tensor]:
    """Return the values [n] of each parameter group, averaged over repeats."""
    groups = [traces.by_group() for traces in found]
    return {name: torch.stack([g[name] for g in groups]).mean(dim=0) for name in groups[0]}


def _metric(name: str, values: np.ndarray, weights: Tensor) -> Metric:
    estimate = ratio(torch.from_numpy(values), weights)
    error = None if np.isnan(estimate.standard_error) else estimate.standard_error
    return Metric.number(name, estimate.value, "nats", n=estimate.n, standard_error=error)


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
