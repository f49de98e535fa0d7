"""Sums over draws, against all draws at once."""

import pytest
import torch

from raysweep.flatness.trace.draws import Draws


@pytest.mark.parametrize("statistics", [0, 3])
def test_sums_are_those_of_all_draws_at_once(statistics):
    generator = torch.Generator().manual_seed(0)
    norms = torch.rand(6, 5, 2, generator=generator, dtype=torch.float64)
    known = torch.randn(6, 5, statistics, generator=generator, dtype=torch.float64)
    sums = Draws(5, 2, statistics, torch.device("cpu"), several=True)
    for k in range(6):
        for rows in torch.tensor([3, 0]), torch.tensor([1, 4, 2]):
            sums.add(rows, 1 / 6, norms[k, rows], known[k, rows] if statistics else None)
    torch.testing.assert_close(sums.values, norms.mean(dim=0))
    torch.testing.assert_close(sums.statistics, known.mean(dim=0))
    told = torch.cat([norms.sum(dim=2, keepdim=True), known], dim=2)
    truth = torch.stack([told[:, row].T.cov().reshape(1 + statistics, -1) / 6 for row in range(5)])
    torch.testing.assert_close(sums.spread, truth)


def test_one_draw_has_no_spread():
    sums = Draws(2, 3, 1, torch.device("cpu"), several=False)
    sums.add(torch.arange(2), 1.0, torch.ones(2, 3).double(), torch.zeros(2, 1).double())
    assert sums.spread is None
    assert sums.values.eq(1).all()
