"""What an inside-outside pass over sentences of n words has to do, worked out once per grammar and length.

Symbol A is *active* at width w where it derives w words in some sentence of n words below one of the symbols
wanted at the top; everything else is zero and is neither stored nor computed.  The rules used at a width are
held as their distinct pairs (B, C), sorted so that pairs of the same feasible splits u | w-u are contiguous:

    P[q] = sum_u I_u[B_q] I_{w-u}[C_q],      I_w = R P,      R[A, q] = p(A -> B_q C_q)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.pcfg.grammar import Grammar


@dataclass(frozen=True)
class Split:
    """Pairs `first:last` of a width, cut after `u` words; `left`, `right` are rows of widths u and w-u."""

    u: int
    first: int
    last: int
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class Width:
    """Work at one width: `rules` [A, Q] and the splits of its pairs."""

    w: int
    rules: Tensor
    splits: tuple[Split, ...]


@dataclass(frozen=True)
class Plan:
    """A pass over sentences of `n` words: `active[w]` are the symbols stored at width w, ascending."""

    n: int
    active: tuple[Tensor, ...]
    widths: tuple[Width, ...]
    #: Numbers held per sentence by one pass, both charts together.
    elements: int
    dtype: torch.dtype


def feasible(grammar: Grammar, longest: int) -> np.ndarray:
    """Return boolean [longest+1, N]: symbol A derives some string of w words."""
    N = len(grammar.symbols)
    live = grammar.probability > 0
    a, b, c = grammar.parent[live], grammar.left[live], grammar.right[live]
    can = np.zeros((longest + 1, N), dtype=bool)
    can[1:2] = grammar.emission.any(axis=1)
    for w in range(2, longest + 1):
        both = (can[1:w, b] & can[w - 1 : 0 : -1, c]).any(axis=0)
        can[w, a[both]] = True
    return can


def make_plan(
    grammar: Grammar,
    can: np.ndarray,
    n: int,
    top: np.ndarray,
    device: torch.device,
    dtype: torch.dtype,
    shared: dict[bytes, Tensor],
) -> Plan | None:
    """Plan a pass with the symbols `top` (boolean [N]) over n words; None where none of them derives n words.

    `can` is `feasible` for at least n words.  `shared` holds the rules of the grammar's earlier
    plans on this device and in this dtype: in a dense grammar nearly all widths of all plans have the same.
    """
    N = len(grammar.symbols)
    live = grammar.probability > 0
    a, b, c, p = (x[live] for x in (grammar.parent, grammar.left, grammar.right, grammar.probability))
    active = np.zeros((n + 1, N), dtype=bool)
    active[n] = top & can[n]
    if not active[n].any():
        return None
    for w in range(n, 1, -1):
        mine = active[w][a]
        x, y = b[mine], c[mine]
        for u in range(1, w):
            both = can[u][x] & can[w - u][y]
            active[u, x[both]] = True
            active[w - u, y[both]] = True
    row_of: np.ndarray = np.cumsum(active, axis=1) - 1
    widths = []
    most = 0
    for w in range(2, n + 1):
        if not active[w].any():
            continue
        mine = active[w][a]
        pairs, pair = np.unique(b[mine] * N + c[mine], return_inverse=True)
        left, right = pairs // N, pairs % N
        cuts = np.arange(1, w)
        fits: np.ndarray = np.logical_and(can[cuts][:, left], can[w - cuts][:, right])
        # Pairs of one signature of feasible cuts stand together, so that a cut takes contiguous rows.
        kinds, kind = np.unique(fits, axis=1, return_inverse=True)
        kind = kind.reshape(-1)
        order = np.argsort(kind, kind="stable")
        possible = np.asarray(kinds.any(axis=0))
        order = order[possible[kind[order]]]
        rank = np.full(len(pairs), -1)
        rank[order] = np.arange(len(order))
        used = rank[pair] >= 0
        rules = np.zeros((int(active[w].sum()), len(order)))
        np.add.at(rules, (row_of[w][a[mine][used]], rank[pair[used]]), p[mine][used])
        splits = []
        for k in range(kinds.shape[1]):
            block = np.nonzero(kind[order] == k)[0]
            for u in cuts[kinds[:, k]]:
                chosen = order[block[0] : block[-1] + 1]
                rows = (row_of[u][left[chosen]], row_of[w - u][right[chosen]])
                splits.append(
                    Split(
                        int(u),
                        int(block[0]),
                        int(block[-1]) + 1,
                        *(torch.from_numpy(index).to(device) for index in rows),
                    )
                )
        key = repr(rules.shape).encode() + hashlib.sha256(rules.tobytes()).digest()
        if key not in shared:
            shared[key] = torch.from_numpy(rules).to(device, dtype)
        widths.append(Width(w, shared[key], tuple(splits)))
        most = max(most, len(order) * (n - w + 1))
    cells = sum(int(active[w].sum()) * (n - w + 1) for w in range(1, n + 1))
    return Plan(
        n=n,
        active=tuple(torch.from_numpy(np.nonzero(row)[0]).to(device) for row in active),
        widths=tuple(widths),
        elements=2 * cells + 3 * most,
        dtype=dtype,
    )
