"""Categorical draws in compiled code: bitwise those of `raysweep.languages.draw.Categories`.

Importing this module imports numba, so it is imported where it is first used.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from raysweep.compiled import kernel
from raysweep.languages.draw import Categories


class Guide(NamedTuple):
    """`Categories` for 32-bit words as they come, with an index into each distribution.

    A word w draws the first entry k of its distribution with w <= `top[k]`.  The word's top bits
    (w >> `shift`) say in `jump`, from `start` on, where the search begins, so that a draw costs a few
    comparisons however many entries there are.  Unsigned, for numba tests a signed index for being negative.
    """

    start: np.ndarray
    shift: np.ndarray
    jump: np.ndarray
    top: np.ndarray
    entry: np.ndarray


def guide(categories: Categories) -> Guide:
    """Return the tables by which `pick` draws what `categories.draw` draws from the word's uniform."""
    edges, group, count = categories.edges.numpy(), categories.group.numpy(), categories.count.numpy()
    # ceiling[k] is the number of words whose uniform lies below edge k, in the very sums of `draw`: an
    # estimate, and whether each word near it is below.
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
        # An entry that no word draws is never where a search begins, and is passed over as its neighbour is.
        top=(np.maximum(ceiling, 1) - 1).astype(np.uint32),
        entry=categories.entry.numpy(),
    )


@kernel(inline="always")
def pick(table, group, word):  # type: ignore[no-untyped-def]
    """Return the place in `table.entry` that a 32-bit word draws from distribution `group`."""
    group = np.uint64(group)
    place = np.uint64(table.jump[table.start[group] + (np.uint64(word) >> table.shift[group])])
    # The one step that is often needed is taken without a branch to mispredict.
    place += np.uint64(word > table.top[place])
    while word > table.top[place]:
        place += np.uint64(1)
    return place
