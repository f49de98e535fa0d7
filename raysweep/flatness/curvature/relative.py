"""Two measures of flatness in which a parameter counts by its size.

Scaled trace: the trace of the Fisher matrix with respect to relative changes of the parameters,

    Σ_i θ_i² F_ii = Tr diag(θ) F diag(θ),

which is that of log|θ|.  Where scaling some parameters by c and others by 1/c leaves the network's function
as it is, F_ii changes by 1/c² and c²: the trace of F can be made as large as one likes (Dinh, Pascanu, Bengio
and Bengio, "Sharp minima can generalize for deep nets", ICML 2017), this sum stays (see Tsuzuku, Sato and
Sugiyama, "Normalized flat minima", ICML 2020).

Fisher-Rao norm: θᵀFθ, the squared change of the model's predictions under scaling all parameters alike
(Liang, Poggio, Rakhlin and Stokes, "Fisher-Rao metric, geometry, and complexity of neural networks",
AISTATS 2019).

With F = E Jᵀ(diag p − ppᵀ)J both are means over inputs of żᵀ(diag p − ppᵀ)ż = Var_{w~p}(ż_w), the variance
under the model's prediction of the logits' derivative ż along a direction (raysweep.flatness.directions): θ
itself for the Fisher-Rao norm, exactly; θ with random signs, one set an input, for the scaled trace.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysweep.flatness.directions import Directions
from raysweep.flatness.evaluating import evaluating
from raysweep.flatness.pool import Pool
from raysweep.models.base import MaskedLM


def scaled_traces(model: MaskedLM, pool: Pool, *, seed: int = 0, start: int = 0, batch: int = 64) -> Tensor:
    """Return an unbiased value [n] of Σθ²F_ii at each input of a pool, float64 on the CPU; dropout is off.

    Input i's signs are keyed by (seed, start + i).  Frozen parameters have no part.
    """
    return _variances(Directions(model, seed=seed, scaled=True), pool, start, batch)


def fisher_rao_norms(model: MaskedLM, pool: Pool, *, batch: int = 64) -> Tensor:
    """Return θᵀFθ [n] at each input of a pool, float64 on the CPU; dropout is off, nothing is random."""
    return _variances(Directions(model, scaled=True, random=False), pool, 0, batch)


def _variances(directions: Directions, pool: Pool, start: int, batch: int) -> Tensor:
    values = torch.empty(len(pool), dtype=torch.float64, device=pool.masked.device)
    index = torch.arange(start, start + len(pool), device=pool.masked.device)
    with evaluating(directions.model):
        for rows, ids, positions in pool.batches(batch):
            logits, slopes = directions.first(ids, positions, index[rows])
            p, slopes = logits.double().softmax(dim=-1), slopes.double()
            mean = (p * slopes).sum(dim=-1, keepdim=True)
            values[rows] = (p * (slopes - mean).square()).sum(dim=-1)
    return values.cpu()
