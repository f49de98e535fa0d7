"""The loss of a fixed pool, its gradient, and the norms of weights and gradient.

    L(θ) = (1/n) Σ_i ℓ_i(θ)    (raysweep.flatness.pool),      ‖θ‖ = (Σ_j θ_j²)^½,      ‖∇L‖ likewise,

over the trainable parameters, tied ones once.  The gradient is that of the pool, not of the population: its
squared norm is larger by the trace of the gradients' covariance, divided by n.  Sources, as measures beside
flatness: Neyshabur, Tomioka and Srebro, "Norm-based capacity control in neural networks" (COLT 2015);
Zhao, Zhang and Hu, "Penalizing gradient norm for efficiently improving generalization in deep learning"
(ICML 2022).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.func import functional_call

from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.evaluating import evaluating
from raysweep.flatness.pool import Pool
from raysweep.models.base import MaskedLM

Point = dict[str, Tensor]


def trainable(model: MaskedLM) -> Point:
    """Return the trainable parameters by name, detached; raises `ConfigError` where there is none."""
    found = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    if not found:
        raise ConfigError("the model has no trainable parameter, so its loss has no slope to measure")
    return found


def norm(point: Point) -> float:
    """Return the Euclidean norm of all tensors together, in float64."""
    return float(torch.stack([tensor.double().square().sum() for tensor in point.values()]).sum().sqrt())


def losses_at(model: MaskedLM, pool: Pool, point: Point, *, batch: int = 64) -> Tensor:
    """Return ℓ_i [n] in nats, float64 on the CPU, of the model with the parameters of `point`."""
    values = torch.empty(len(pool), dtype=torch.float64, device=pool.masked.device)
    with evaluating(model), torch.no_grad():
        for rows, ids, positions in pool.batches(batch):
            logits = functional_call(model, point, (ids, positions))
            values[rows] = pool.losses(logits.double(), rows)
    return values.cpu()


def gradient_at(model: MaskedLM, pool: Pool, point: Point, *, batch: int = 64) -> tuple[Point, Tensor]:
    """Return ∇L at `point`, and the losses ℓ_i [n] there, float64 on the CPU.

    Raises `RunFailedError` where the gradient is not finite.
    """
    leaves = {name: tensor.detach().requires_grad_() for name, tensor in point.items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in point.items()}
    values = torch.empty(len(pool), dtype=torch.float64, device=pool.masked.device)
    with evaluating(model), torch.enable_grad():
        for rows, ids, positions in pool.batches(batch):
            losses = pool.losses(functional_call(model, leaves, (ids, positions)), rows)
            found = torch.autograd.grad(losses.sum() / len(pool), list(leaves.values()), allow_unused=True)
            values[rows] = losses.detach().double()
            for tensor, part in zip(total.values(), found, strict=True):
                if part is not None:
                    tensor += part
    if not all(bool(tensor.isfinite().all()) for tensor in total.values()):
        raise RunFailedError(
            "the gradient is not finite, so the loss has no shape to measure here; look at the model's "
            "training loss, and lower the learning rate"
        )
    return total, values.cpu()


def weight_norm(model: MaskedLM) -> float:
    """Return ‖θ‖ over the trainable parameters."""
    return norm(trainable(model))


def gradient_norm(model: MaskedLM, pool: Pool, *, batch: int = 64) -> float:
    """Return ‖∇L‖ of a pool in nats per unit of the parameters; dropout is off."""
    return norm(gradient_at(model, pool, trainable(model), batch=batch)[0])
