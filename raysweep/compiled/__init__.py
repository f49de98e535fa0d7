"""Parts that compiled kernels share: the decorator, vectors, blocks of sums, scalars and Philox's rounds.

The decorator imports numba, which takes a third of a second, so it is imported where it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysweep.compiled.cache import kernel

__all__ = ["kernel"]


def __getattr__(name: str) -> Any:
    if name != "kernel":
        raise AttributeError(f"module 'raysweep.compiled' has no attribute '{name}'")
    from raysweep.compiled.cache import kernel

    return kernel
