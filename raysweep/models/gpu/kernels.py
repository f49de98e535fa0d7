"""Kernels for training encoders on a GPU: all work between two matrix products, one pass over memory each.

They are written in Triton (Tillet, Kung and Cox, "Triton: an intermediate language and compiler for tiled
neural network computations", MAPL 2019).  Arithmetic is float32; factors of products are bfloat16.  Sums over
words are partial sums of a fixed number of programs, added in a fixed order, so two trainings are bitwise
equal on one kind of GPU.

Dropout is keyed: element i of site k is kept where hash(i, k, key) >= p 2^32.  With h the bijection `_mixed`
of 32 bits (Wellons, "Prospecting for hash functions", 2018) and (low, high) the halves of the 64-bit key,

    a = h(low + c k),    b = h(high ^ a),    hash = h(h(i + a) ^ b),    c = 0x9e3779b9

For an element that takes 20 integer operations, a fifth of Philox's, so a mask is computed again in the
backward pass and not stored.  The key is read from memory, so that a recorded pass can be given another one.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mixed(x):
    """Return a bijection of uint32 in which every bit of `x` changes every bit of the result."""
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _kept(index, key, site, cut):
    """Return which elements `index` of a site dropout keeps: those whose draw is at least `cut`."""
    given = tl.load(key)
    low = _mixed(given.to(tl.uint32) + site.to(tl.uint32) * 0x9E3779B9)
    high = _mixed((given >> 32).to(tl.uint32) ^ low)
    return _mixed(_mixed(index.to(tl.uint32) + low) ^ high) >= cut.to(tl.uint32)


@triton.jit
def _normal(x, width, columns, eps):
    """Return (x - mean) / deviation of rows x [M, C], zero beyond `width`, and 1 / deviation [M, 1]."""
    mean = tl.sum(x, axis=1)[:, None] / width
    apart = tl.where(columns[None, :] < width, x - mean, 0.0)
    rstd = 1.0 / tl.sqrt(tl.sum(apart * apart, axis=1)[:, None] / width + eps)
    return apart * rstd, rstd


@triton.jit
def _gaussian(x):
    """Return Φ(x) and φ(x), distribution and density of the standard normal, within 3e-7.

    One exponential serves both (Abramowitz and Stegun, "Handbook of Mathematical Functions", 7.1.26).
    """
    power = tl.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + 0.23164190 * tl.abs(x))
    tail = ((0.5307027145 * t - 0.7265760135) * t + 0.7107068705) * t - 0.142248368
    tail = (tail * t + 0.127414796) * t * power
    return tl.where(x < 0.0, tail, 1.0 - tail), 0.3989422804014327 * power


@triton.jit
def _norm_slope(slope, normal, rstd, width):
    """Return the gradient of x, given that of `normal` = (x - mean) / deviation."""
    mean = tl.sum(slope, axis=1)[:, None] / width
    along = tl.sum(slope * normal, axis=1)[:, None] / width
    return (slope - mean - normal * along) * rstd


@triton.jit(do_not_specialize=["rows", "site", "cut"])
def embed(
    ids, at, words, places, weight, bias, out,
    rows, width, eps, key, site, cut, scale,
    M: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """out = dropout(LN(words[ids] + places[at])), [rows, width] in float32."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.arange(0, C)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    word = tl.load(ids + row, mask=row < rows, other=0)
    place = tl.load(at + row, mask=row < rows, other=0)
    x = tl.load(words + word[:, None] * width + column[None, :], mask=inside, other=0.0)
    x += tl.load(places + place[:, None] * width + column[None, :], mask=inside, other=0.0)
    normal, _ = _normal(x, width, column, eps)
    gamma = tl.load(weight + column, mask=column < width, other=0.0)[None, :]
    y = normal * gamma + tl.load(bias + column, mask=column < width, other=0.0)[None, :]
    index = row.to(tl.int64)[:, None] * width + column[None, :]
    if DROP:
        y = tl.where(_kept(index, key, site, cut), y * scale, 0.0)
    tl.store(out + index, y, mask=inside)


@triton.jit(do_not_specialize=["rows", "site", "cut"])
def embed_back(
    ids, at, words, places, weight, slope, more, out, sums,
    rows, width, eps, key, site, cut, scale,
    M: tl.constexpr, C: tl.constexpr, MORE: tl.constexpr, DROP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [rows, 2, width] = the gradient of words[ids] + places[at], rounded, and the rest of it, rounded.

    The gradient of the embedding is `slope`, with MORE the sum of `slope` and `more`.  sums
    [programs, 2, width] are the gradients of weight and bias.
    """
    column = tl.arange(0, C)
    gamma = tl.load(weight + column, mask=column < width, other=0.0)[None, :]
    of_weight = tl.zeros((M, C), dtype=tl.float32)
    of_bias = tl.zeros((M, C), dtype=tl.float32)
    for first in tl.range(tl.program_id(0) * M, rows, tl.num_programs(0) * M, num_stages=STAGES):
        row = first + tl.arange(0, M)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        word = tl.load(ids + row, mask=row < rows, other=0)
        place = tl.load(at + row, mask=row < rows, other=0)
        x = tl.load(words + word[:, None] * width + column[None, :], mask=inside, other=0.0)
        x += tl.load(places + place[:, None] * width + column[None, :], mask=inside, other=0.0)
        normal, rstd = _normal(x, width, column, eps)
        index = row.to(tl.int64)[:, None] * width + column[None, :]
        given = tl.load(slope + index, mask=inside, other=0.0)
        if MORE:
            given += tl.load(more + index, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            given = tl.where(_kept(index, key, site, cut), given * scale, 0.0)
        of_weight += given * normal
        of_bias += given
        found = _norm_slope(given * gamma, normal, rstd, width)
        index += row.to(tl.int64)[:, None] * width
        rounded = found.to(out.dtype.element_ty)
        tl.store(out + index, rounded, mask=inside)
        tl.store(out + index + width, (found - rounded.to(tl.float32)).to(out.dtype.element_ty), mask=inside)
    place = sums + tl.program_id(0) * 2 * width + column
    tl.store(place, tl.sum(of_weight, axis=0), mask=column < width)
    tl.store(place + width, tl.sum(of_bias, axis=0), mask=column < width)


@triton.jit(do_not_specialize=["rows", "site", "cut"])
def residual(
    base, base_weight, base_bias, y, weight, bias, stream, seen,
    rows, width, base_eps, eps, key, site, cut, scale,
    M: tl.constexpr, C: tl.constexpr, NORMED: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """stream = b + dropout(y), seen = LN(stream), [rows, width]; b = base, or LN(base) where NORMED.

    Without ADD there is no y: seen = LN(base), and `stream` is not written.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.arange(0, C)
    real = column < width
    inside = (row < rows)[:, None] & real[None, :]
    index = row.to(tl.int64)[:, None] * width + column[None, :]
    x = tl.load(base + index, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        x, _ = _normal(x, width, column, base_eps)
        x = x * tl.load(base_weight + column, mask=real, other=0.0)[None, :]
        x += tl.load(base_bias + column, mask=real, other=0.0)[None, :]
    if ADD:
        given = tl.load(y + index, mask=inside, other=0.0).to(tl.float32)
        if DROP:
            given = tl.where(_kept(index, key, site, cut), given * scale, 0.0)
        x += given
        tl.store(stream + index, x, mask=inside)
    normal, _ = _normal(x, width, column, eps)
    out = normal * tl.load(weight + column, mask=real, other=0.0)[None, :]
    out += tl.load(bias + column, mask=real, other=0.0)[None, :]
    tl.store(seen + index, out.to(seen.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["rows", "site", "cut"])
def residual_back(
    stream, weight, d_seen, d_later, d_stream, d_y, sums,
    rows, width, eps, key, site, cut, scale,
    M: tl.constexpr, C: tl.constexpr,
    NORMED: tl.constexpr, LATER: tl.constexpr, ADD: tl.constexpr, DROP: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Turn the gradient of `seen` into those of `stream` and y, [rows, width].

    With LATER, `d_later` is what the next sum hands down: the gradient of LN(stream) where NORMED, of
    `stream` otherwise.  sums [programs, 3, width] are the gradients of weight, bias and of y, summed.
    """
    column = tl.arange(0, C)
    real = column < width
    gamma = tl.load(weight + column, mask=real, other=0.0)[None, :]
    of_weight = tl.zeros((M, C), dtype=tl.float32)
    of_bias = tl.zeros((M, C), dtype=tl.float32)
    of_y = tl.zeros((M, C), dtype=tl.float32)
    for first in tl.range(tl.program_id(0) * M, rows, tl.num_programs(0) * M, num_stages=STAGES):
        row = first + tl.arange(0, M)
        inside = (row < rows)[:, None] & real[None, :]
        index = row.to(tl.int64)[:, None] * width + column[None, :]
        x = tl.load(stream + index, mask=inside, other=0.0).to(tl.float32)
        normal, rstd = _normal(x, width, column, eps)
        given = tl.load(d_seen + index, mask=inside, other=0.0).to(tl.float32)
        if LATER:
            later = tl.load(d_later + index, mask=inside, other=0.0)
            if NORMED:
                given += later
        of_weight += given * normal
        of_bias += given
        found = _norm_slope(given * gamma, normal, rstd, width)
        if LATER and not NORMED:
            found += later
        tl.store(d_stream + index, found, mask=inside)
        if ADD:
            if DROP:
                found = tl.where(_kept(index, key, site, cut), found * scale, 0.0)
            # The sum is that of the rounded gradient, which the weights' gradients are computed from.
            rounded = tl.where(real[None, :], found, 0.0).to(d_y.dtype.element_ty)
            tl.store(d_y + index, rounded, mask=inside)
            of_y += tl.where(inside, rounded.to(tl.float32), 0.0)
    place = sums + tl.program_id(0) * 3 * width + column
    tl.store(place, tl.sum(of_weight, axis=0), mask=real)
    tl.store(place + width, tl.sum(of_bias, axis=0), mask=real)
    tl.store(place + 2 * width, tl.sum(of_y, axis=0), mask=real)


@triton.jit(do_not_specialize=["size"])
def gelu(x, out, size, B: tl.constexpr):
    """out = x Φ(x), elementwise over `size` elements."""
    index = tl.program_id(0).to(tl.int64) * B + tl.arange(0, B)
    given = tl.load(x + index, mask=index < size, other=0.0).to(tl.float32)
    below, _ = _gaussian(given)
    tl.store(out + index, (given * below).to(out.dtype.element_ty), mask=index < size)


@triton.jit(do_not_specialize=["rows"])
def gelu_back(
    x, slope, out, sums, rows, width, M: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr
):  # fmt: skip
    """out = slope · (Φ(x) + x φ(x)), [rows, width]; sums [programs, width] = its sums over rows."""
    column = tl.program_id(1) * C + tl.arange(0, C)
    of_bias = tl.zeros((M, C), dtype=tl.float32)
    for first in tl.range(tl.program_id(0) * M, rows, tl.num_programs(0) * M, num_stages=STAGES):
        row = first + tl.arange(0, M)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        index = row.to(tl.int64)[:, None] * width + column[None, :]
        given = tl.load(x + index, mask=inside, other=0.0).to(tl.float32)
        down = tl.load(slope + index, mask=inside, other=0.0).to(tl.float32)
        below, density = _gaussian(given)
        rounded = (down * (below + given * density)).to(out.dtype.element_ty)
        tl.store(out + index, rounded, mask=inside)
        of_bias += tl.where(inside, rounded.to(tl.float32), 0.0)
    tl.store(sums + tl.program_id(0) * width + column, tl.sum(of_bias, axis=0), mask=column < width)


@triton.jit(do_not_specialize=["rows"])
def cross_entropy(logits, targets, whole, losses, rows, width, M: tl.constexpr, C: tl.constexpr):
    """whole = log Σ exp(logits) over each row of logits [rows, width]; losses = whole - logits[targets].

    Logits are finite, and targets 0 .. width - 1.
    """
    row = tl.program_id(0) * M + tl.arange(0, M)
    # The last row stands for those after it, so that every sum is finite.
    begin = logits + tl.minimum(row, rows - 1).to(tl.int64) * width
    top = tl.full((M,), -float("inf"), dtype=tl.float32)
    powers = tl.zeros((M,), dtype=tl.float32)
    for first in range(0, width, C):
        column = first + tl.arange(0, C)
        seen = (column < width)[None, :]
        x = tl.load(begin[:, None] + column[None, :], mask=seen, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(x, axis=1))
        powers = powers * tl.exp(top - higher) + tl.sum(tl.exp(x - higher[:, None]), axis=1)
        top = higher
    rest = tl.log(powers)
    apart = top - tl.load(begin + tl.load(targets + row, mask=row < rows, other=0)).to(tl.float32)
    tl.store(whole + row, top + rest, mask=row < rows)
    tl.store(losses + row, apart + rest, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def cross_entropy_back(
    logits, targets, whole, slope, out, sums,
    rows, width, M: tl.constexpr, C: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """out [rows, width] = the gradient of the logits, given that of each loss, one number `slope`.

    sums [programs, width] are its sums over rows.
    """
    column = tl.program_id(1) * C + tl.arange(0, C)
    given = tl.load(slope)
    of_bias = tl.zeros((M, C), dtype=tl.float32)
    for first in tl.range(tl.program_id(0) * M, rows, tl.num_programs(0) * M, num_stages=STAGES):
        row = first + tl.arange(0, M)
        inside = (row < rows)[:, None] & (column < width)[None, :]
        index = row.to(tl.int64)[:, None] * width + column[None, :]
        x = tl.load(logits + index, mask=inside, other=-float("inf")).to(tl.float32)
        share = tl.exp(x - tl.load(whole + row, mask=row < rows, other=0.0)[:, None])
        target = tl.load(targets + row, mask=row < rows, other=0)[:, None]
        share = tl.where(column[None, :] == target, share - 1.0, share)
        rounded = (share * given).to(out.dtype.element_ty)
        tl.store(out + index, rounded, mask=inside)
        of_bias += tl.where(inside, rounded.to(tl.float32), 0.0)
    tl.store(sums + tl.program_id(0) * width + column, tl.sum(of_bias, axis=0), mask=column < width)


@triton.jit(do_not_specialize=["rows"])
def spread(x, places, out, rows, width, M: tl.constexpr, C: tl.constexpr):
    """Copy the rows of x [rows, width] to those of `out` at `places` [rows], which differ."""
    row = tl.program_id(0) * M + tl.arange(0, M)
    column = tl.arange(0, C)
    inside = (row < rows)[:, None] & (column < width)[None, :]
    place = tl.load(places + row, mask=row < rows, other=0)
    given = tl.load(x + row.to(tl.int64)[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(out + place.to(tl.int64)[:, None] * width + column[None, :], given, mask=inside)


@triton.jit(do_not_specialize=["count"])
def total(parts, out, count, width, M: tl.constexpr, C: tl.constexpr):
    """out [width] = the sums of the columns of `parts` [count, width], in a fixed order."""
    column = tl.program_id(0) * C + tl.arange(0, C)
    found = tl.zeros((M, C), dtype=tl.float32)
    for first in range(0, count, M):
        row = first + tl.arange(0, M)
        inside = (row < count)[:, None] & (column < width)[None, :]
        found += tl.load(parts + row[:, None] * width + column[None, :], mask=inside, other=0.0)
    tl.store(out + column, tl.sum(found, axis=0), mask=column < width)


@triton.jit
def _weights(queries, keys, mine, scale):
    """Return the softmax over keys of scale · queries · keysᵀ within sentences [W, W]."""
    scores = tl.dot(queries, tl.trans(keys)) * scale
    scores = tl.where(mine[:, None] == mine[None, :], scores, -float("inf"))
    # A place sees itself, so every maximum is finite.
    powers = tl.exp(scores - tl.max(scores, axis=1)[:, None])
    return powers / tl.sum(powers, axis=1)[:, None]


@triton.jit(do_not_specialize=["site", "cut"])
def attention(
    packed, sentence, out, heads, size, scale, key, site, cut, keep,
    W: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Attention of each row's sentences to themselves, a program for a row and head.

    `packed` [R·W, 3·heads·size] are queries, keys and values, `sentence` [R, W] the number of each place's
    sentence, and `out` [R·W, heads·size] the mixtures of values.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    place, column = tl.arange(0, W), tl.arange(0, C)
    width = heads * size
    inside = (column < size)[None, :]
    at = row.to(tl.int64) * W + place
    index = at[:, None] * (3 * width) + head * size + column[None, :]
    queries = tl.load(packed + index, mask=inside, other=0.0)
    keys = tl.load(packed + index + width, mask=inside, other=0.0)
    values = tl.load(packed + index + 2 * width, mask=inside, other=0.0)
    # As in the backward pass, to the last digit.
    weights = _weights(queries, keys, tl.load(sentence + at), scale)
    if DROP:
        element = ((row * heads + head) * W + place)[:, None] * W + place[None, :]
        weights = tl.where(_kept(element, key, site, cut), weights * keep, 0.0)
    mixed = tl.dot(weights.to(values.dtype), values)
    tl.store(out + at[:, None] * width + head * size + column[None, :], mixed.to(values.dtype), mask=inside)


@triton.jit(do_not_specialize=["site", "cut"])
def attention_back(
    packed, sentence, slope, d_packed, sums, heads, size, scale, key, site, cut, keep,
    W: tl.constexpr, C: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Turn `slope` [R·W, heads·size], the gradient of the mixtures, into `d_packed`, that of `packed`.

    `sums` [R, 3·heads·size] are its sums over the places of a row.
    """
    row, head = tl.program_id(0), tl.program_id(1)
    place, column = tl.arange(0, W), tl.arange(0, C)
    width = heads * size
    real = column < size
    inside = real[None, :]
    at = row.to(tl.int64) * W + place
    index = at[:, None] * (3 * width) + head * size + column[None, :]
    queries = tl.load(packed + index, mask=inside, other=0.0)
    keys = tl.load(packed + index + width, mask=inside, other=0.0)
    values = tl.load(packed + index + 2 * width, mask=inside, other=0.0)
    given = tl.load(slope + at[:, None] * width + head * size + column[None, :], mask=inside, other=0.0)
    weights = _weights(queries, keys, tl.load(sentence + at), scale)
    d_weights = tl.dot(given, tl.trans(values))
    dropped = weights
    if DROP:
        element = ((row * heads + head) * W + place)[:, None] * W + place[None, :]
        kept = _kept(element, key, site, cut)
        dropped = tl.where(kept, weights * keep, 0.0)
        d_weights = tl.where(kept, d_weights * keep, 0.0)
    d_value = tl.dot(tl.trans(dropped.to(values.dtype)), given).to(values.dtype)
    along = tl.sum(weights * d_weights, axis=1)[:, None]
    d_scores = (weights * (d_weights - along) * scale).to(values.dtype)
    d_query = tl.dot(d_scores, keys).to(values.dtype)
    d_key = tl.dot(tl.trans(d_scores), queries).to(values.dtype)
    tl.store(d_packed + index, d_query, mask=inside)
    tl.store(d_packed + index + width, d_key, mask=inside)
    tl.store(d_packed + index + 2 * width, d_value, mask=inside)
    part = sums + row * 3 * width + head * size + column
    tl.store(part, tl.sum(d_query.to(tl.float32), axis=0), mask=real)
    tl.store(part + width, tl.sum(d_key.to(tl.float32), axis=0), mask=real)
    tl.store(part + 2 * width, tl.sum(d_value.to(tl.float32), axis=0), mask=real)
