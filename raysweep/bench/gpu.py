"""GPU-hours of a plan, from the speeds that `raysweep bench train --device cuda` has measured.

The time of a run is its necessary operations (`raysweep.models.flops`) divided by the operations a second of
the measured case with the nearest number of operations a token.  That is an extrapolation, so a run without
such a case within a factor of `REACH` is not measured, and neither is one of another kind of model or of an
algorithm with other work in a step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysweep.bench.record import RESULTS, load
from raysweep.languages.base import Language
from raysweep.models.cls import WithCLS
from raysweep.models.encoder import Encoder
from raysweep.models.flops import training_flops
from raysweep.sweep import Plan, RunSpec, Sweep
from raysweep.training.data import masked_words

#: Largest ratio of the operations a token of a run and of the case that stands for it.
REACH = 4.0
#: Algorithms whose step takes one forward and one backward pass, as in the benchmark.
_ALIKE = ("adamw", "sgd")
#: The figure that says how fast a case was.
_SHARE = "share of the peak in bfloat16"
#: Sentences that stand for the lengths of a language.
_SENTENCES = 1024

#: Runs whose steps take equally many operations: label, language, batch size and mask.
_Kind = tuple[str, str, int, str | float]


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A measured case of pre-training on a GPU: operations a token, and a second."""

    gpu: str
    case: str
    date: str
    token_flops: float
    second_flops: float


@dataclass(frozen=True, kw_only=True)
class Hours:
    """GPU-hours of training on a device; `hours` is None where no run is measured.

    `cases` are those that stand for runs, `unmeasured` the models and algorithms without one.
    """

    gpu: str
    date: str
    hours: float | None
    cases: tuple[str, ...]
    unmeasured: tuple[str, ...]

    def encode(self, price: float | None) -> dict[str, Any]:
        """Return plain data."""
        cost = None if price is None or self.hours is None else self.hours * price
        return {**vars(self), "cases": list(self.cases), "unmeasured": list(self.unmeasured), "cost": cost}

    def line(self, price: float | None) -> str:
        """Return the hours for a reader, with the assumption that is made."""
        missing = f"not measured: {', '.join(self.unmeasured)}"
        if self.hours is None:
            return f"GPU-hours on {self.gpu}: {missing}"
        paid = "" if price is None else f", {self.hours * price:,.2f} at {price:g} an hour"
        if not self.cases:
            return f"GPU-hours on {self.gpu}: nothing to train"
        cases = ", ".join(self.cases)
        line = (
            f"GPU-hours on {self.gpu}: {self.hours:,.1f} of training{paid} (extrapolated by operations from "
            f"{cases} of bench train, {self.date}; evaluations come on top)"
        )
        return f"{line}; {missing}" if self.unmeasured else line


def rates(folder: Path = RESULTS) -> list[Rate]:
    """Return the measured cases of pre-training on GPUs, by device and case."""
    found = []
    for path in sorted(folder.rglob("*.json")):
        record = load(path)
        gpu, peak = record.environment.gpu, record.peak.gemm_bfloat16_gflops
        if record.suite != "train" or gpu is None or peak is None or record.quick:
            continue
        for case in record.cases:
            shares = [figure.value for figure in case.figures if figure.name == _SHARE]
            if case.timing is not None and case.unit == "token" and shares:
                speed = 1e9 * peak * shares[0]
                second = case.timing.seconds.median
                found.append(
                    Rate(
                        gpu=gpu,
                        case=case.key,
                        date=record.environment.date,
                        token_flops=speed * second,
                        second_flops=speed,
                    )
                )
    return found


def gpu_hours(sweep: Sweep, plan: Plan, known: Sequence[Rate] | None = None) -> list[Hours]:
    """Return the GPU-hours of the training that a plan lacks, for each device that was measured."""
    measured = rates() if known is None else known
    work: dict[_Kind, tuple[float, float] | None] = {}
    steps: dict[_Kind, int] = {}
    for run in plan.to_do:
        if not run.train_steps:
            continue
        spec, pretrain = run.spec, run.spec.pretrain
        label = f"{spec.model.label} by {spec.algorithm.kind}"
        kind = label, spec.language_fingerprint, pretrain.batch_size, pretrain.mask
        if kind not in work:
            work[kind] = _operations(sweep.language(spec), spec)
        steps[kind] = steps.get(kind, 0) + run.train_steps
    found = []
    for gpu in dict.fromkeys(rate.gpu for rate in measured):
        own = [rate for rate in measured if rate.gpu == gpu]
        stands = {kind: None if done is None else _nearest(own, done[0]) for kind, done in work.items()}
        seconds = [
            steps[kind] * done[1] / rate.second_flops
            for kind, done in work.items()
            if done is not None and (rate := stands[kind]) is not None
        ]
        found.append(
            Hours(
                gpu=gpu,
                date=max(rate.date for rate in own),
                hours=sum(seconds) / 3600 if seconds or not work else None,
                cases=tuple(dict.fromkeys(rate.case for rate in stands.values() if rate is not None)),
                unmeasured=tuple(dict.fromkeys(kind[0] for kind, rate in stands.items() if rate is None)),
            )
        )
    return found


def _operations(language: Language, spec: RunSpec) -> tuple[float, float] | None:
    """Return the operations of a run a token and a step; None where no case is like it."""
    with torch.device("meta"):
        model = spec.model.module(language)
    if spec.algorithm.kind not in _ALIKE or not isinstance(model, Encoder | WithCLS):
        return None
    lengths = typical_lengths(language)
    flops = training_flops(model, lengths, masked_words(lengths, spec.pretrain.mask))
    if flops is None:
        return None
    return flops / int(lengths.sum()), flops / len(lengths) * spec.pretrain.batch_size


def typical_lengths(language: Language) -> torch.Tensor:
    """Return lengths [n] that are distributed as those of a language; the longest where that is not known."""
    if language.length_probabilities is None:
        return torch.full((_SENTENCES,), language.max_length)
    below = torch.from_numpy(language.length_probabilities).double().cumsum(0)
    places = (torch.arange(_SENTENCES) + 0.5) / _SENTENCES
    return torch.searchsorted(below, places.double()).clamp(max=language.max_length)


def _nearest(own: Sequence[Rate], token_flops: float) -> Rate | None:
    """Return the case with the nearest number of operations a token, None beyond `REACH`."""

    def apart(rate: Rate) -> float:
        return abs(math.log(rate.token_flops / token_flops))

    best = min(own, key=apart)
    return best if apart(best) <= math.log(REACH) else None


@dataclass(frozen=True, kw_only=True)
class Prices:
    """The work that a plan lacks, in hours that are paid for; what is not known is None.

    `gpu` are the GPU-hours on each device that was measured, None for a sweep on CPUs.
    """

    gpu: tuple[Hours, ...] | None
    cpu_hours: float | None

    def lines(self, price: float | None) -> list[str]:
        """Return the hours for a reader, and their cost at the price of an hour."""
        if self.gpu is not None:
            return [hours.line(price) for hours in self.gpu] or [
                "GPU-hours: not measured (there is no record of `raysweep bench train --device cuda`)"
            ]
        if price is None:
            return []
        if self.cpu_hours is None:
            return ["cost: not measured, since the time is unknown"]
        hours = f"{self.cpu_hours:,.2g} CPU-hours at {price:g} an hour"
        return [f"cost: {self.cpu_hours * price:,.2f} for {hours}"]

    def encode(self, price: float | None) -> dict[str, Any]:
        """Return plain data; a cost is that of the hours beside it."""
        cost = None if price is None or self.cpu_hours is None else self.cpu_hours * price
        return {
            "gpu_hours": None if self.gpu is None else [hours.encode(price) for hours in self.gpu],
            "cpu_hours": self.cpu_hours,
            "cpu_cost": cost,
        }


def prices(sweep: Sweep, plan: Plan, known: Sequence[Rate] | None = None) -> Prices:
    """Return the hours that the work of a plan takes; `known` are the measured cases (default: `rates()`)."""
    each = plan.resources.per_worker
    if each.get("GPU", 0) > 0:
        return Prices(gpu=tuple(gpu_hours(sweep, plan, known)), cpu_hours=None)
    return Prices(gpu=None, cpu_hours=plan.hours.get("CPU"))
