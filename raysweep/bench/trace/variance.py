"""Relative variances of the value of an input, or of one draw of a peer.

A relative variance is a variance divided by the square of the trace.  It is measured on separate inputs, many
more than are timed, because values of single inputs have long tails.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from raysweep.bench.trace.subject import Subject
from raysweep.flatness.trace.estimate import TraceEstimate, summarise
from raysweep.flatness.trace.fisher import input_traces
from raysweep.flatness.vectors import Vectors
from raysweep.models.base import MaskedLM

#: The relative standard error of a trace that is one unit of work.
TARGET = 0.01

#: First inputs of the measurements of variance; no contestant is timed on them.
_REPLICATES, _PEERS = 1_000_000, 2_000_000


def traces(inputs: int, variance: float) -> float:
    """Return the share of a trace to 1 % that `inputs` draws of a relative variance make.

    >>> traces(10_000, 1.0), traces(512, 100.0)
    (1.0, 0.000512)
    """
    return TARGET**2 * inputs / variance


def estimated(
    model: MaskedLM, ids: Tensor, positions: Tensor, seed: int = 0, start: int = 0
) -> TraceEstimate:
    """Return raysweep's estimate from all inputs; `fisher_trace` would log its doubts each time."""
    return summarise(input_traces(model, ids, positions, seed=seed, start=start, uniform=True))


@dataclass(frozen=True, kw_only=True)
class Replicates:
    """Estimates of one trace, each from other inputs and test vectors.

    `variance` is that of an input, `plain` the same without statistics of mean zero, and `honesty` the
    claimed standard error divided by the spread of the values.
    """

    variance: float
    plain: float
    honesty: float

    @classmethod
    def of(cls, what: Subject, *, inputs: int, seeds: int) -> Replicates:
        """Measure a trace `seeds` times on `inputs` inputs."""
        found = []
        for seed in range(seeds):
            start = _REPLICATES + seed * inputs
            ids, positions, _ = what.inputs(inputs, start=start)
            found.append(estimated(what.model, ids, positions, seed, start))
        values = torch.tensor([e.value for e in found], dtype=torch.float64)
        claimed, plain = (
            (inputs * torch.tensor(errors, dtype=torch.float64).square().mean()).item()
            for errors in ([e.standard_error for e in found], [e.plain_standard_error for e in found])
        )
        square = values.mean().square().item()
        return cls(
            variance=claimed / square,
            plain=plain / square,
            honesty=math.sqrt(claimed / inputs / values.var().item()),
        )


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Relative variances in units of `mean` squared: `between` inputs, and of a drawn `label` at an input."""

    mean: float
    between: float
    label: float

    @classmethod
    def of(cls, what: Subject, *, inputs: int, draws: int) -> Spread:
        """Measure them with `draws` test vectors of each kind at each of `inputs` inputs."""
        ids, positions, _ = what.inputs(inputs, start=_PEERS)

        def measured(kind: Vectors) -> tuple[Tensor, Tensor]:
            found = input_traces(what.model, ids, positions, vectors=kind, draws=draws)
            if found.spread is None:
                raise ValueError("a variance needs two draws or more")
            return found.values.sum(dim=1), found.spread[:, 0, 0].mean()

        values, own = measured("rademacher")
        _, label = measured("label")
        mean = values.mean()
        return cls(
            mean=mean.item(),
            # The variance of the means includes a part of the variance of single draws.
            between=max(0.0, ((values.var() - own) / mean**2).item()),
            label=(draws * label / mean**2).item(),
        )
