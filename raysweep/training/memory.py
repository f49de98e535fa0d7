"""Keep freed memory in the process.

Training steps and evaluations free and allocate the same few megabytes hundreds of times.  glibc returns
blocks of that size to the kernel each time, and the page faults of allocating them again cost 10 to 15 % of a
step of a small encoder on a CPU.
"""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # from malloc.h
_KEEP_BYTES = 1 << 30
_LARGEST_MMAP_THRESHOLD = 32 << 20  # the most that glibc accepts


def keep_freed_memory() -> bool:
    """Let glibc keep up to 1 GiB of freed memory in this process; return False where there is no glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return False
    kept = mallopt(_MMAP_THRESHOLD, _LARGEST_MMAP_THRESHOLD) and mallopt(_TRIM_THRESHOLD, _KEEP_BYTES)
    return bool(kept)
