"""The bottom of a loss: the parameters at which a small model is exactly the language, and the trace there.

Of a model with log-probabilities log f(θ) [N, V] at all inputs of a population (weights w, truth q), let

    J: rows √(w f) ∇log f  [NV, p],        r = √(w/f) (q − f)  [NV],        F = JᵀJ,        ∇L = −Jᵀr.

The minimisers Γ of L are where r = 0; there the Hessian is F (Bartlett's identity), its trace is Σ‖J‖², and
the tangent vectors of Γ are those that J sends to zero.  All of it is in float64, over all inputs and words;
a gap in the spectrum of JJᵀ separates directions with a slope from those without.

Models are differentiated by `torch.func`, in whose second derivatives PyTorch's LayerNorm is wrong (its issue
196700), so `Valley.of` writes that layer out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.theory.population import Population
from raysweep.models.base import MaskedLM, parameter_count

#: Eigenvalues of JJᵀ below this share of the largest are zero.
GAP = 1e-12

#: |r|², about twice the excess loss in nats, up to which a model counts as being on Γ.
BOTTOM = 1e-18

#: Excess loss in nats below which its fall is lost in rounding.
_ROUNDING = 1e-13

#: Gauss-Newton steps, and halvings of each, within which Γ must be reached.
_MOST_STEPS, _MOST_HALVINGS = 100, 12

#: Parameters for which J is formed.
MOST_PARAMETERS = 5_000


@dataclass(frozen=True)
class Valley:
    """A model of `p` parameters as a function of them, on a population of N inputs and V words.

    `log_probs` maps parameters [p] to log f [N, V] and can be differentiated twice by `torch.func`; `weights`
    [N] and `truth` [N, V] are the population's, float64.
    """

    log_probs: Callable[[Tensor], Tensor]
    weights: Tensor
    truth: Tensor

    @classmethod
    def of(cls, model: MaskedLM, population: Population) -> tuple[Valley, Tensor]:
        """Return the valley of a model on a population, and its trainable parameters [p] in float64.

        f is the model's distribution among the language's words: what its softmax gives to ids that are no
        words could vanish only at infinite weights.  Dropout is off; the model stays as it is.  Raises
        `ConfigError` where a conditional is zero, for the same reason, or the model is too large.
        """
        if bool((population.truth == 0).any()):
            raise ConfigError(
                "some words have probability zero in their place, which finite weights cannot express; "
                "choose a language in which every word is possible everywhere"
            )
        if any(isinstance(module, nn.RNNBase) for module in model.modules()):
            raise ConfigError("recurrent layers cannot be differentiated twice here; take an encoder")
        if parameter_count(model) > MOST_PARAMETERS:
            raise ConfigError(
                f"{parameter_count(model)} parameters are more than the {MOST_PARAMETERS} whose "
                "derivatives are written out; choose a smaller model"
            )
        module = copy.deepcopy(model).double().cpu().eval()
        module.tie()
        _write_out(module)
        free = {name: p.detach() for name, p in module.named_parameters() if p.requires_grad}
        sizes = [p.numel() for p in free.values()]
        words = population.truth.shape[1]

        def log_probs(theta: Tensor) -> Tensor:
            parts = theta.split(sizes)
            values = {n: part.view_as(free[n]) for n, part in zip(free, parts, strict=True)}
            logits = functional_call(module, values, (population.masked, population.positions))
            return logits[:, :words].log_softmax(dim=-1)

        theta = torch.cat([p.flatten() for p in free.values()])
        return cls(log_probs, population.weights, population.truth), theta

    def excess_loss(self, theta: Tensor) -> Tensor:
        """Return E KL(truth ‖ f) in nats [...] of parameters [..., p]."""
        rows = theta.reshape(-1, theta.shape[-1])
        values = vmap(lambda one: self._mean(self.truth * (self.truth.log() - self.log_probs(one))))(rows)
        return values.reshape(theta.shape[:-1])

    def loss_slopes(self, rows: Tensor, share: Tensor) -> Tensor:
        """Return the gradients [R, p] of −Σ share·log f at rows of parameters [R, p], `share` [R, N, V]."""
        rows = rows.detach().requires_grad_()
        with torch.enable_grad():
            total = -(share * vmap(self.log_probs)(rows)).sum()
        (slopes,) = torch.autograd.grad(total, rows)
        return slopes

    def trace(self, theta: Tensor) -> Tensor:
        """Return Tr F in nats [...] of parameters [..., p]: on Γ the trace of the Hessian."""
        values = vmap(self._trace)(theta.reshape(-1, theta.shape[-1]))
        return values.reshape(theta.shape[:-1])

    def spectrum(self, theta: Tensor) -> Tensor:
        """Return the eigenvalues of F at `theta` [p] that are not zero, in descending order."""
        J, _ = self._jacobian(theta)
        values = torch.linalg.svdvals(J).square()
        return values[values > GAP * values[0]]

    def tangent_slope(self, theta: Tensor) -> Tensor:
        """Return the gradient [p] of Tr F at a point of Γ [p], projected onto the tangent vectors of Γ."""
        slope = grad(self._trace)(theta)
        J, _ = self._jacobian(theta)
        return slope - J.T @ _solve(J @ J.T, J @ slope)

    def saturate(self, theta: Tensor) -> Tensor:
        """Return points of Γ near parameters [..., p]: Gauss-Newton steps of least norm, halved at need.

        Raises `RunFailedError` where some row does not get there: the model cannot be the language, or is
        too far from being it.
        """
        rows = theta.reshape(-1, theta.shape[-1]).clone()
        if not bool(rows.isfinite().all()):
            raise RunFailedError(
                "weights are not finite, so they are near no language; lower the learning rate"
            )
        open_ = torch.arange(len(rows))
        for _ in range(_MOST_STEPS):
            J, r = vmap(self._jacobian)(rows[open_])
            # A NaN counts as not converged.
            far = ~(r.square().sum(dim=-1) <= BOTTOM)
            open_, J, r = open_[far], J[far], r[far]
            if not len(open_) or not bool(J.isfinite().all() and r.isfinite().all()):
                break
            step = (J.mT @ _solve(J @ J.mT, r)[..., None])[..., 0]
            rows[open_] = self._shortened(rows[open_], step)
        if len(open_):
            raise RunFailedError(
                f"{len(open_)} of {len(rows)} models do not reach their language, excess loss "
                f"{float(self.excess_loss(rows[open_]).max()):.2g} nats: train longer or take a wider model; "
                "behind SGD, lower its rate or enlarge its batches"
            )
        return rows.view(theta.shape)

    def _shortened(self, rows: Tensor, step: Tensor) -> Tensor:
        """Return rows + step, each step halved until the excess loss falls."""
        before, scale = self.excess_loss(rows), torch.ones(len(rows), 1, dtype=rows.dtype)
        for _ in range(_MOST_HALVINGS):
            after = self.excess_loss(rows + scale * step)
            # At the bottom the loss is rounding; what is not finite is worse than anything.
            better = (after < before) | (after < _ROUNDING)
            if bool(better.all()):
                break
            scale[~better] /= 2
        return rows + scale * step

    def _mean(self, terms: Tensor) -> Tensor:
        return (self.weights[:, None] * terms).sum()

    def _slopes(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return ∇log f [N, V, p] and f [N, V]."""
        return jacrev(self.log_probs)(theta), self.log_probs(theta).exp()

    def _trace(self, theta: Tensor) -> Tensor:
        slopes, f = self._slopes(theta)
        return self._mean(f * slopes.square().sum(dim=-1))

    def _jacobian(self, theta: Tensor) -> tuple[Tensor, Tensor]:
        """Return J [NV, p] and r [NV]."""
        slopes, f = self._slopes(theta)
        root = (self.weights[:, None] * f).sqrt()
        return (root[:, :, None] * slopes).flatten(0, 1), (root * (self.truth / f - 1)).flatten()


def _solve(gram: Tensor, right: Tensor) -> Tensor:
    """Return gram⁺ right [..., n]; `gram` [..., n, n] is symmetric, with a gap above what is zero."""
    values, vectors = torch.linalg.eigh(gram)
    inverse = torch.where(values > GAP * values[..., -1:], 1 / values, 0.0)
    return ((vectors * inverse[..., None, :]) @ (vectors.mT @ right[..., None]))[..., 0]


class _LayerNorm(nn.Module):
    """`nn.LayerNorm` over the last axis, in plain arithmetic."""

    def __init__(self, norm: nn.LayerNorm) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps

    def forward(self, x: Tensor) -> Tensor:
        x = x - x.mean(dim=-1, keepdim=True)
        scaled: Tensor = x * (x.square().mean(dim=-1, keepdim=True) + self.eps).rsqrt()
        return scaled * self.weight + self.bias


def _write_out(module: nn.Module) -> None:
    """Replace every LayerNorm below a module by the same in plain arithmetic."""
    for name, child in module.named_children():
        if isinstance(child, nn.LayerNorm):
            setattr(module, name, _LayerNorm(child))
        else:
            _write_out(child)
