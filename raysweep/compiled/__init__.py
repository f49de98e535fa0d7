"""Parts that compiled kernels share: the decorator, vectors, scalars and Philox's rounds.

Importing any of them imports numba, so it is imported where it is first used.
"""

from raysweep.compiled.cache import kernel

__all__ = ["kernel"]
