"""Sharpness: how far the loss of a pool rises within a ball around the parameters.

    max_{‖δ‖ ≤ ρ} L(θ + T δ) − L(θ)

with T = 1 (Foret, Kleiner, Mobahi and Neyshabur, "Sharpness-aware minimization for efficiently improving
generalization", ICLR 2021) or, `adaptive`, T = diag|θ| (Kwon, Kim, Park and Choi, "ASAM: adaptive
sharpness-aware minimization for scale-invariant learning of deep neural networks", ICML 2021), whose value
does not change where scaling parameters leaves the network's function as it is (that paper's experiments add
0.01 to |θ|, with which it does change; here nothing is added, and a parameter of zero stays).

The maximum is sought on the sphere by δ ← ρ T∇L(θ + Tδ) / ‖T∇L(θ + Tδ)‖ from δ = 0: the first step is that of
the two papers, and where the gradient at θ vanishes, later ones are power iteration on the Hessian.  Every
point visited is a lower bound; the largest is the value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from raysweep import seeding
from raysweep.errors import ConfigError
from raysweep.flatness.curvature.loss import Point, gradient_at, losses_at, norm, trainable
from raysweep.flatness.pool import Pool
from raysweep.languages.base import Estimate
from raysweep.models.base import MaskedLM


@dataclass(frozen=True, kw_only=True)
class Sharpness:
    """The rise of the loss in nats.

    `rise` is the largest found, with its standard error over the pool's inputs at that point; `one_step` that
    of the first step, and `first_order` what the gradient alone predicts of it, ρ‖T∇L‖.
    """

    rise: Estimate
    one_step: Estimate
    first_order: float


def sharpness(
    model: MaskedLM,
    pool: Pool,
    *,
    radius: float = 0.05,
    steps: int = 4,
    adaptive: bool = False,
    seed: int = 0,
    batch: int = 64,
) -> Sharpness:
    """Measure the sharpness of a pool's loss at a model, which is left as it is; dropout is off.

    `radius` is ρ, `steps` the number of steps, each a gradient of the whole pool.  Where the gradient is zero
    to the last digit, a random direction of `seed` takes its place.  Raises `ConfigError` for a radius or
    steps that make no sense, `RunFailedError` where the gradient is not finite.
    """
    if not radius > 0 or steps < 1:
        raise ConfigError(
            f"radius={radius}, steps={steps}: the radius must be positive, the steps at least 1"
        )
    here = trainable(model)
    scale = {name: p.abs() if adaptive else torch.ones_like(p) for name, p in here.items()}
    point, rises = here, []
    start = losses_at(model, pool, here, batch=batch)
    first_order = 0.0
    for step in range(steps):
        gradient, _ = gradient_at(model, pool, point, batch=batch)
        uphill = {name: scale[name] * gradient[name] for name in here}
        length = norm(uphill)
        if step == 0:
            first_order = radius * length
        if length == 0.0:
            uphill = _random(scale, seed)
            length = norm(uphill)
        point = {name: here[name] + scale[name] * uphill[name] * (radius / length) for name in here}
        rises.append(Estimate.of(losses_at(model, pool, point, batch=batch) - start))
    return Sharpness(rise=max(rises, key=lambda rise: rise.value), one_step=rises[0], first_order=first_order)


def _random(like: Point, seed: int) -> Point:
    """Return a direction of random signs in the coordinates δ, the same on every device."""
    found = {}
    for name, tensor in like.items():
        drawn = seeding.signs(seed, f"sharpness/{name}", torch.zeros(1, dtype=torch.int64), tensor.numel())
        found[name] = drawn.to(tensor).view_as(tensor)
    return found
