"""The difference of two Fisher traces that were measured on the same inputs with the same test vectors.

With x_i and y_i the values of input i under two models, as they were computed, and f_i, g_i their control
statistics of mean zero (raysweep.flatness.trace.control), the difference is the mean of y_i − x_i less its
regression on f_i, on g_i, and on the statistics of places that both models share
(raysweep.flatness.trace.places, .regression).  Both terms are treated alike:
two estimates would also differ by the adjustment if only one of them were adjusted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from raysweep.compiled.threads import one_thread
from raysweep.errors import DataError
from raysweep.flatness.trace.estimate import TraceEstimate, doubt, ratio
from raysweep.flatness.trace.interval import deviate, interval, skewness_of
from raysweep.flatness.trace.places import all_statistics
from raysweep.flatness.trace.regression import adjusted


class Measured(NamedTuple):
    """Values `plain` [n] of inputs as computed, their numbers of masked words `weights` [n], and statistics.

    `control` [n, K] and `places` [n, 2] are those of `raysweep.flatness.trace.estimate.InputTraces`.
    """

    plain: Tensor
    weights: Tensor
    control: Tensor | None
    places: Tensor | None = None

    def first(self, n: int) -> Measured:
        """Return the first `n` inputs."""
        return Measured(
            self.plain[:n],
            self.weights[:n],
            None if self.control is None else self.control[:n],
            None if self.places is None else self.places[:n],
        )

    @property
    def known(self) -> Tensor | None:
        """All statistics of mean zero [n, K]."""
        return all_statistics(self.control, self.places)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A second trace minus a first one, in nats, over the `n` inputs that both have measured.

    `independent` is the standard error that the difference of these would have without pairing: that of two
    traces of as many inputs, each with inputs and vectors of its own.  `correlation` is that of the inputs'
    values, with the regression on statistics of mean zero taken off both: with it nearer to one the
    difference is surer than its terms; NaN for a single input or values without spread.  `skewness` is that
    of the inputs' differences, for which the interval allows (raysweep.flatness.trace.interval).  `warning`
    says why the interval is not to be trusted, None where it is.
    """

    difference: float
    standard_error: float
    n: int
    independent: float
    correlation: float
    skewness: float
    warning: str | None

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the difference, a single one."""
        return interval(self.difference, self.standard_error, n=self.n, skewness=self.skewness)

    @property
    def deviate(self) -> float:
        """The difference as a standard normal deviate, where there is none; in agreement with `interval`."""
        return deviate(self.difference, self.standard_error, n=self.n, skewness=self.skewness)


@dataclass(frozen=True, kw_only=True)
class Contrast(Difference):
    """The trace of number `second` minus that of number `first` in a list of estimates."""

    first: int
    second: int


@one_thread()  # reports take hundreds of these, of matrices for which threads wait longer than they work
def difference(first: Measured, second: Measured) -> Difference:
    """Return the trace of `second` minus that of `first`, over the inputs that both have: the first ones.

    Both are of the same inputs in the same order with the same test vectors.  The plain values' difference is
    adjusted by the control statistics of both, unless either has none, and by those of places, unless either
    has none.  Where the inputs are too few for so many, nothing is adjusted
    (`raysweep.flatness.trace.regression.adjusted`).
    """
    n = min(len(first.plain), len(second.plain))
    sides = [first.first(n), second.first(n)]
    weights, places = sides[0].weights, sides[0].places
    controls = [side.control for side in sides if side.control is not None]
    control = torch.cat(controls, dim=1) if len(controls) == 2 else None
    known = all_statistics(control, places if sides[1].places is not None else None)
    values = adjusted(torch.stack([side.plain.double() for side in sides], dim=1), weights, known)
    apart = values[:, 1] - values[:, 0]
    change = ratio(apart, weights)
    alone = [ratio(adjusted(side.plain, weights, side.known), weights).standard_error for side in sides]
    return Difference(
        difference=change.value,
        standard_error=change.standard_error,
        n=n,
        independent=math.hypot(*alone),
        correlation=torch.corrcoef(values.T)[0, 1].item() if n > 1 else math.nan,
        skewness=skewness_of(apart, weights),
        # A difference of exactly zero at every input needs no warning.
        warning=doubt(apart, weights) if bool(apart.any()) else None,
    )


def compare(estimates: Sequence[TraceEstimate]) -> list[Contrast]:
    """Return the paired difference of every two estimates, in the order (0, 1), (0, 2), ..., (1, 2), ...

    The estimates are of the same inputs with the same test vectors, so that what an input adds to both falls
    out of the difference; where they are of different length, the inputs that both have are compared.  A
    difference has a regression of its own on the statistics of both, so it is not to the last digit that of
    the two values.  The intervals are single ones, with no correction for their number.  A model seen as a
    larger one may be compared with one that is as large.  Raises `DataError` for estimates of other inputs,
    of other test vectors, or that leave out other parameters.
    """
    found = []
    for (i, a), (j, b) in combinations(enumerate(estimates), 2):
        n = min(a.n, b.n)
        if a.drawn != b.drawn or not torch.equal(a.keys[:n], b.keys[:n]):
            raise DataError(
                f"estimates {i} and {j} are of other inputs or other test vectors, so that nothing pairs "
                "them; measure both models on the same sentences and positions with the same seed, start, "
                "vectors and draws"
            )
        if a.excluded != b.excluded:
            raise DataError(
                f"estimates {i} and {j} leave out other parameters ({', '.join(a.excluded) or 'none'}; "
                f"{', '.join(b.excluded) or 'none'}), so that their difference means nothing; freeze the "
                "same ones in both models"
            )
        sides = [Measured(e.plain, e.weights, e.control, e.places) for e in (a, b)]
        found.append(Contrast(first=i, second=j, **vars(difference(*sides))))
    return found
