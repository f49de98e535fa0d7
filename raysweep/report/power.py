"""Power: the smallest effect that a design would see, and the number of clusters that an effect would take.

A two-sided test at level α with standard error s and ν degrees of freedom sees an effect of

    (t_{ν, 1 − α/2} + t_{ν, 0.8}) · s

with a probability of about 80 % (H. S. Bloom, "Minimum detectable effects", Evaluation Review 19, 1995).
k clusters like the G of the design at hand have the standard error s √(G / k) and ν k / G degrees of freedom.
"""

from __future__ import annotations

import math

from scipy import stats

#: Probability of a false positive of one test (α), and of seeing an effect that is there.
LEVEL, POWER = 0.05, 0.8
#: Size of an effect in standard errors from which on no test sees it with the wrong sign.
NO_WRONG_SIGN = 6.0
#: Most clusters that are worth a number.
MOST = 10_000


def detectable(standard_error: float, dof: float, *, level: float = LEVEL) -> float:
    """Return the smallest effect that is seen with 80 % by a test at a level.

    >>> round(detectable(1.0, 1e6), 2)
    2.8
    """
    quantiles = stats.t.ppf([1 - level / 2, POWER], dof)
    return float(quantiles.sum()) * standard_error


def power(effect: float, standard_error: float, dof: float) -> float:
    """Return the probability that the test sees an effect, on either side.

    >>> round(power(2.8, 1.0, 1e6), 2), round(power(0.0, 1.0, 10), 2)
    (0.8, 0.05)
    """
    edge = float(stats.t.ppf(1 - LEVEL / 2, dof))
    shift = abs(effect) / standard_error
    wrong = float(stats.nct.cdf(-edge, dof, shift)) if shift < NO_WRONG_SIGN else 0.0
    return float(stats.nct.sf(edge, dof, shift)) + wrong


def needed(
    effect: float, standard_error: float, dof: float, clusters: int, *, level: float = LEVEL
) -> int | None:
    """Return the number of clusters that see an effect with 80 % at a level; None beyond `MOST`.

    >>> needed(0.5, 0.5, 9, 10)
    81
    """
    if not math.isfinite(effect) or effect == 0 or not dof > 0:
        return None

    def seen(count: int) -> bool:
        error = standard_error * math.sqrt(clusters / count)
        return detectable(error, dof * count / clusters, level=level) <= abs(effect)

    if not seen(MOST):
        return None
    low, high = 1, MOST
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle + 1, high)
    return high
