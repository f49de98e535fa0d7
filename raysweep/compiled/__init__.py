"""Parts that kernels share: the decorator, vectors, blocks of sums, tiles, scalars and Philox's rounds.

The decorator imports numba, which takes a third of a second, so it is imported where it is first used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysweep.compiled.cache import kernel

__all__ = ["about_to_compile", "kernel", "when_compiling"]

#: Functions to call before this process compiles a kernel.
_calls: list[Callable[[], None]] = []


@contextmanager
def when_compiling(call: Callable[[], None]) -> Iterator[None]:
    """Call a function once before this process compiles its first kernel inside; not if all are cached."""
    _calls.append(call)
    try:
        yield
    finally:
        if call in _calls:
            _calls.remove(call)


def about_to_compile() -> None:
    """Call the functions of `when_compiling`, each once."""
    while _calls:
        _calls.pop()()


def __getattr__(name: str) -> Any:
    if name != "kernel":
        raise AttributeError(f"module 'raysweep.compiled' has no attribute '{name}'")
    from raysweep.compiled.cache import kernel

    return kernel
