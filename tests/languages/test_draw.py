"""Random tables and draws from them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from raysweep.languages.draw import Categories, dirichlet, permutations
from raysweep.seeding import uniforms


@pytest.mark.parametrize("concentration", [0.1, 1.0, 7.0])
def test_dirichlet_has_its_moments(concentration: float) -> None:
    rows, k = 20_000, 4
    table = dirichlet(3, "test", rows, k, concentration)
    assert table.min() > 0
    assert np.abs(table.sum(axis=1) - 1).max() < 1e-15 * 4
    # Mean 1/k, variance (k-1) / (k^2 (k concentration + 1)).
    variance = (k - 1) / (k**2 * (k * concentration + 1))
    z = (table.mean(axis=0) - 1 / k) / math.sqrt(variance / rows)
    assert np.abs(z).max() < 4.5
    squares = (table - 1 / k) ** 2
    z = (squares.mean(axis=0) - variance) / (squares.std(axis=0) / math.sqrt(rows))
    assert np.abs(z).max() < 4.5


def test_dirichlet_row_depends_on_its_number_alone() -> None:
    assert np.array_equal(dirichlet(1, "a", 5, 6, 0.5)[:3], dirichlet(1, "a", 3, 6, 0.5))
    assert not np.array_equal(dirichlet(1, "a", 5, 6, 0.5), dirichlet(1, "b", 5, 6, 0.5))


def test_permutations_are_uniform() -> None:
    orders = permutations(2, "test", 24_000, 4)
    assert (np.sort(orders, axis=1) == np.arange(4)).all()
    counts = np.unique(orders, axis=0, return_counts=True)[1]
    assert len(counts) == 24
    statistic = ((counts - 1000) ** 2 / 1000).sum()
    assert abs(statistic - 23) / math.sqrt(46) < 4.5


def test_categories_follow_their_weights() -> None:
    weights = np.array([[0.0, 2.0, 6.0, 0.0], [1.0, 0.0, 0.0, 3.0], [0.0, 0.0, 5.0, 0.0]])
    tables = Categories.of_rows(weights)
    n = 30_000
    for group in range(3):
        u = uniforms(1, "test", torch.arange(n), 1)[:, 0]
        drawn = tables.draw(torch.full((n,), group), u) - 4 * group
        share = np.bincount(drawn.numpy(), minlength=4) / n
        p = weights[group] / weights[group].sum()
        assert (share[p == 0] == 0).all()
        assert (np.abs(share - p) <= 4.5 * np.sqrt(p * (1 - p) / n)).all()


def test_categories_keep_within_their_group_at_the_ends() -> None:
    # Sums of n equal shares come out just below 1 for some n.
    for n in range(2, 200):
        tables = Categories.of_rows(np.full((2, n), 0.1))
        for u, last in ((2.0**-53, 0), (1 - 2.0**-53, n - 1)):
            drawn = tables.draw(torch.arange(2), torch.full((2,), u, dtype=torch.float64))
            assert drawn[0] == last
            # The second group's query is rounded to 2^-52 and may reach its end, never another group.
            assert drawn[1] == n + last
