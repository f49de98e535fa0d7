"""Intervals of a mean whose values are skewed.

With the mean x̄ of n values, its standard error se and their skewness G, the deviate T = (x̄ − μ)/se of the
true mean μ is not quite normal, but

    g(T) = T + a T² + a² T³/3 + a/2 = ((1 + aT)³ − 1)/(3a) + a/2,      a = G/(3√n),

is up to terms of order 1/n, and it is monotone.  The interval holds all μ with |g(T)| ≤ 1.96.  For G = 0 it
is the normal interval.  For values with a long upper tail it reaches further up than down: a mean that misses
the rare large values is too small, and so is its standard error.

Source: Hall, "On the removal of skewness by transformation" (Journal of the Royal Statistical Society B 54,
1992).  raysweep.bench.statistics.trace measures the coverage.

>>> [round(end, 2) for end in interval(10.0, 1.0, n=100, skewness=0.0)]
[8.04, 11.96]
>>> [round(end, 2) for end in interval(10.0, 1.0, n=100, skewness=2.0)]
[8.28, 12.34]
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Protocol

from torch import Tensor

from raysweep.languages.base import Estimate

#: The normal quantile of 95 % intervals.
Z95 = 1.959963984540054
#: Size of a below which g is the identity to the last digit that matters.
_STRAIGHT = 1e-7


class Shown(Protocol):
    """An estimate that `shown` shows."""

    @property
    def value(self) -> float: ...
    @property
    def standard_error(self) -> float: ...
    @property
    def n(self) -> int: ...
    @property
    def warning(self) -> str | None: ...
    @property
    def interval(self) -> tuple[float, float]: ...


def shown(estimate: Shown) -> str:
    """Return an estimate in one line, without the values of its inputs, which are hundreds of lines."""
    warning = "" if estimate.warning is None else f", warning={estimate.warning!r}"
    return (
        f"{type(estimate).__name__}(value={estimate.value:.6g}, "
        f"standard_error={estimate.standard_error:.3g}, n={estimate.n}{warning})"
    )


def shown_html(estimate: Shown, parts: Mapping[str, Estimate]) -> str:
    """Return an estimate and its parts as a small table, for a notebook."""
    rows: dict[str, Shown | Estimate] = {type(estimate).__name__: estimate, **parts}
    low, high = estimate.interval
    body = "".join(
        f"<tr><th>{escape(name)}</th><td>{one.value:.6g}</td><td>{one.standard_error:.3g}</td></tr>"
        for name, one in rows.items()
    )
    warning = "" if estimate.warning is None else f"<p>not to be trusted: {escape(estimate.warning)}</p>"
    return (
        "<table><thead><tr><th></th><th>value (nats)</th><th>standard error</th></tr></thead>"
        f"<tbody>{body}</tbody></table>"
        f"<p>95 % interval {low:.6g} to {high:.6g}, {estimate.n:,} inputs</p>{warning}"
    )


def skewness_of(values: Tensor, weights: Tensor) -> float:
    """Return the skewness of the residuals of Σ x / Σ m, of `values` x and `weights` m [n]; 0 without spread.

    With equal weights that is the skewness of the values.
    """
    values, weights = values.double(), weights.double()
    residuals = values - values.sum() / weights.sum() * weights
    residuals = residuals - residuals.mean()
    spread = residuals.square().mean().sqrt()
    return ((residuals / spread) ** 3).mean().item() if spread > 0 else 0.0


def interval(value: float, standard_error: float, *, n: int, skewness: float) -> tuple[float, float]:
    """Return the 95 % interval of the mean of `n` values with that skewness; NaN for an unknown error."""
    a = skewness / (3 * math.sqrt(n))
    if abs(a) < _STRAIGHT:
        return value - Z95 * standard_error, value + Z95 * standard_error
    low, high = ((math.cbrt(1 + 3 * a * (z - a / 2)) - 1) / a for z in (Z95, -Z95))
    return value - low * standard_error, value - high * standard_error


def deviate(value: float, standard_error: float, *, n: int, skewness: float) -> float:
    """Return g(T) of the true mean zero: a standard normal deviate where the mean is zero.

    A value of zero has the deviate of its skewness, an error of zero that of the value's sign at infinity.

    >>> round(deviate(1.96, 1.0, n=100, skewness=0.0), 3), deviate(-1.0, 0.0, n=9, skewness=0.0)
    (1.96, -inf)
    """
    if standard_error == 0:
        return math.copysign(math.inf, value) if value else 0.0
    a, t = skewness / (3 * math.sqrt(n)), value / standard_error
    return t + a * t**2 + a**2 * t**3 / 3 + a / 2
