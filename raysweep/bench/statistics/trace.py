"""Coverage of the intervals of Fisher traces and of their differences, on values with a known mean.

A case has values of inputs: drawn from a distribution of known skewness, or those of a small model with sharp
predictions.  Each replicate draws a sample of its own and takes its interval as `fisher_trace` and `compare`
do of values without statistics of mean zero (raysweep.flatness.trace.regression), of a fixed number of inputs
or at the stop of the sequential rule.

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

from raysweep.bench.record import Figure
from raysweep.bench.statistics import goals
from raysweep.bench.statistics.simulation import Outcomes, Simulation
from raysweep.flatness.trace.estimate import doubt, ratio, reaches, relative_error
from raysweep.flatness.trace.fisher import FIRST_LOOK, input_traces, next_look
from raysweep.flatness.trace.interval import interval, skewness_of
from raysweep.models.encoder import Encoder, EncoderConfig

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


def trace_simulations() -> list[Simulation]:
    """Return a simulation for each kind of values."""
    return [
        Simulation(
            key=case.name,
            work="values of inputs",
            unit="sample",
            sample=partial(_outcomes, case),
            figures=_figures,
            replicates=goals.MANY,
            cost=0.8,
        )
        for case in cases()
    ]


def _outcomes(case: Case, size: int, generator: np.random.Generator) -> dict[str, np.ndarray]:
    """Return whether each interval holds the mean, whether it has a warning, and the number of inputs."""
    found = []
    for _ in range(size):
        values = _sample(case, generator)
        ones = torch.ones_like(values)
        one = ratio(values, ones)
        ends = interval(one.value, one.standard_error, n=one.n, skewness=skewness_of(values, ones))
        found.append((ends[0] <= case.mean <= ends[1], doubt(values, ones) is not None, len(values)))
    return dict(zip(("held", "warned", "inputs"), np.array(found, dtype=float).T, strict=True))


def _figures(outcomes: Outcomes) -> list[Figure]:
    held, warned = outcomes["held"].astype(bool), outcomes["warned"].astype(bool)
    goal = goals.COVERAGE if warned.mean() < MOST_WARNED else None
    first = [] if warned.all() else [goals.share("trace: coverage without a warning", held[~warned], goal)]
    return [
        *first,
        goals.share("trace: missed without a warning", ~held & ~warned, goals.LEVEL),
        goals.share("trace: with a warning", warned),
        Figure(name="trace: inputs", unit="", value=float(outcomes["inputs"].mean())),
    ]


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
