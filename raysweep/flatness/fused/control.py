"""Compiled passes over rows for the control statistics of an encoder (`raysweep.flatness.trace.control`).

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

import numpy as np

from raysweep.compiled import kernel
from raysweep.compiled.scalars import COMPILED, INLINE, normal

_F0, _F1 = np.float32(0.0), np.float32(1.0)


@kernel(**COMPILED)
def jacobians(u, eps, weight, bias, n, ss, ssn, lengths):  # type: ignore[no-untyped-def]
    """Write ‖h‖² [B] for h = LayerNorm(gelu(u)), and n, s² and s² n [B, D] of its Jacobian J by u.

    With γ the LayerNorm's weight, (Jᵀx)_j = s_j (γ_j x_j − mean(γ ∘ x) − n_j mean(n ∘ γ ∘ x)).  This is in
    float32, and results are float64: forms in J and their means share it, so that means of zero stay zero.
    """
    B, D = u.shape
    value, slope = np.empty(D, dtype=np.float32), np.empty(D, dtype=np.float32)
    for i in range(B):
        middle = spread = _F0
        for j in range(D):
            below, density = normal(u[i, j])
            value[j], slope[j] = u[i, j] * below, below + u[i, j] * density
        for j in range(D):
            middle += value[j]
        middle /= np.float32(D)
        for j in range(D):
            e = value[j] - middle
            spread += e * e
        scale = _F1 / np.sqrt(spread / np.float32(D) + eps)
        for j in range(D):
            z, s = (value[j] - middle) * scale, np.float64(slope[j] * scale)
            value[j] = z * weight[j] + bias[j]
            n[i, j], ss[i, j], ssn[i, j] = z, s * s, s * s * z
        length = _F0
        for j in range(D):
            length += value[j] * value[j]
        lengths[i] = length


@kernel(**INLINE)
def _length(x, gamma, n, ss, ssn, sum_ss, sum_ssn, sum_ssnn, share):  # type: ignore[no-untyped-def]
    """Return ‖Jᵀx‖², given the sums of s², s² n and s² n², and 1 / D as `share`."""
    mean = by_n = square = by_s = by_sn = 0.0
    for j in range(len(x)):
        e = gamma[j] * x[j]
        mean += e
        by_n += n[j] * e
        by_s += ss[j] * e
        square += ss[j] * e * e
        by_sn += ssn[j] * e
    mean *= share
    by_n *= share
    found = square - 2.0 * (mean * by_s + by_n * by_sn)
    return found + mean * mean * sum_ss + 2.0 * mean * by_n * sum_ssn + by_n * by_n * sum_ssnn


@kernel(**COMPILED)
def centred_forms(g, mean, gamma, n, ss, ssn, squares, of_n, sums, found):  # type: ignore[no-untyped-def]
    """found [B] = ‖Jᵀg‖² − Σ_c p_c ‖Jᵀw_c‖² + ‖Jᵀm‖², of cotangents g and their mean m [B, D].

    With x_c = γ ∘ w_c, a_c the mean of x_c and b_c that of n ∘ x_c, `squares` [B, D] are Σ p_c (x_c² − 2 a_c
    x_c) and `of_n` Σ p_c b_c x_c; `sums` [B, 3] are Σ p_c a_c², Σ p_c a_c b_c and Σ p_c b_c².
    """
    B, D = g.shape
    share = 1.0 / D
    for i in range(B):
        sum_ss = sum_ssn = sum_ssnn = expected = 0.0
        for j in range(D):
            sum_ss += ss[i, j]
            sum_ssn += ssn[i, j]
            sum_ssnn += ssn[i, j] * n[i, j]
            expected += ss[i, j] * squares[i, j] - 2.0 * ssn[i, j] * of_n[i, j]
        expected += sums[i, 0] * sum_ss + 2.0 * sums[i, 1] * sum_ssn + sums[i, 2] * sum_ssnn
        own = _length(g[i], gamma, n[i], ss[i], ssn[i], sum_ss, sum_ssn, sum_ssnn, share)
        own += _length(mean[i], gamma, n[i], ss[i], ssn[i], sum_ss, sum_ssn, sum_ssnn, share)
        found[i] = own - expected
