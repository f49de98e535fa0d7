"""The trace of the Hessian of the pre-training loss, also where the model is far from its language.

    Tr H = Tr G + Tr R,    G = E Jᵀ(diag p − ppᵀ)J,    R = E Σ_c (p_c − q_c) ∇²z_c

with logits z, J = ∂z/∂θ, p = softmax(z), and q the label of the masked word: its exact conditional (soft
labels) or the word itself (hard labels).  G is the Gauss-Newton matrix, which is the Fisher
matrix: its trace comes from ghost norms (raysweep.flatness.trace.fisher), one backward pass an input.  The
trace of the residual R is Hutchinson's estimate, E vᵀRv with random signs v, of each input by a direction of
its own (raysweep.flatness.directions):

    v_iᵀ R_i v_i = d²/dε² ⟨p_i − q_i, z_i(θ + ε v_i)⟩    with p_i − q_i held at its value at θ.

With soft labels R is zero for a model that has reached its language, value by value and not only on average,
so the residual's noise vanishes with it; with hard labels its noise is that of the drawn words.

With several masked positions in a sentence the loss is the mean over all masked words
(raysweep.flatness.pool), and so are the traces: sums over a sentence's positions, divided by the mean number
of positions.

The first part is adjusted by statistics of mean zero, as a Fisher trace is (raysweep.flatness.trace.control
and .places).  The second is not: its spread is that of its directions, and a place tells nothing of these.

Sources: Schraudolph, "Fast curvature matrix-vector products for second-order gradient descent" (Neural
Computation 14, 2002) for the split; Hutchinson, "A stochastic estimator of the trace of the influence matrix
for Laplacian smoothing splines" (Communications in Statistics 19, 1990).

>>> from raysweep.languages.hmm import HMM
>>> from raysweep.models.encoder import EncoderConfig
>>> language = HMM.random(states=4, vocabulary=6, length=3, blocks=2, tasks=(2,))
>>> model = EncoderConfig(shape="8/1/1/16").build(language, seed=0)
>>> estimate = hessian_trace(model, language.sample(64, seed=0))
>>> estimate.n, estimate.value == estimate.gauss_newton.value + estimate.residual.value
(64, True)
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor

from raysweep.flatness.directions import Directions
from raysweep.flatness.evaluating import evaluating
from raysweep.flatness.inputs import draw_positions
from raysweep.flatness.pool import Pool
from raysweep.flatness.trace.estimate import doubt, ratio
from raysweep.flatness.trace.fisher import input_traces
from raysweep.flatness.trace.interval import interval, shown, shown_html, skewness_of
from raysweep.flatness.trace.places import all_statistics
from raysweep.flatness.trace.regression import adjusted
from raysweep.flatness.vectors import Vectors
from raysweep.languages.base import Estimate
from raysweep.models.base import MaskedLM
from raysweep.seeding import derive

log = logging.getLogger("raysweep.flatness")


@dataclass(frozen=True, kw_only=True, repr=False)
class HessianEstimate:
    """A Hessian trace in nats: the mean over the masked words of `n` independent inputs, and its two parts.

    `per_input` [n] float64 are the inputs' own values, sums over their `weights` [n] masked positions and of
    both parts together, so that the standard error includes the covariance of the parts.  `excluded` names
    the frozen parameters, which are not part of it.  `warning` says why the interval is not to be trusted,
    None where it is; `method` and `reason` are those of `TraceEstimate`.
    """

    value: float
    standard_error: float
    n: int
    gauss_newton: Estimate
    residual: Estimate
    per_input: Tensor
    weights: Tensor
    excluded: tuple[str, ...]
    warning: str | None
    method: str
    reason: str | None = None

    def __repr__(self) -> str:
        """Return one line: the values of all inputs are hundreds of them."""
        return shown(self)

    def _repr_html_(self) -> str:
        return shown_html(self, {"Gauss-Newton": self.gauss_newton, "residual": self.residual})

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the population's trace (raysweep.flatness.trace.interval)."""
        skewness = skewness_of(self.per_input, self.weights)
        return interval(self.value, self.standard_error, n=self.n, skewness=skewness)


def residual_traces(
    model: MaskedLM, pool: Pool, *, seed: int = 0, start: int = 0, draws: int = 1, batch: int = 64
) -> Tensor:
    """Return an unbiased value [n] of Tr R at each input of a pool, float64 on the CPU; dropout is off.

    Input i's directions, `draws` of them, are keyed by (seed, start + i).  Its value is the sum over its
    masked positions; so many inputs are computed at once as have `batch` of them, but one at least.
    """
    values = torch.zeros(len(pool), dtype=torch.float64, device=pool.masked.device)
    index = torch.arange(start, start + len(pool), device=pool.masked.device)
    with evaluating(model):
        for draw in range(draws):
            directions = Directions(model, seed=seed if draw == 0 else derive(seed, "draw", draw))
            for rows, ids, positions in pool.batches(max(1, batch // pool.most), several=True):

                def slopes(logits: Tensor, places: Tensor, rows: Tensor = rows) -> Tensor:
                    return pool.slopes(logits, rows[places])

                values[rows] += directions.second(ids, positions, index[rows], slopes).double() / draws
    return values.cpu()


def hessian_trace(
    model: MaskedLM,
    ids: Tensor,
    positions: Tensor | None = None,
    *,
    log_probs: Tensor | None = None,
    seed: int = 0,
    start: int = 0,
    vectors: Vectors = "rademacher",
    draws: int = 1,
    batch: int = 64,
) -> HessianEstimate:
    """Estimate Tr H of `model` on sentences `ids` [n, T] with masked positions; dropout is off.

    `log_probs` in nats are the exact conditionals of the masked words: [n, V] for one a sentence
    (`Language.conditionals_at`), or [n, T, V] for several (`Language.conditionals` of their mask).  Without
    them the words of `ids` are the labels.  The other arguments are those of `fisher_trace`; `draws` holds
    for both parts.  Raises `DataError` for inputs that do not fit the model, `ConfigError` for a model
    without trainable parameters.
    """
    uniform = positions is None
    if positions is None:
        positions = draw_positions(ids, model.pad_id, seed=seed, start=start)
    pool = Pool.of(model, ids, positions, log_probs=log_probs)
    traces = input_traces(
        model,
        ids,
        positions,
        seed=seed,
        start=start,
        vectors=vectors,
        draws=draws,
        batch=batch,
        uniform=uniform,
    )
    residual = residual_traces(model, pool, seed=seed, start=start, draws=draws, batch=batch)
    weights = traces.weights
    gauss_newton = adjusted(traces.values.sum(dim=1), weights, all_statistics(traces.control, traces.places))
    parts = ratio(gauss_newton, weights), ratio(residual, weights)
    both = gauss_newton + residual
    warning = doubt(both, weights)
    if warning is not None:
        log.warning("the interval of this Hessian trace is not to be trusted: %s", warning)
    return HessianEstimate(
        value=parts[0].value + parts[1].value,
        standard_error=ratio(both, weights).standard_error,
        n=len(both),
        gauss_newton=parts[0],
        residual=parts[1],
        per_input=both,
        weights=weights,
        excluded=traces.excluded,
        warning=warning,
        method=traces.method,
        reason=traces.reason,
    )
