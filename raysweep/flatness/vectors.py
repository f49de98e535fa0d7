"""Test vectors: cotangents v of the logits with E‖Jᵀv‖² = Tr F.

At one input, let p = softmax(z) over the V classes, J = ∂z/∂θ and

    Tr F = E_{y~p} ‖∇_θ log p_y‖² = Tr Jᵀ(diag p − ppᵀ)J .

With L = (I − p1ᵀ) diag(√p), LLᵀ = diag p − ppᵀ, so any r with E rrᵀ = I gives E‖JᵀLr‖² = Tr F.

- `rademacher`: v = Lr with random signs r, that is u = √p∘r and v = u − p·Σu.  The relative variance of the
  estimate is at most 2 for every p and J.
- `gaussian`: the same with standard normal r; at most 2 as well, and never below that of signs.
- `label`: v = e_y − p with y ~ p, the form of Liu et al. (ICML 2023), appendix B.1.  Its relative variance
  has no bound for a confident p.
- `exact`: the V vectors √p_c (e_c − p), whose squared norms sum to Tr F: no randomness, V backward passes.

At an input with several masked positions every position has its own p and vector, drawn independently, and
one backward pass takes them all: the cross terms vanish in the mean, so that E‖Σ_t J_tᵀv_t‖² = Σ_t Tr F_t,
and the bound of 2 holds for the sum.  `exact` takes the positions one after the other.

Randomness is keyed by (seed, input number), and does not depend on what else is in the batch, so two models
are compared on common random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from raysweep import seeding
from raysweep.errors import ConfigError
from raysweep.seeding import derive

Vectors = Literal["rademacher", "gaussian", "label", "exact"]


@dataclass(frozen=True, kw_only=True)
class Drawing:
    """The way in which test vectors are drawn: `draws` vectors of a `kind`, keyed by `seed`.

    Inputs are numbered from `start`.  Equal drawings of equal inputs have equal random numbers.
    """

    kind: Vectors
    draws: int
    seed: int
    start: int

    def count(self, logits: Tensor) -> int:
        """Return the number of vectors at each of the inputs with logits [B, V] or [B, m, V]."""
        return math.prod(logits.shape[1:]) if self.kind == "exact" else self.draws

    def vectors(
        self, logits: Tensor, index: Tensor, real: Tensor | None = None
    ) -> Iterator[tuple[Tensor, float]]:
        """Yield the vectors of `cotangents`, each with its weight."""
        return cotangents(logits, index, kind=self.kind, seed=self.seed, draws=self.draws, real=real)


def check_vectors(kind: str) -> None:
    """Raise `ConfigError` for an unknown kind."""
    if kind not in get_args(Vectors):
        raise ConfigError(f"vectors={kind!r}: use one of {', '.join(get_args(Vectors))}")


def draw_seed(seed: int, draw: int) -> int:
    """Return the seed of one draw's signs or normal numbers."""
    return seed if draw == 0 else derive(seed, "draw", draw)


def cotangents(
    logits: Tensor, index: Tensor, *, kind: Vectors, seed: int, draws: int, real: Tensor | None = None
) -> Iterator[tuple[Tensor, float]]:
    """Yield pairs (v, weight), v shaped as `logits`: Σ weight·‖Jᵀv‖² estimates Tr F at each input.

    `logits` are [B, V], or [B, m, V] with `real` [B, m] False where there is no position; `index` [B] numbers
    the inputs.  `draws` is the number of random vectors an input; `exact` takes none, and is Tr F itself.
    """
    z = logits if logits.dim() == 3 else logits[:, None]
    z = z if z.dtype == torch.float64 else z.float()
    p = z.softmax(dim=-1)
    if real is not None:
        # Without probabilities, vectors are 0 at places that hold no position.
        p = p * real[:, :, None]
    made = _exact(p) if kind == "exact" else _drawn(p, index, kind, seed, draws)
    for v, weight in made:
        yield v.to(logits.dtype).view_as(logits), weight


def _exact(p: Tensor) -> Iterator[tuple[Tensor, float]]:
    for slot in range(p.shape[1]):
        for c in range(p.shape[2]):
            v = torch.zeros_like(p)
            root = p[:, slot, c].sqrt()
            v[:, slot] = -p[:, slot] * root[:, None]
            v[:, slot, c] += root
            yield v, 1.0


def _drawn(p: Tensor, index: Tensor, kind: str, seed: int, draws: int) -> Iterator[tuple[Tensor, float]]:
    """Yield random vectors; they are drawn slot by slot, so that more slots in a batch change none."""
    rows, slots, classes = p.shape
    if kind == "label":
        levels = seeding.uniforms(seed, "test-label", index, slots * draws).view(rows, slots, draws)
        total = p.double().cumsum(dim=-1)
        # Rounding may leave the last sum below 1, so levels are scaled to that sum.
        labels = torch.searchsorted(total, levels * total[:, :, -1:]).clamp_(max=classes - 1)
        there = total[:, :, -1:].gt(0).to(p)
        for y in labels.unbind(2):
            yield (-p).scatter_add(2, y[:, :, None], there), 1.0 / draws
        return
    root = p.sqrt()
    for draw in range(draws):
        # One at a time, because all of them do not fit into memory with a large vocabulary.
        own = draw_seed(seed, draw)
        if kind == "gaussian":
            levels = seeding.uniforms(own, "test-normal", index, slots * classes)
            r = torch.special.ndtri(levels).to(p)
        else:
            r = seeding.signs(own, "test-vector", index, slots * classes).to(p)
        u = root * r.view(rows, slots, classes)
        yield u - p * u.sum(dim=-1, keepdim=True), 1.0 / draws
