"""The estimate of a Fisher trace from a sample of inputs, with its standard errors.

With x_i the value of input i (the sum over its m_i masked positions, one as a rule) the estimate is the mean
over masked positions, the ratio Σ x_i / Σ m_i, and its standard error that of a ratio of means over inputs:

    r_i = x_i − value · m_i,      se² = n/(n−1) · Σ r_i² / (Σ m_i)²

(Cochran, "Sampling techniques", 1977, section 6.3); with one position an input that is the mean and its
standard error.  It is the *population's*: the spread over inputs and that of their test vectors.  The
*pool's* standard error holds the inputs fixed and comes from their test vectors alone, by the spread of the
draws at each input:  se² = Σ s_i²/draws / (Σ m_i)².  It takes two draws; exact vectors have 0.

Where inputs have statistics f_i of known mean zero (raysweep.flatness.trace.control and .places), x_i above
stands for the value less its regression on them (raysweep.flatness.trace.regression).

Intervals allow for the skewness G of the inputs' values (raysweep.flatness.trace.interval).  They hold what
they state where n is large beside G²; n > 12 G² and the share of the largest contribution say where they are
to be trusted.  (For the normal interval Cochran, section 2.15, asks for n > 25 G².)  No such rule is certain:
inputs that lack the largest values by chance look as if there were none (Bahadur and Savage, "The
nonexistence of certain statistical procedures in nonparametric problems", 1956).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from raysweep.flatness.trace.interval import interval, shown, shown_html, skewness_of
from raysweep.flatness.trace.places import all_statistics
from raysweep.flatness.trace.regression import adjusted, coefficients, pool_variance
from raysweep.flatness.vectors import Drawing
from raysweep.languages.base import Estimate

_HEAD = {"final_norm", "head_dense", "head_norm", "decoder", "cls", "lm_head"}

#: Fewest inputs, largest share of one of them, and fewest inputs for a squared skewness of 1, at which an
#: interval is trusted.
LEAST_INPUTS, LARGEST_SHARE, FOR_SKEWNESS = 30, 0.05, 12


def parameter_group(name: str) -> str:
    """Return the group of a parameter: `embedding`, `layers.<i>` or `head`; else its first name.

    A decoder tied to the token embedding counts there, with all of its gradient.  The names are those of
    raysweep's models and of Hugging Face's encoders.

    >>> [parameter_group(n) for n in ("token_embedding.weight", "layers.3.up.bias", "decoder.bias")]
    ['embedding', 'layers.3', 'head']
    >>> [parameter_group(n) for n in ("bert.embeddings.LayerNorm.bias", "bert.encoder.layer.0.output.bias")]
    ['embedding', 'layers.0']
    """
    parts = name.split(".")
    if any(part in _HEAD for part in parts):
        return "head"
    if any(part.endswith(("embedding", "embeddings")) for part in parts) or parts[0] == "embedding_norm":
        return "embedding"
    for kind, number in pairwise(parts[:-1]):
        if number.isdigit():
            return f"layers.{number}" if kind == "layer" else f"{kind}.{number}"
    return parts[0]


def effective_sample_size(values: Tensor) -> float:
    """Return (Σ x)² / Σ x² of `values` [n]: n if all are equal, 1 if one is everything."""
    if not bool(values.any()):
        return float(len(values))
    return (values.sum().square() / values.square().sum()).item()


def largest_share(values: Tensor) -> float:
    """Return the share of Σ |x| that the largest of `values` [n] has: 1/n if all are equal."""
    if not bool(values.any()):
        return 1 / len(values)
    sizes = values.abs()
    return (sizes.max() / sizes.sum()).item()


def ratio(values: Tensor, weights: Tensor) -> Estimate:
    """Return Σ x / Σ m of `values` x and `weights` m [n] with its standard error over inputs."""
    values, weights = values.double(), weights.double()
    n, total = len(values), weights.sum().item()
    value = values.sum().item() / total
    residuals = values - value * weights
    error = math.sqrt(n / (n - 1) * residuals.square().sum().item()) / total if n > 1 else math.nan
    return Estimate(value=value, standard_error=error, n=n)


def relative_error(value: float, standard_error: float) -> float:
    """Return the standard error as a share of a trace; NaN for a value that is not positive."""
    return standard_error / value if value > 0 else math.nan


def reaches(target: float, relative: float, warning: str | None) -> bool:
    """Return whether the sequential rule ends at a `relative` error with such a `warning`; never at NaN."""
    return relative <= target and warning is None


def doubt(values: Tensor, weights: Tensor, *, positive: bool = False) -> str | None:
    """Return why the interval of Σ x / Σ m is not to be trusted; None where it is.

    `values` and `weights` are [n].  `positive` are those of a trace that cannot be negative, such as
    Fisher's, unlike a difference or the trace of a Hessian.
    """
    n = len(values)
    if n < LEAST_INPUTS:
        return f"{n} inputs are too few for an interval; use {LEAST_INPUTS} at least"
    if not bool(values.any()):
        return "all values are zero: the model is certain of its words to the last digit it computes with"
    total = values.sum().item()
    if positive and total <= 0:
        return f"the {n} inputs' values add up to {total:.3g}, and a trace is positive; use more inputs"
    share = largest_share(values)
    if share > LARGEST_SHARE:
        return f"one of {n} inputs makes {100 * share:.0f} % of the sum of absolute values; use more inputs"
    skewness = skewness_of(values, weights)
    needed = math.ceil(FOR_SKEWNESS * skewness**2)
    if n > needed:
        return None
    shown = f"{skewness:.1f}".replace("-", "−")
    return f"the inputs' values have skewness {shown}, which takes {needed:,} inputs, not {n:,}"


@dataclass(frozen=True, kw_only=True)
class InputTraces:
    """Values of single inputs: `values` [n, P] float64, a column for each of the parameters `names`.

    `weights` [n] are the inputs' numbers of masked positions, which `values` sum over.  `control` [n, K] are
    statistics of known mean zero (raysweep.flatness.trace.control), None where there are none; `values` are
    as computed, with nothing taken off.  `spread` [n, 1+K, 1+K] are each input's covariances of its value and
    these by random test vectors, None with one vector an input.  `keys` [n] are hashes of the inputs, and
    `drawn` is the drawing of their vectors: where both are equal, so are the random numbers.  `method` says
    how gradient norms were computed, `reason` why not by ghost norms.  `places` [n, 2] are those of masked
    words that were drawn uniformly (raysweep.flatness.trace.places), None where they were not.
    """

    names: tuple[str, ...]
    values: Tensor
    excluded: tuple[str, ...]
    weights: Tensor
    spread: Tensor | None
    control: Tensor | None
    keys: Tensor
    drawn: Drawing
    method: str
    reason: str | None = None
    places: Tensor | None = None

    def by_group(self) -> dict[str, Tensor]:
        """Return the values [n] of each parameter group, in the model's order."""
        groups: dict[str, Tensor] = {}
        for column, name in enumerate(self.names):
            group = parameter_group(name)
            value = self.values[:, column]
            groups[group] = groups[group] + value if group in groups else value
        return groups

    def joined(self, other: InputTraces) -> InputTraces:
        """Return these inputs and those of `other` of the same model, numbered from where these end."""
        return InputTraces(
            names=self.names,
            values=torch.cat([self.values, other.values]),
            excluded=self.excluded,
            weights=torch.cat([self.weights, other.weights]),
            spread=_both(self.spread, other.spread),
            control=_both(self.control, other.control),
            keys=torch.cat([self.keys, other.keys]),
            drawn=self.drawn,
            method=self.method,
            reason=self.reason,
            places=_both(self.places, other.places),
        )


def _both(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    return None if one is None or other is None else torch.cat([one, other])


@dataclass(frozen=True, kw_only=True, repr=False)
class TraceEstimate:
    """A Fisher trace in nats: the mean of `n` independent inputs, and its parts.

    `standard_error` is the population's, `pool_standard_error` that of the same inputs with other test
    vectors (None with one vector an input), `plain_standard_error` the population's of the values as computed
    (`plain` [n] float64), before their regression on the statistics `control` [n, K] and those of `places`
    [n, 2] (each None where there are none).  `per_input` [n] float64 are the inputs' own values, with that
    taken off (`adjusted`), so that single ones may be negative; `per_group` and `per_parameter` split the
    mean; `excluded` names the frozen parameters, which are not part of it.  `weights` [n], `keys` and `drawn`
    are those of `InputTraces`.  `warning` says why the interval is not to be trusted, None where it is.
    `method` says how gradient norms were computed, `reason` why not by ghost norms.  `target_rse` is the
    relative standard error that was asked for, and `reached` whether the pool was large enough for it.
    """

    value: float
    standard_error: float
    n: int
    per_group: Mapping[str, Estimate]
    per_parameter: Mapping[str, Estimate]
    per_input: Tensor
    plain: Tensor
    control: Tensor | None
    excluded: tuple[str, ...]
    weights: Tensor
    keys: Tensor
    drawn: Drawing
    pool_standard_error: float | None
    plain_standard_error: float
    warning: str | None
    method: str
    reason: str | None = None
    places: Tensor | None = None
    target_rse: float | None = None
    reached: bool | None = None

    def __repr__(self) -> str:
        """Return one line: the values of all inputs are hundreds of them."""
        return shown(self)

    def _repr_html_(self) -> str:
        return shown_html(self, self.per_group)

    @property
    def relative_standard_error(self) -> float:
        """The standard error as a share of the value; NaN for a value that is not positive."""
        return relative_error(self.value, self.standard_error)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the population's trace (raysweep.flatness.trace.interval)."""
        skewness = skewness_of(self.per_input, self.weights)
        return interval(self.value, self.standard_error, n=self.n, skewness=skewness)

    @property
    def effective_sample_size(self) -> float:
        """(Σ x)² / Σ x² of the inputs' values: n if all are equal, 1 if one of them is everything."""
        return effective_sample_size(self.per_input)

    @property
    def largest_share(self) -> float:
        """The share of Σ |x| that the largest of the inputs' values x has: 1/n if all are equal."""
        return largest_share(self.per_input)


def summarise(
    traces: InputTraces, *, target_rse: float | None = None, reached: bool | None = None
) -> TraceEstimate:
    """Return the mean over masked positions with its standard errors, and its parts."""
    plain, weights = traces.values.sum(dim=1), traces.weights
    known, groups = all_statistics(traces.control, traces.places), traces.by_group()
    # One regression for all.
    columns = torch.cat([plain[:, None], torch.stack(list(groups.values()), dim=1), traces.values], dim=1)
    per_input, by_group, values = adjusted(columns, weights, known).split(
        [1, len(groups), len(traces.names)], dim=1
    )
    per_input = per_input[:, 0]
    whole, spread, pool = ratio(per_input, weights), traces.spread, None
    if spread is not None:
        beta = coefficients(plain, weights, known)
        pool = math.sqrt(max(0.0, pool_variance(spread, beta))) / weights.sum().item()
    return TraceEstimate(
        value=whole.value,
        standard_error=whole.standard_error,
        plain_standard_error=ratio(plain, weights).standard_error,
        n=whole.n,
        per_group={group: ratio(by_group[:, k], weights) for k, group in enumerate(groups)},
        per_parameter={name: ratio(values[:, k], weights) for k, name in enumerate(traces.names)},
        per_input=per_input,
        plain=plain,
        control=traces.control,
        excluded=traces.excluded,
        weights=weights,
        keys=traces.keys,
        drawn=traces.drawn,
        pool_standard_error=pool,
        warning=doubt(per_input, weights, positive=True),
        method=traces.method,
        reason=traces.reason,
        places=traces.places,
        target_rse=target_rse,
        reached=reached,
    )
