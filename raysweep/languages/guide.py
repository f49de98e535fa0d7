"""Categorical draws in compiled code: bitwise those of `raysweep.languages.draw.Categories`.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.languages.draw import Categories


class Guide(NamedTuple):
    """`Categories` for random 32-bit words, with an index into each distribution.

    A word w draws the first entry k of its distribution with w <= `top[k]`.  The search begins at the place
    that `jump`, from `start` on, has for the top bits of the word (w >> `shift`), so a draw costs a few
    comparisons, however many entries there are.  Indices are unsigned, because numba tests whether a signed
    one is negative.
    """

    start: np.ndarray
    shift: np.ndarray
    jump: np.ndarray
    top: np.ndarray
    entry: np.ndarray


def guide(categories: Categories) -> Guide:
    """Return tables with which `pick` draws what `categories.draw` draws from the uniform of the word."""
    edges, group, count = categories.edges.numpy(), categories.group.numpy(), categories.count.numpy()
    # ceiling[k] is the number of words whose uniform lies below edge k, in exactly the sums of `draw`: an
    # estimate first, then a test of each word near it.
    near = np.clip(np.ceil((edges - group) * 2.0**32).astype(np.int64) - 4, 0, 1 << 32)
    ceiling = near.copy()
    for step in range(8):
        word = near + step
        ceiling += (word < 1 << 32) & (group + (word + 0.5) * 2.0**-32 < edges)
    # The last entry of a distribution takes all remaining words.
    ceiling[np.cumsum(count)[count > 0] - 1] = 1 << 32
    # Two to four times as many places to begin as entries: most searches end where they begin.
    bits = np.minimum(np.ceil(np.log2(np.maximum(count, 1))).astype(np.int64) + 1, 32)
    size = np.where(count > 0, 1 << bits, 0)
    start = np.cumsum(size) - size
    owner = np.repeat(np.arange(len(count)), size)
    lowest = (np.arange(size.sum()) - start[owner]) << (32 - bits[owner])
    jump = np.searchsorted((group << 33) + ceiling, (owner << 33) + lowest, side="right")
    return Guide(
        start=start.astype(np.uint64),
        shift=(32 - bits).astype(np.uint64),
        jump=jump.astype(np.uint32),
        # No search begins at an entry that no word draws, and the search passes over it.
        top=(np.maximum(ceiling, 1) - 1).astype(np.uint32),
        entry=categories.entry.numpy(),
    )


@kernel(inline="always")
def pick(table, group, word):  # type: ignore[no-untyped-def]
    """Return the place in `table.entry` that a 32-bit word draws from distribution `group`."""
    group = np.uint64(group)
    place = np.uint64(table.jump[table.start[group] + (np.uint64(word) >> table.shift[group])])
    # One step is often needed; taken without a branch, it cannot be mispredicted.
    place += np.uint64(word > table.top[place])
    while word > table.top[place]:
        place += np.uint64(1)
    return place
