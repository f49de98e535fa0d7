"""Norms of sums over words, by compiled kernels and by sums of float64 matrices."""

import itertools

import numpy as np
import pytest

from raysweep.flatness.fused import kernels

LENGTHS = [1, 2, 3, 4, 5, 16, 1, 33]
STARTS = np.concatenate([[0], np.cumsum(LENGTHS)])


@pytest.fixture
def rows():
    generator = np.random.default_rng(0)
    # An offset, so that the sum over words is not just the diagonal of their Gram matrix.
    return lambda count, width: (generator.standard_normal((count, width)) + 0.3).astype(np.float32)


def squares(d, a):
    """Return ‖Σ d aᵀ‖² of each sentence."""
    d, a = d.astype(np.float64), a.astype(np.float64)
    return np.array([((d[i:j].T @ a[i:j]) ** 2).sum() for i, j in itertools.pairwise(STARTS)])


# Narrower than a vector, of vectors alone and with a rest, by four and more; either side the narrower.
@pytest.mark.parametrize(
    ("inputs", "parts", "width"),
    [
        (5, 3, 20),
        (20, 1, 5),
        (64, 3, 64),
        (64, 1, 256),
        (256, 1, 64),
        (16, 1, 16),
        (100, 2, 72),
        (300, 2, 90),
    ],
)
def test_weights_and_biases(rows, inputs, parts, width):
    a, d = rows(STARTS[-1], inputs), rows(STARTS[-1], parts * width)
    weight, bias = np.full((2, parts, len(LENGTHS)), np.nan)
    kernels.matrix(a, d, STARTS, weight, bias)
    for c in range(parts):
        part = d[:, c * width : (c + 1) * width]
        np.testing.assert_allclose(weight[c], squares(part, a), rtol=1e-5)
        np.testing.assert_allclose(bias[c], squares(part, np.ones_like(a[:, :1])), rtol=1e-5)


@pytest.mark.parametrize(("inputs", "hidden"), [(6, 3), (64, 32), (72, 36)])
def test_recurrences(rows, inputs, hidden):
    words = STARTS[-1]
    places = np.random.default_rng(1).permutation(words)
    # Of the fifth sentence nothing is read, of the last but the first words.
    unread = np.zeros(words, dtype=bool)
    unread[STARTS[4] : STARTS[5]] = unread[STARTS[7] + 10 :] = True
    z, d = rows(words, inputs + hidden), rows(words, 4 * hidden)
    norms = np.zeros((3, len(LENGTHS)))
    kernels.recurrence(z, d, np.where(unread, -1, places), STARTS, inputs, norms)
    z, d = z[places], np.where(unread[:, None], np.float32(0), d[places])
    truth = [squares(d, z[:, :inputs]), squares(d, z[:, inputs:]), squares(d, np.ones_like(z[:, :1]))]
    np.testing.assert_allclose(norms, truth, rtol=1e-5)
    assert norms[:, 4].tolist() == [0, 0, 0]
