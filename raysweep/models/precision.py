"""The working precision of training: bfloat16 where the hardware multiplies such matrices faster.

With bfloat16, parameters, residual streams, normalisation, softmax, loss and optimizer stay float32; the
factors of matrix products are rounded to 8 bits of mantissa.  Evaluation is in float32 everywhere.

On a GPU float32 products are not rounded to TF32.  That is torch's default
(`torch.backends.cuda.matmul.allow_tf32` is False), and nothing here changes it.
"""

from __future__ import annotations

from typing import Literal

import torch

#: The precision in a configuration; `auto` is the faster one on the device.
Precision = Literal["auto", "float32", "bfloat16"]


def multiplies_bfloat16(device: torch.device) -> bool:
    """Return whether `device` has instructions for products of bfloat16 matrices."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def multiplies_in_vectors() -> bool:
    """Return whether this processor multiplies bfloat16 numbers in vectors, and has no tiles for them.

    With tiles, narrow models train faster in float32: little of their time is in products.
    """
    # Without the import of numba.
    return bool(torch.cpu._is_avx512_bf16_supported() and not torch.cpu._is_amx_tile_supported())
