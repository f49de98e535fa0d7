"""The drift of a saturated model by the noise of SGD: an ODE along the minimisers, and SGD itself.

Let Γ be the minimisers of L(θ) = −E log f_θ(y | x), where f is the truth.  From a point of Γ, SGD with rate η
and batches of B fresh samples is at step k = t/η², as η → 0, where at time t the solution is of

    dθ/dt = − 1/(4B) · P(θ) ∇ Tr[∇²L(θ)]                                                              (1)

with P the projection onto the tangent vectors of Γ (Liu, Xie, Li and Ma, "Same pre-training loss, better
downstream", ICML 2023, theorem 3.3, from Li, Wang and Arora, "What happens after SGD reaches zero loss?",
ICLR 2022).  Two cases show that the constant is right.

*A valley.*  Let L = h(y)x²/2, with gradient noise of covariance h(y)/B along x, as lemma 3.2 has it.  Then
x' = (1 − ηh)x + η√(h/B)ξ has the variance η/(2B) up to O(η²), so the mean step of y is −η h'(y) E x²/2 =
−η² h'(y)/(4B); and the trace on Γ is h.

*Two factors.*  Let the logit of a coin be ab, with truth ab = z and c = p(1 − p).  The gradient is g·(b, a),
g the mean of p − y over the batch, and E g² = c/B on Γ.  A step multiplies D = a² − b² by 1 − η²g², exactly,
so D falls as exp(−ct/B).  On Γ the trace is c(a² + b²) = c√(D² + 4z²), and (1) gives dD/dt = −cD/B as well.

At a finite rate SGD differs from (1) by terms in η: the weights are off Γ by a distance of √(η/2B) in each
direction with slope, and in one of curvature λ they take a time of η/(2λ) to get there.  What is observed is
the trace at the point of Γ that Gauss-Newton steps of least norm reach from the weights of SGD.  (The proof
uses the limit of the gradient flow instead; the two differ by O(η) at every time.)

>>> weights, truth = torch.ones(1, dtype=torch.float64), torch.full((1, 2), 0.5, dtype=torch.float64)
>>> def coin(theta): return torch.stack([theta.prod(), theta[0] * 0]).log_softmax(0)[None]
>>> start = torch.tensor([2.0, 0.0], dtype=torch.float64)
>>> valley = Valley(coin, weights, truth)
>>> [round(trace, 4) for trace in descend(valley, start, torch.tensor([0.0, 4.0])).tolist()]
[1.0, 0.3679]
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.theory.valley import Valley
from raysweep.seeding import uniforms

#: Relative error of the ODE's solution in a step.
_PRECISION = 1e-5

#: Share of the trace below which a fall along the ODE's solution may be the solver's error.
RESOLUTION = 100 * _PRECISION

#: SGD steps whose random numbers are made at once.
_CHUNK = 64


def descend(valley: Valley, theta: Tensor, times: Tensor) -> Tensor:
    """Return Tr F [len(times)] along the solution of (1) with B = 1 from a point of Γ [p].

    `times` ascend from 0 on; for another B ask for t/B.  Raises `RunFailedError` where the solver gives up.
    """
    traces, now = [], 0.0
    for time in times.tolist():
        if time > now:
            theta, now = valley.saturate(_follow(valley, theta, time - now)), time
        traces.append(valley.trace(theta))
    return torch.stack(traces)


def _follow(valley: Valley, theta: Tensor, time: float) -> Tensor:
    from scipy.integrate import solve_ivp  # takes a third of a second, and reports follow nothing

    def slope(_: float, y: np.ndarray) -> np.ndarray:
        return (-0.25 * valley.tangent_slope(torch.from_numpy(y))).numpy()

    found = solve_ivp(slope, (0.0, time), theta.numpy(), rtol=_PRECISION, atol=_PRECISION * 1e-3)
    if not found.success:
        raise RunFailedError(f"the ODE of the descent was not solved: {found.message}")
    return torch.from_numpy(found.y[:, -1].copy())


def noisy_descent(
    valley: Valley,
    theta: Tensor,
    times: Tensor,
    settings: Sequence[tuple[float, int]],
    *,
    replicates: range,
    seed: int,
) -> tuple[Tensor, Tensor]:
    """Run SGD from a point of Γ [p] at all (lr, batch) of `settings`, side by side.

    Return traces and excess losses in nats [len(settings), len(replicates), len(times)].  Step k is at time
    k·lr²; `times` ascend and are rounded to steps.  Each of the replicates draws its own samples, keyed by
    (seed, lr, batch, step, its number), from the whole population: what a setting gives does not depend on
    the others.  The trace is that at the nearby point of Γ, the excess loss that of the weights themselves.

    Raises `RunFailedError` where SGD leaves the valley, `ConfigError` for a rate or batch that is not
    positive.
    """
    for lr, batch in settings:
        if not (lr > 0 and batch > 0):
            raise ConfigError(f"lr={lr}, batch={batch}: both must be positive")
    # Steps at which a setting is looked at, by its time.
    looks = [[round(time / lr**2) for time in times.tolist()] for lr, _ in settings]
    runs = [theta.expand(len(replicates), -1) for _ in settings]
    found = torch.empty(2, len(settings), len(replicates), len(times), dtype=theta.dtype)
    done = 0
    for stop in sorted(set().union(*looks)):
        # A setting behind its last look is not run on.
        going = [k for k, steps in enumerate(looks) if steps[-1] >= stop]
        chosen = [settings[k] for k in going]
        moved = _walk(valley, [runs[k] for k in going], chosen, range(done, stop), replicates, seed)
        for k, rows in zip(going, moved, strict=True):
            runs[k] = rows
            if not bool(rows.isfinite().all()):
                raise _diverged(settings[k], stop)
            due = [place for place, step in enumerate(looks[k]) if step == stop]
            if due:
                traces, losses = valley.trace(valley.saturate(rows)), valley.excess_loss(rows)
                found[:, k][:, :, due] = torch.stack([traces, losses])[:, :, None]
        done = stop
    return found[0], found[1]


def _walk(
    valley: Valley,
    runs: Sequence[Tensor],
    settings: Sequence[tuple[float, int]],
    steps: range,
    replicates: range,
    seed: int,
) -> Sequence[Tensor]:
    """Return `runs`, [len(replicates), p] each, after the steps numbered `steps`, which all take together."""
    joint = (valley.weights[:, None] * valley.truth).flatten().cumsum(0)
    joint = joint / joint[-1]
    rows = torch.cat(list(runs))
    rates = torch.tensor([lr for lr, _ in settings], dtype=rows.dtype)
    rates = rates.repeat_interleave(len(replicates))[:, None]
    for first in steps[::_CHUNK]:
        index = torch.arange(first, min(first + _CHUNK, steps.stop))
        drawn = [_shares(joint, index, lr, batch, replicates, seed) for lr, batch in settings]
        for share in torch.cat(drawn, dim=1):
            rows = rows - rates * valley.loss_slopes(rows, share.view(-1, *valley.truth.shape))
    return rows.split(len(replicates))


def _shares(joint: Tensor, index: Tensor, lr: float, batch: int, replicates: range, seed: int) -> Tensor:
    """Return the share of each input and word in a step's batch [len(index), len(replicates), NV]."""
    draws = uniforms(
        seed, f"descent/{lr!r}/{batch}", index, len(replicates) * batch, start=replicates.start * batch
    )
    drawn = torch.searchsorted(joint, draws).clamp_(max=len(joint) - 1).view(len(index), -1, batch)
    shares = torch.zeros(*drawn.shape[:2], len(joint), dtype=joint.dtype)
    return shares.scatter_add_(2, drawn, torch.full(drawn.shape, 1 / batch, dtype=joint.dtype))


def _diverged(setting: tuple[float, int], step: int) -> RunFailedError:
    lr, batch = setting
    return RunFailedError(
        f"SGD with lr {lr:g} and batches of {batch} diverges within {step} steps; "
        "lower lr or enlarge the batch"
    )


def stationary_loss(trace: float, *, lr: float, batch: int) -> float:
    """Return the excess loss in nats that SGD's noise holds up at a small rate: η·Tr ∇²L/(4B).

    In each direction with curvature λ the weights vary by η/(2B) about Γ, which costs λ/2 times as much.
    """
    return lr * trace / (4 * batch)
