"""Bartlett's identity: where a model is its language, the noise of its gradient is the curvature of its loss.

With inputs x, words y from their conditionals q(. | x), and ℓ(x, y) = −log f_y(x),

    Σ = Cov ∇ℓ(x, y) = E_x Σ_y q_y ∇log f_y ∇log f_yᵀ − ∇L ∇Lᵀ,        H = ∇²L = G + R,

G the Gauss-Newton (Fisher) matrix and R the residual of raysweep.flatness.trace.hessian.  Where f = q, R and
∇L vanish and Σ = G = H (lemma 3.2 of Liu, Xie, Li and Ma, "Same pre-training loss, better downstream", ICML
2023; the identity is Bartlett's, "Approximate confidence intervals", Biometrika 40, 1953).  Away from there
the two traces differ, and this module measures by how much.

Input i is given one random direction v (raysweep.flatness.directions) for all of its terms, with the slope
ż = d/dε z(θ + εv) of its logits:

    vᵀ E_y[∇log f_y ∇log f_yᵀ] v = Σ_y q_y (ż_y − ⟨p, ż⟩)²        second moment, the mean over words exact
    vᵀ G v                       = Σ_y p_y (ż_y − ⟨p, ż⟩)²
    vᵀ R v                       = ⟨p − q, z̈⟩

Each is unbiased for its part of the trace, and as they share v, Σ − H vanishes at every single input of a
saturated model and not only on average.  Where q is not known, the word of the text takes its place:
everything is as unbiased, with the noise of that word.  ‖∇L‖² comes without bias from products of the mean
gradients of disjoint inputs: a block of `BLOCK` of them gives the product of its halves.

>>> from raysweep.languages.hmm import HMM
>>> from raysweep.models.encoder import EncoderConfig
>>> language = HMM.random(states=4, vocabulary=6, length=3, blocks=2, tasks=(2,))
>>> model = EncoderConfig(shape="8/1/1/16").build(language, seed=0)
>>> ids = language.sample(32, seed=0)
>>> positions = torch.zeros(32, dtype=torch.int64)
>>> pool = Pool.of(model, ids, positions, log_probs=language.conditionals_at(ids, positions))
>>> terms = bartlett_terms(model, pool)
>>> terms.second_moment.shape, terms.squared_gradient.shape
(torch.Size([32]), torch.Size([2]))
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from raysweep.errors import DataError
from raysweep.flatness.directions import Directions
from raysweep.flatness.evaluating import evaluating
from raysweep.flatness.pool import Pool
from raysweep.models.base import MaskedLM

#: Inputs, in the pool's order, that together give one value of ‖∇L‖².
BLOCK = 16


@dataclass(frozen=True, kw_only=True)
class BartlettTerms:
    """Values of single inputs, float64 on the CPU, each unbiased for its expectation.

    `second_moment`, `gauss_newton` and `residual` [n] in nats are those of the module's text,
    `squared_gradient` [n / BLOCK] is ‖∇L‖², and `loss` [n] in nats is KL(q ‖ f), which is −log f of the word
    where the words themselves are the labels.
    """

    second_moment: Tensor
    gauss_newton: Tensor
    residual: Tensor
    squared_gradient: Tensor
    loss: Tensor


def bartlett_terms(
    model: MaskedLM, pool: Pool, *, seed: int = 0, start: int = 0, batch: int = 64
) -> BartlettTerms:
    """Return the terms of the identity at the inputs of a pool; dropout is off.

    Input i's direction is keyed by (seed, start + i).  Raises `DataError` where the pool's size is no
    multiple of `BLOCK`.
    """
    if len(pool) == 0 or len(pool) % BLOCK:
        raise DataError(f"{len(pool)} inputs: give a multiple of {BLOCK}")
    device, q = pool.masked.device, pool.labels
    if q.dim() == 1:
        q = one_hot(q, model.vocabulary_size).double()
    index = torch.arange(start, start + len(pool), device=device)
    found = torch.empty(4, len(pool), dtype=torch.float64, device=device)
    with evaluating(model):
        directions = Directions(model, seed=seed)
        for rows, ids, positions in pool.batches(batch):
            logits, slopes = directions.first(ids, positions, index[rows])
            log_f, slopes = logits.double().log_softmax(dim=-1), slopes.double()
            p = log_f.exp()
            squares = (slopes - (p * slopes).sum(dim=-1, keepdim=True)).square()
            words = q.shape[1]
            found[0, rows] = (q[rows] * squares[:, :words]).sum(dim=-1)
            found[1, rows] = (p * squares).sum(dim=-1)
            entropy = torch.special.entr(q[rows]).sum(dim=-1)
            found[3, rows] = -(q[rows] * log_f[:, :words]).sum(dim=-1) - entropy

            def residual(logits: Tensor, places: Tensor, rows: Tensor = rows) -> Tensor:
                return pool.slopes(logits, rows[places])

            found[2, rows] = directions.second(ids, positions, index[rows], residual).double()
        products = [_product(model, pool, rows) for rows in torch.arange(len(pool)).split(BLOCK)]
    second_moment, gauss_newton, remainder, loss = found.cpu()
    return BartlettTerms(
        second_moment=second_moment,
        gauss_newton=gauss_newton,
        residual=remainder,
        squared_gradient=torch.stack(products),
        loss=loss,
    )


def _product(model: MaskedLM, pool: Pool, rows: Tensor) -> Tensor:
    """Return the product of the mean gradients of two halves of `rows`, float64 on the CPU."""
    weights = [p for p in model.parameters() if p.requires_grad]
    halves = []
    for half in rows.to(pool.masked.device).chunk(2):
        with torch.enable_grad():
            losses = pool.losses(model(pool.masked[half], pool.positions[half]), half)
            # The gradient of a parameter that does not affect the logits is zero.
            halves.append(torch.autograd.grad(losses.mean(), weights, materialize_grads=True))
    return sum(
        ((a.double() * b.double()).sum() for a, b in zip(*halves, strict=True)),
        start=torch.zeros((), dtype=torch.float64, device=rows.device),
    ).cpu()
