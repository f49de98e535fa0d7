"""Kernels that an encoder's compiled passes call by their addresses (`.parts`, `.passes`).

A call is `call(addresses, arguments)`, as `raysweep.compiled.addresses` says.
"""

from __future__ import annotations

from numba import types

from raysweep.compiled.addresses import Calls, Low
from raysweep.models.fused import attention, kernels, products
from raysweep.models.fused import rows as of_rows

_i, _u, _f, _b = types.int64, types.uint64, types.float32, types.boolean
_I, _V, _M = types.int64[::1], types.float32[::1], types.float32[:, ::1]
_N, _NS = types.float64[::1], types.float64[:, ::1]
#: Matrices in low precision, and terms of sums.
_L, _L3 = Low(2), Low(3)
_T, _T3, _T4 = Low(2, terms=True), Low(3, terms=True), Low(4, terms=True)

CALLS = Calls()
turned = CALLS.of(products.turned, _T3, _T4)
straight = CALLS.of(products.straight, _L3, _T4, of_pairs=products.straight_pairs)
product = CALLS.of(
    products.product, _T, _T4, _L, of_pairs=products.product_by_tiles if products.TILES else None
)
outer = CALLS.of(
    products.outer, _L, _L, _M, of_pairs=products.outer_by_tiles if products.TILES else products.outer_pairs
)
embed = CALLS.of(kernels.embed, _I, _I, _I, _M, _M, _V, _V, _f, _u, _i, _M, _M, _L)
norm = CALLS.of(kernels.norm, _M, _V, _V, _f, _M, _L)
junction = CALLS.of(kernels.junction, _M, _L, _V, _I, _u, _i, _V, _V, _f, _M, _M, _M, _L)
gelu = CALLS.of(kernels.gelu, _L, _V, _L)
transform = CALLS.of(kernels.transform, _L, _V, _V, _V, _f, _M, _L)
cross_entropy = CALLS.of(kernels.cross_entropy, _L, _V, _I, _f, _V, result=types.float64)
take_rows = CALLS.of(of_rows.take_rows, _M, _I, _M)
take_low = CALLS.of(of_rows.take_rows, _L, _I, _L)
round_rows = CALLS.of(of_rows.round_rows, _M, _L)
add_rows = CALLS.of(of_rows.add_rows, _L, _I, _L)
add = CALLS.of(of_rows.add, _L, _M)
sum_rows = CALLS.of(of_rows.sum_rows, _M, _I, _M)
sum_low = CALLS.of(of_rows.sum_rows, _L, _I, _M)
shift_heads = CALLS.of(kernels.shift_heads, _L, _V, _M)
attend = CALLS.of(attention.attend, _L, _V, _L, _V, _i, _I, _I, _i, _i, _I, _u, _i, _i, _L)
gather = CALLS.of(attention.gather, _L, _V, _L, _I, _I, _i, _i, _I, _u, _i, _i, _L, _M)
embed_backward = CALLS.of(
    kernels.embed_backward, _I, _I, _I, _M, _M, _V, _u, _i, _M, _M, _M, _M, _V, _V
)  # fmt: skip
norm_backward = CALLS.of(kernels.norm_backward, _M, _V, _M, _L, _M, _V, _V)
junction_backward = CALLS.of(
    kernels.junction_backward, _b, _M, _L, _I, _u, _i, _V, _M, _M, _L, _V, _V, _V
)  # fmt: skip
gelu_backward = CALLS.of(kernels.gelu_backward, _L, _L, _V)
transform_backward = CALLS.of(kernels.transform_backward, _L, _V, _V, _M, _L, _V, _V, _V)
shift_heads_backward = CALLS.of(kernels.shift_heads_backward, _L, _M, _V)
shift_factors_backward = CALLS.of(kernels.shift_factors_backward, _L, _V, _M)
attend_backward = CALLS.of(
    attention.attend_backward,
    _L, _V, _L, _V, _i, _I, _I, _i, _i, _I, _u, _i, _i, _L, _V, _L, _L, _V, _V,
)  # fmt: skip
gather_backward = CALLS.of(
    attention.gather_backward, _L, _V, _L, _I, _I, _i, _i, _I, _u, _i, _i, _L, _M, _L, _L
)
#: Kernels of `raysweep.flatness.fused.kernels` that take squared norms of gradients: of matrices, of these by
#: head, of LayerNorms without and with their backward pass, of junctions, and of embeddings.
matrix_norms = CALLS.later(_M, _M, _I, _NS, _NS)
norms_by_head = CALLS.later(_M, _M, _i, _N, _N)
scale_norms = CALLS.later(_M, _M, _M, _I, _N, _N)
norm_norms = CALLS.later(_M, _V, _M, _M, _M, _I, _N, _N)
junction_norms = CALLS.later(_b, _M, _M, _V, _M, _M, _M, _I, _N, _N)
table_norms = CALLS.later(_I, _M, _I, _M, _M, _I, _N, _N)
