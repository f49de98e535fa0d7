"""Coverage of the intervals of Fisher traces and of their differences, on values with a known mean.

A case has values of inputs: drawn from a distribution of known skewness, or those of a small model with sharp
predictions.  Each replicate draws a sample of its own and takes its interval as `fisher_trace` and `compare`
do, of a fixed number of inputs or at the stop of the sequential rule.

The coverage is that of intervals without a warning.  Where the tail is so heavy that most samples are warned
of, the few others are those that lack its largest values, and they cover less: no rule can find in a sample
what is not in it.  `missed` is the share of all samples whose interval misses and carries no warning, which
is what a reader who heeds warnings is wrong by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysweep.bench.record import CaseRecord, Figure
from raysweep.bench.statistics.goals import COVERAGE, LEVEL
from raysweep.flatness.trace.estimate import doubt, ratio, reaches, relative_error
from raysweep.flatness.trace.fisher import FIRST_LOOK, input_traces, next_look
from raysweep.flatness.trace.interval import interval, skewness_of
from raysweep.models.encoder import Encoder, EncoderConfig

#: The coverage that an interval states.
STATED = 0.95
#: The share of samples with a warning from which on those without one are too few of a kind for a goal.
MOST_WARNED = 1 / 3

Draw = Callable[[np.random.Generator, int], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Case:
    """Values with the true mean `mean`, of `inputs` at most; with `target` the sequential rule stops.

    `draw` gives so many independent values.
    """

    name: str
    draw: Draw
    mean: float
    inputs: int
    target: float | None = None


def cases() -> list[Case]:
    """Return all cases: distributions first, then models."""
    one, rare = (_gamma(skewness) for skewness in (2, 6))
    lognormal = {sigma: _lognormal(sigma) for sigma in (1.0, 1.25, 1.5)}
    sharp, change = _model(10.0), _change(10.0)
    fixed = [
        ("gamma, skewness 2", one, 256),
        ("gamma, skewness 6", rare, 1024),
        ("lognormal, skewness 6", lognormal[1.0], 1024),
        ("lognormal, skewness 14", lognormal[1.25], 1024),
        ("lognormal, skewness 33", lognormal[1.5], 1024),
        ("lognormal, skewness 33", lognormal[1.5], 8192),
        ("Pareto, third moment infinite", _pareto(3.0), 4096),
        ("logits times 10", sharp, 4096),
        ("difference, logits times 10", change, 1024),
    ]
    stopped = [
        ("lognormal, skewness 6", lognormal[1.0], 0.05),
        ("lognormal, skewness 14", lognormal[1.25], 0.05),
        ("lognormal, skewness 33", lognormal[1.5], 0.1),
        ("Pareto, third moment infinite", _pareto(3.0), 0.05),
        ("model as it is", _model(1.0), 0.1),
        ("logits times 10", sharp, 0.1),
    ]
    return [
        *(Case(name=f"{name}, {n:,} inputs", draw=d, mean=m, inputs=n) for name, (d, m), n in fixed),
        *(
            Case(name=f"{name}, until {100 * t:.0f} %", draw=d, mean=m, inputs=1 << 15, target=t)
            for name, (d, m), t in stopped
        ),
    ]


def trace_cases(*, replicates: int, seed: int) -> list[CaseRecord]:
    """Return a case for each kind of values."""
    found = []
    for row in trace_coverage(replicates=replicates, seed=seed):
        figures = [
            Figure(name="trace: missed without a warning", unit="", value=row["missed"], goal=LEVEL),
            Figure(name="trace: with a warning", unit="", value=row["warned"]),
            Figure(name="trace: inputs", unit="", value=row["inputs"]),
            Figure(name="replicates", unit="", value=float(replicates)),
        ]
        if row["measured"] is not None:
            goal = COVERAGE if row["warned"] < MOST_WARNED else None
            name = "trace: coverage without a warning"
            figures.insert(0, Figure(name=name, unit="", value=row["measured"], goal=goal))
        found.append(
            CaseRecord(key=row["name"], work="values of inputs", unit="sample", figures=tuple(figures))
        )
    return found


def trace_coverage(*, replicates: int, seed: int) -> list[dict[str, Any]]:
    """Return the coverage of each case over `replicates` independent samples.

    A row has `name`; `stated` and `measured`, the coverage of intervals without a warning (None where all
    carry one), with its `standard_error`; and of all samples the shares `warned`, with a warning, and
    `missed`, that miss without one.  `inputs` is their mean number.  The same seed gives the same rows.
    """
    return [_row(case, np.random.default_rng((seed, k)), replicates) for k, case in enumerate(cases())]


def _row(case: Case, generator: np.random.Generator, replicates: int) -> dict[str, Any]:
    inside, inputs = [], 0
    for _ in range(replicates):
        values = _sample(case, generator)
        inputs += len(values)
        ones = torch.ones_like(values)
        if doubt(values, ones) is None:
            found = ratio(values, ones)
            skewness = skewness_of(values, ones)
            low, high = interval(found.value, found.standard_error, n=found.n, skewness=skewness)
            inside.append(low <= case.mean <= high)
    n, held = len(inside), sum(inside)
    # One is added on either side, so that a coverage of 0 or 1 has an error too.
    error = math.sqrt((held + 1) * (n - held + 1) / (n + 2) ** 3)
    return {
        "name": case.name,
        "stated": STATED,
        "measured": held / n if n else None,
        "standard_error": error if n else None,
        "warned": 1 - n / replicates,
        "missed": (n - held) / replicates,
        "inputs": inputs / replicates,
    }


def _sample(case: Case, generator: np.random.Generator) -> Tensor:
    """Return the values of a replicate: all inputs, or those at which the sequential rule ends."""
    values = torch.zeros(0, dtype=torch.float64)
    upto = case.inputs if case.target is None else FIRST_LOOK
    while True:
        drawn = case.draw(generator, upto - len(values))
        values = torch.cat([values, torch.from_numpy(drawn)])
        if case.target is None or len(values) == case.inputs:
            return values
        ones = torch.ones_like(values)
        found = ratio(values, ones)
        error = relative_error(found.value, found.standard_error)
        if reaches(case.target, error, doubt(values, ones, positive=True)):
            return values
        upto = next_look(len(values), error, case.target, case.inputs)


def _gamma(skewness: float) -> tuple[Draw, float]:
    shape = 4 / skewness**2
    return (lambda generator, n: generator.gamma(shape, size=n)), shape


def _lognormal(sigma: float) -> tuple[Draw, float]:
    return (lambda generator, n: generator.lognormal(sigma=sigma, size=n)), math.exp(sigma**2 / 2)


def _pareto(index: float) -> tuple[Draw, float]:
    return (lambda generator, n: generator.pareto(index, size=n)), 1 / (index - 1)


def _among(values: np.ndarray, generator: np.random.Generator, n: int) -> np.ndarray:
    drawn: np.ndarray = values[generator.integers(len(values), size=n)]
    return drawn


def _model(scale: float) -> tuple[Draw, float]:
    """Return draws of the values of a model with its logits times `scale`, and their mean."""
    values = _values(scale, 0.0)
    return partial(_among, values), float(values.mean())


def _change(scale: float) -> tuple[Draw, float]:
    """Return draws of the paired differences of two models near to each other, and their mean."""
    apart = _values(scale, 0.02) - _values(scale, 0.0)
    return partial(_among, apart), float(apart.mean())


@cache
def _values(scale: float, apart: float) -> np.ndarray:
    """Return values of 64 inputs of a model, 500 test vectors of each; others of it are `apart` by noise."""
    model, generator = _encoder(scale, apart), torch.Generator().manual_seed(0)
    ids = torch.randint(0, 5, (64, 4), generator=generator)
    lengths = torch.arange(64) % 4 + 1
    ids[torch.arange(4) >= lengths[:, None]] = model.pad_id
    positions = (torch.rand(64, generator=generator) * lengths).long()
    traces = input_traces(model, ids.repeat(500, 1), positions.repeat(500), seed=21, batch=4096)
    return traces.values.sum(dim=1).numpy()


def _encoder(scale: float, apart: float) -> Encoder:
    """Return a small encoder with random weights, its logits times `scale`."""
    language: Any = SimpleNamespace(vocabulary_size=5, pad_id=5, max_length=4)
    model = EncoderConfig(shape="8/2/2/12").build(language, seed=3).double()
    assert isinstance(model, Encoder)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for size in (0.4, apart):
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.add_(noise, alpha=size)
        for parameter in (model.head_norm.weight, model.head_norm.bias, model.decoder.bias):
            parameter.mul_(scale)
    return model
