"""The kernels between the matrix products of an encoder, each one pass over memory, forward and backward.

Arrays are those of one chunk: N words of whole sentences, one behind the other, D wide.  "Low" arrays are as
`raysweep.compiled.scalars` says; the residual stream, statistics and sums of gradients are float32.
LayerNorm's statistics [N, 2] are the mean and the reciprocal of the standard deviation.  A mask of dropout is
drawn again in the backward pass, which costs less than keeping it: it depends only on the site's key and the
word's `place`, its number in the batch.  `cut` levels of 2^16 drop an element; 0 drops none.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED, INLINE, draw, exponential, load, normal, save
from raysweep.models.dropout import LEVELS

_F0, _F1 = np.float32(0.0), np.float32(1.0)


@kernel(**INLINE)
def _statistics(row, eps):  # type: ignore[no-untyped-def]
    """Return mean and reciprocal standard deviation of a row [D]."""
    D = len(row)
    total = _F0
    for j in range(D):
        total += row[j]
    mean = total / np.float32(D)
    spread = _F0
    for j in range(D):
        d = row[j] - mean
        spread += d * d
    return mean, _F1 / np.sqrt(spread / np.float32(D) + eps)


@kernel(**INLINE)
def _entry(j, z, e, weight, scale, first, second, d_weight, d_bias):  # type: ignore[no-untyped-def]
    """Return entry j of the gradient of a LayerNorm's input, and add to the parameters' gradients.

    z is the entry of the normalised row, and e that of the output's gradient; `first` and `second` are the
    means of w e and w e z over the row.
    """
    d_weight[j] += e * z
    d_bias[j] += e
    return scale * (weight[j] * e - first - z * second)


@kernel(**INLINE)
def masks(key, place, cut, words, keep):  # type: ignore[no-untyped-def]
    """Write into `keep` float32 [D] the factors of dropout: 0, or what keeps the mean."""
    draw(key, place * len(words), words)
    levels = words.view(np.uint16)
    scale = np.float32(LEVELS / (LEVELS - cut))
    for j in range(len(keep)):
        keep[j] = scale if levels[j] >= cut else _F0


@kernel(**COMPILED)
def embed(ids, at, place, tokens, positions, weight, bias, eps, key, cut, stats, out, low):  # type: ignore[no-untyped-def]
    """out = dropout(LN(tokens[ids] + positions[at])), and `low` the same rounded."""
    N, D = out.shape
    row = np.empty(D, dtype=np.float32)
    words = np.empty((D + 3) // 4, dtype=np.uint64)
    keep = np.ones(D, dtype=np.float32)
    for n in range(N):
        i, t = ids[n], at[n]
        for j in range(D):
            row[j] = tokens[i, j] + positions[t, j]
        mean, scale = _statistics(row, eps)
        stats[n, 0], stats[n, 1] = mean, scale
        if cut > 0:
            masks(key, place[n], cut, words, keep)
        for j in range(D):
            y = ((row[j] - mean) * scale * weight[j] + bias[j]) * keep[j]
            out[n, j] = y
            save(low, n, j, y)


@kernel(**COMPILED)
def embed_backward(  # type: ignore[no-untyped-def]
    ids, at, place, tokens, positions, weight, key, cut, stats, d, d_tokens, d_positions, d_weight, d_bias
):
    """Add to the gradients of tables and LayerNorm, given d [N, D], the gradient of `out`."""
    N, D = d.shape
    words = np.empty((D + 3) // 4, dtype=np.uint64)
    keep = np.ones(D, dtype=np.float32)
    for n in range(N):
        i, t = ids[n], at[n]
        mean, scale = stats[n, 0], stats[n, 1]
        if cut > 0:
            masks(key, place[n], cut, words, keep)
        first = second = _F0
        for j in range(D):
            e = d[n, j] * keep[j] * weight[j]
            first += e
            second += e * ((tokens[i, j] + positions[t, j] - mean) * scale)
        first /= np.float32(D)
        second /= np.float32(D)
        for j in range(D):
            z = (tokens[i, j] + positions[t, j] - mean) * scale
            x = _entry(j, z, d[n, j] * keep[j], weight, scale, first, second, d_weight, d_bias)
            d_tokens[i, j] += x
            d_positions[t, j] += x


@kernel(**COMPILED)
def norm(x, weight, bias, eps, stats, low):  # type: ignore[no-untyped-def]
    """low = LN(x)."""
    N, D = x.shape
    for n in range(N):
        mean, scale = _statistics(x[n], eps)
        stats[n, 0], stats[n, 1] = mean, scale
        for j in range(D):
            save(low, n, j, (x[n, j] - mean) * scale * weight[j] + bias[j])


@kernel(**INLINE)
def norm_row(n, x, weight, stats, d_low, d, d_weight, d_bias):  # type: ignore[no-untyped-def]
    """Do what `norm_backward` does with row n."""
    D = x.shape[1]
    mean, scale = stats[n, 0], stats[n, 1]
    first = second = _F0
    for j in range(D):
        e = load(d_low, n, j) * weight[j]
        first += e
        second += e * ((x[n, j] - mean) * scale)
    first /= np.float32(D)
    second /= np.float32(D)
    for j in range(D):
        z = (x[n, j] - mean) * scale
        e = load(d_low, n, j)
        d[n, j] += _entry(j, z, e, weight, scale, first, second, d_weight, d_bias)


@kernel(**COMPILED)
def norm_backward(x, weight, stats, d_low, d, d_weight, d_bias):  # type: ignore[no-untyped-def]
    """Add the gradient of x to d, given `d_low` [N, D], that of LN(x); add to the parameters' gradients."""
    for n in range(len(x)):
        norm_row(n, x, weight, stats, d_low, d, d_weight, d_bias)


@kernel(**COMPILED)
def junction(r, o, shift, place, key, cut, weight, bias, eps, s, stats, out, low):  # type: ignore[no-untyped-def]
    """s = r + dropout(o + shift);  low = LN(s), and `out` the same in float32 where it has rows."""
    N, D = r.shape
    words = np.empty((D + 3) // 4, dtype=np.uint64)
    keep = np.ones(D, dtype=np.float32)
    full = len(out) > 0
    for n in range(N):
        if cut > 0:
            masks(key, place[n], cut, words, keep)
        for j in range(D):
            s[n, j] = r[n, j] + (load(o, n, j) + shift[j]) * keep[j]
        mean, scale = _statistics(s[n], eps)
        stats[n, 0], stats[n, 1] = mean, scale
        for j in range(D):
            save(low, n, j, (s[n, j] - mean) * scale * weight[j] + bias[j])
        if full:
            for j in range(D):
                out[n, j] = (s[n, j] - mean) * scale * weight[j] + bias[j]


@kernel(**INLINE)
def junction_row(n, post, d, d_low, keep, weight, s, stats, d_o, d_shift, d_weight, d_bias):  # type: ignore[no-untyped-def]
    """Do what `junction_backward` does with row n, whose factors of dropout are `keep` [D]."""
    D = d.shape[1]
    through = _F1 if post else _F0
    beside = _F1 - through
    mean, scale = stats[n, 0], stats[n, 1]
    first = second = _F0
    for j in range(D):
        e = (load(d_low, n, j) + through * d[n, j]) * weight[j]
        first += e
        second += e * ((s[n, j] - mean) * scale)
    first /= np.float32(D)
    second /= np.float32(D)
    for j in range(D):
        z = (s[n, j] - mean) * scale
        e = load(d_low, n, j) + through * d[n, j]
        e = _entry(j, z, e, weight, scale, first, second, d_weight, d_bias) + beside * d[n, j]
        d[n, j] = e
        e *= keep[j]
        d_shift[j] += e
        save(d_o, n, j, e)


@kernel(**COMPILED)
def junction_backward(  # type: ignore[no-untyped-def]
    post, d, d_low, place, key, cut, weight, s, stats, d_o, d_shift, d_weight, d_bias
):
    """Turn d, the gradient of the residual stream behind the junction, into that before it.

    `d_low` is the gradient of LN(s), and `d_o` becomes that of o.  With `post` the stream behind is LN(s)
    itself, without it s.
    """
    N, D = d.shape
    words = np.empty((D + 3) // 4, dtype=np.uint64)
    keep = np.ones(D, dtype=np.float32)
    for n in range(N):
        if cut > 0:
            masks(key, place[n], cut, words, keep)
        junction_row(n, post, d, d_low, keep, weight, s, stats, d_o, d_shift, d_weight, d_bias)


@kernel(**COMPILED)
def shift_heads(x, shift, factors):  # type: ignore[no-untyped-def]
    """Add the bias [D], times the factors [M, heads] of a word's heads, to x [M, D], low."""
    M, D = x.shape
    width = D // factors.shape[1]
    for m in range(M):
        for h in range(factors.shape[1]):
            factor = factors[m, h]
            for j in range(h * width, (h + 1) * width):
                save(x, m, j, load(x, m, j) + factor * shift[j])


@kernel(**COMPILED)
def shift_heads_backward(d, factors, d_shift):  # type: ignore[no-untyped-def]
    """Add to the gradient of the bias of `shift_heads`, given d [M, D], low, that of x."""
    M, D = d.shape
    width = D // factors.shape[1]
    for m in range(M):
        for h in range(factors.shape[1]):
            factor = factors[m, h]
            for j in range(h * width, (h + 1) * width):
                d_shift[j] += factor * load(d, m, j)


@kernel(**COMPILED)
def shift_factors_backward(d, shift, d_factors):  # type: ignore[no-untyped-def]
    """Write the gradient [M, heads] of the factors of `shift_heads`, given d [M, D], low, that of x."""
    M, D = d.shape
    width = D // d_factors.shape[1]
    for m in range(M):
        for h in range(d_factors.shape[1]):
            product = _F0
            for j in range(h * width, (h + 1) * width):
                product += shift[j] * load(d, m, j)
            d_factors[m, h] = product


@kernel(**COMPILED)
def gelu(u, shift, out):  # type: ignore[no-untyped-def]
    """out = gelu(u + shift), low [N, F], and u becomes the slope there.

    Both share an exponential, so the backward pass has none.
    """
    N, F = u.shape
    for n in range(N):
        for j in range(F):
            x = load(u, n, j) + shift[j]
            below, density = normal(x)
            save(out, n, j, x * below)
            save(u, n, j, below + x * density)


@kernel(**COMPILED)
def gelu_backward(slope, d, d_shift):  # type: ignore[no-untyped-def]
    """Turn d, the gradient of gelu(u + shift), into that of u, given the slope."""
    N, F = slope.shape
    for n in range(N):
        for j in range(F):
            e = load(d, n, j) * load(slope, n, j)
            d_shift[j] += e
            save(d, n, j, e)


@kernel(**COMPILED)
def transform(z, shift, weight, bias, eps, stats, low):  # type: ignore[no-untyped-def]
    """low = LN(gelu(z + shift)): the head's rows before the decoder, [M, D]."""
    M, D = z.shape
    row = np.empty(D, dtype=np.float32)
    for m in range(M):
        for j in range(D):
            x = load(z, m, j) + shift[j]
            row[j] = x * normal(x)[0]
        mean, scale = _statistics(row, eps)
        stats[m, 0], stats[m, 1] = mean, scale
        for j in range(D):
            save(low, m, j, (row[j] - mean) * scale * weight[j] + bias[j])


@kernel(**COMPILED)
def transform_backward(z, shift, weight, stats, d, d_shift, d_weight, d_bias):  # type: ignore[no-untyped-def]
    """Turn d, the gradient of LN(gelu(z + shift)), into that of z."""
    M, D = z.shape
    slope, value = np.empty(D, dtype=np.float32), np.empty(D, dtype=np.float32)
    for m in range(M):
        mean, scale = stats[m, 0], stats[m, 1]
        for j in range(D):
            x = load(z, m, j) + shift[j]
            below, density = normal(x)
            slope[j] = below + x * density
            value[j] = (x * below - mean) * scale
        first = second = _F0
        for j in range(D):
            e = load(d, m, j) * weight[j]
            first += e
            second += e * value[j]
        first /= np.float32(D)
        second /= np.float32(D)
        for j in range(D):
            e = load(d, m, j)
            e = _entry(j, value[j], e, weight, scale, first, second, d_weight, d_bias) * slope[j]
            d_shift[j] += e
            save(d, m, j, e)


@kernel(**COMPILED)
def cross_entropy(logits, shift, targets, factor, d_shift):  # type: ignore[no-untyped-def]
    """Return Σ -log softmax(logits + shift)[target], float64; `logits` become factor times its gradient."""
    M, V = logits.shape
    row = np.empty(V, dtype=np.float32)
    loss = 0.0
    for m in range(M):
        top = np.float32(-np.inf)
        for v in range(V):
            row[v] = load(logits, m, v) + shift[v]
            top = max(top, row[v])  # NaN may be passed over here; its exponential is not
        target = row[targets[m]]
        total = _F0
        for v in range(V):
            row[v] = exponential(row[v] - top)
        for v in range(V):
            total += row[v]
        loss += np.log(np.float64(total)) + np.float64(top - target)
        share = factor / total
        row[targets[m]] -= total
        for v in range(V):
            e = row[v] * share
            d_shift[v] += e
            save(logits, m, v, e)
    return loss
