"""Attention on processors by its kernels, beside the same in float64, for all sizes of sentence and head."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from raysweep.models.dropout import LEVELS
from raysweep.models.fused import attention
from raysweep.models.fused.products import array, tensor

Array = NDArray[np.float64]

#: Words of the sentences of a chunk; their order does not matter to the kernels.
LENGTHS = {"short": [1, 2, 5, 8, 16], "long": [33, 1, 17, 256, 3, 16]}
KEY = np.uint64(7)
STRIDE = 64


def masks(words: NDArray[np.int64], heads: int, longest: int, cut: int) -> Array:
    """Return the factors of dropout [words, heads, longest], from the formula of `draw`, one by one."""

    def mixed(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) % 2**64
        return x ^ (x >> 31)

    found = np.ones((len(words), heads, longest))
    for i, word in enumerate(words.tolist() if cut else []):
        for h in range(heads):
            for j in range(longest):
                number = (word * heads + h) * STRIDE + j // 4 + 1
                level = mixed((int(KEY) + number * 0x9E3779B97F4A7C15) % 2**64) >> 16 * (j % 4) & 0xFFFF
                found[i, h, j] = LEVELS / (LEVELS - cut) if level >= cut else 0.0
    return found


@pytest.mark.parametrize("cut", [0, 6554, 40_000])
@pytest.mark.parametrize("asks", ["all", "some"])
@pytest.mark.parametrize(("heads", "width"), [(2, 16), (1, 5), (2, 20), (1, 64)])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_and_its_gradient(
    dtype: torch.dtype, lengths: str, heads: int, width: int, asks: str, cut: int
) -> None:
    """Queries are all words, or some of each sentence: none, one, or more than a vector holds."""
    sizes, D = np.array(LENGTHS[lengths]), heads * width
    some = np.minimum(sizes, np.array([1, 0, 3, 17, 2, 1])[: len(sizes)])
    counts = sizes if asks == "all" else some
    starts, asking = (np.concatenate([[0], n.cumsum()]) for n in (sizes, counts))
    longest = int(sizes.max())
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> NDArray[np.float32]:
        return random.standard_normal(shape).astype(np.float32)

    low = [
        torch.from_numpy(drawn(rows, n)).to(dtype)
        for rows, n in ((asking[-1], D), (asking[-1], D), (starts[-1], 2 * D))
    ]
    queries, d_out, keys = (x.float().numpy() for x in low)
    of_queries, of_out, of_keys = map(array, low)
    q_shift, k_shift = drawn(D), drawn(2 * D)
    place = random.permutation(1000)[: asking[-1]]
    arguments = (
        of_queries, q_shift, of_keys, k_shift, 0, starts, asking, longest, heads, place, KEY, cut, STRIDE,
    )  # fmt: skip
    out, d_queries, d_keys = np.empty_like(of_queries), np.empty_like(of_queries), np.empty_like(of_keys)
    d_q_shift, d_k_shift = np.ones_like(q_shift), np.ones_like(k_shift)
    attention.attend(*arguments, out)
    nothing = np.zeros(D, dtype=np.float32)
    attention.attend_backward(*arguments, of_out, nothing, d_queries, d_keys, d_q_shift, d_k_shift)

    kept = masks(place, heads, longest, cut)
    wanted = [np.zeros(x.shape) for x in (out, d_queries, d_keys)]
    for s, words in enumerate(sizes):
        rows, asked = slice(starts[s], starts[s + 1]), slice(asking[s], asking[s + 1])
        for h in range(heads):
            c, v = slice(h * width, (h + 1) * width), slice(D + h * width, D + (h + 1) * width)
            q, e = (queries + q_shift)[asked, c].astype(float), d_out[asked, c].astype(float)
            k, x = ((keys + k_shift)[rows, columns].astype(float) for columns in (c, v))
            p = np.exp(q @ k.T / np.sqrt(width))
            p /= p.sum(axis=1, keepdims=True)
            m = kept[asked, h, :words]
            wanted[0][asked, c] = (m * p) @ x
            slopes = (e @ x.T) * m
            slopes = p * (slopes - (slopes * p).sum(axis=1, keepdims=True)) / np.sqrt(width)
            wanted[1][asked, c] = slopes @ k
            wanted[2][rows, c], wanted[2][rows, v] = slopes.T @ q, (m * p).T @ e
    rounding = 1e-4 if dtype == torch.float32 else 2**-8
    for found, expected in zip((out, d_queries, d_keys), wanted, strict=True):
        np.testing.assert_allclose(tensor(found).float().numpy(), expected, rtol=rounding, atol=2e-5)
    for shift, expected in ((d_q_shift, wanted[1]), (d_k_shift, wanted[2])):
        np.testing.assert_allclose(shift - 1, expected.sum(axis=0), rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("cut", [0, 6554, 40_000])
@pytest.mark.parametrize(("heads", "width"), [(2, 16), (1, 5), (4, 10), (3, 12), (17, 2)])
@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_words_are_gathered_as_the_equations_say(
    dtype: torch.dtype, lengths: str, heads: int, width: int, cut: int
) -> None:
    sizes, D = np.array(LENGTHS[lengths]), heads * width
    counts = np.minimum(sizes, np.array([1, 0, 3, 5, 2, 1])[: len(sizes)])
    starts, asking = (np.concatenate([[0], n.cumsum()]) for n in (sizes, counts))
    M, longest, random = asking[-1], int(sizes.max()), np.random.default_rng(0)
    low = [
        torch.from_numpy(scale * random.standard_normal((rows, D)).astype(np.float32)).to(dtype)
        for scale, rows in ((0.3, M * heads), (1, starts[-1]), (1, M * heads))
    ]
    reach, y, d_mix = (x.double().numpy() for x in low)
    of_reach, of_y, of_mix = map(array, low)
    d_sums = random.standard_normal((M, heads)).astype(np.float32)
    place, nothing = random.permutation(1000)[:M], np.zeros(D, dtype=np.float32)
    arguments = of_reach, nothing, of_y, starts, asking, longest, heads, place, KEY, cut, STRIDE
    mix, sums, d_reach, d_y = (np.empty_like(x) for x in (of_reach, d_sums, of_reach, of_y))
    attention.gather(*arguments, mix, sums)
    attention.gather_backward(*arguments, of_mix, d_sums, d_reach, d_y)

    kept = masks(place, heads, longest, cut)
    wanted = [np.zeros(x.shape) for x in (mix, d_reach, d_y)]
    wanted_sums = np.zeros(sums.shape)
    for s, words in enumerate(sizes):
        rows = slice(starts[s], starts[s + 1])
        for m in range(asking[s], asking[s + 1]):
            for h in range(heads):
                row = m * heads + h
                p = np.exp(y[rows] @ reach[row] / np.sqrt(width))
                p /= p.sum()
                factors = kept[m, h, :words]
                wanted[0][row], wanted_sums[m, h] = (factors * p) @ y[rows], (factors * p).sum()
                slopes = (y[rows] @ d_mix[row] + d_sums[m, h]) * factors
                slopes = p * (slopes - slopes @ p) / np.sqrt(width)
                wanted[1][row] = slopes @ y[rows]
                wanted[2][rows] += np.outer(slopes, reach[row]) + np.outer(factors * p, d_mix[row])
    rounding = 1e-4 if dtype == torch.float32 else 2**-8
    np.testing.assert_allclose(sums, wanted_sums, rtol=1e-5)
    for found, expected in zip((mix, d_reach, d_y), wanted, strict=True):
        np.testing.assert_allclose(tensor(found).float().numpy(), expected, rtol=rounding, atol=5e-5)


def test_nan_stays_in_its_sentence() -> None:
    starts = np.array([0, 20, 23, 40])
    x = np.random.default_rng(0).standard_normal((40, 48)).astype(np.float32)
    x[3] = np.nan
    zero, out = np.zeros(48, dtype=np.float32), np.empty((40, 16), dtype=np.float32)
    attention.attend(x, zero, x, zero, 16, starts, starts, 20, 1, np.arange(40), KEY, 0, STRIDE, out)
    assert np.isnan(out[:20]).all()
    assert np.isfinite(out[20:]).all()
    reach, sums = np.ones((3, 48), dtype=np.float32), np.zeros((3, 1), dtype=np.float32)
    mix, d_reach, d_x = np.empty_like(reach), np.empty_like(reach), np.empty_like(x)
    arguments = reach, zero, x, starts, np.arange(4), 20, 1, np.arange(3), KEY, 0, STRIDE
    attention.gather(*arguments, mix, sums)
    attention.gather_backward(*arguments, reach, np.zeros_like(sums), d_reach, d_x)
    assert all(np.isnan(found).all() for found in (mix[0], sums[0], d_reach[0], d_x[:20]))
    assert all(np.isfinite(found).all() for found in (mix[1:], sums[1:], d_reach[1:], d_x[20:]))


def test_weights_of_huge_scores_are_finite() -> None:
    """A training that diverges has such scores for a while."""
    x = np.full((3, 48), 1e10, dtype=np.float32)
    x[:, 32:] = 1.0
    zero, out = np.zeros(48, dtype=np.float32), np.empty((3, 16), dtype=np.float32)
    starts = np.array([0, 3])
    attention.attend(x, zero, x, zero, 16, starts, starts, 3, 1, np.arange(3), KEY, 0, STRIDE, out)
    np.testing.assert_allclose(out, 1.0, rtol=1e-6)
