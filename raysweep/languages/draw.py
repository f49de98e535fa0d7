"""Random tables and draws from them, as pure functions of a seed.

Probability tables are quantised: Gamma variates are rounded to 24 bits of the row's largest before they are
normalised, so a difference in the last place between two machines' elementary functions does not reach the
table, and with it the fingerprint of a language.
"""

from __future__ import annotations

from copy import copy

import numpy as np
import torch
from torch import Tensor

from raysweep.seeding import uniforms

_STEPS = 2.0**24


def dirichlet(seed: int, purpose: str, rows: int, columns: int, concentration: float) -> np.ndarray:
    """Return float64 [rows, columns], each row from the symmetric Dirichlet distribution.

    A row is a vector of independent Gamma(concentration) variates over its sum (Devroye, "Non-Uniform Random
    Variate Generation", 1986, chapter XI.4); the variates come by inversion.  No entry is zero.
    """
    from scipy.special import gammaincinv  # takes a seventh of a second, and readers of results draw nothing

    u = uniforms(seed, purpose, torch.arange(rows), columns).numpy()
    gamma = gammaincinv(concentration, u)
    weights = np.maximum(np.rint(gamma / gamma.max(axis=1, keepdims=True) * _STEPS), 1.0)
    table: np.ndarray = weights / weights.sum(axis=1, keepdims=True)
    return table


def permutations(seed: int, purpose: str, rows: int, columns: int) -> np.ndarray:
    """Return int64 [rows, columns], each row a uniform permutation of 0 .. columns-1."""
    u = uniforms(seed, purpose, torch.arange(rows), columns).numpy()
    order: np.ndarray = np.argsort(u, axis=1, kind="stable")
    return order


class Categories:
    """Many categorical distributions, sampled together by inversion of their distribution functions.

    Entry k belongs to distribution `group[k]` with weight `weight[k]`.  A draw is a function of its uniform
    alone and costs one binary search; it is exact to the resolution of the uniforms.

    The entries of positive weight are kept, distribution by distribution: `entry`, their `group`, the upper
    `edges` of their intervals (distribution k divides [k, k+1)), and the `count` of each distribution.
    """

    def __init__(self, group: np.ndarray, weight: np.ndarray, groups: int) -> None:
        keep = weight > 0
        entry = np.nonzero(keep)[0]
        order = np.argsort(group[entry], kind="stable")
        self.entry = torch.from_numpy(entry[order])
        group, weight = group[entry][order], weight[entry][order].astype(np.float64)
        count = np.bincount(group, minlength=groups)
        first = np.cumsum(count) - count
        total = np.bincount(group, weights=weight, minlength=groups)
        # Normalised before they are summed, so that one running sum serves all groups without loss.
        running = np.cumsum(weight / total[group])
        before = np.concatenate([[0.0], running])[first]
        self.group = torch.from_numpy(group)
        self.count = torch.from_numpy(count)
        self.edges = torch.from_numpy(group + np.minimum(running - before[group], 1.0))
        self._last = torch.from_numpy(first + count - 1)

    @classmethod
    def of_rows(cls, table: np.ndarray) -> Categories:
        """Make one distribution per row of `table`; an entry is then row * columns + column."""
        rows, columns = table.shape
        return cls(np.repeat(np.arange(rows), columns), table.reshape(-1), rows)

    def draw(self, group: Tensor, uniform: Tensor) -> Tensor:
        """Return the entries drawn, int64, from distributions `group` with `uniform` in (0, 1).

        Both have the same shape.  The caller must not draw from a distribution without entries.
        """
        place = torch.searchsorted(self.edges, group + uniform, right=True)
        # Rounding may put a group's last edge just below the whole number where the group ends.
        return self.entry[torch.minimum(place, self._last[group])]

    def to(self, device: torch.device) -> Categories:
        """Return the same distributions on another device."""
        out = copy(self)
        for name, value in vars(self).items():
            setattr(out, name, value.to(device))
        return out
