"""Training of encoders on a GPU: sentences of a batch packed into rows of one length.

A GPU is fastest with few large products of recurring shapes.  So rows of 64 or 128 positions hold as many
sentences as fit, and each sentence attends to itself alone: with s(i) the sentence at place i of a row, i
sees j where s(i) = s(j).  Positions count from the beginning of each sentence, so all values equal those of
padded rows.  Places without a word form one sentence of their own, which nothing depends on.

First-fit decreasing (Johnson, "Near-optimal bin packing algorithms", MIT, 1973) fills the rows by lengths
that are known on the CPU.  The device receives two numbers a sentence in one transfer, and nothing waits for
it.  In bfloat16 the work on rows of up to 128 positions is done by kernels of `raysweep.models.gpu`.  In
float32, with longer rows or large heads, with shared weights and with `checkpointing` it is done by the
model's modules, and attention by torch's memory-efficient kernel.  That adds a query's gradient over blocks
of keys in no fixed order.  Rows of 128 positions have two blocks, and a sum of two terms does not depend on
order; longer rows may have more, and then two trainings need not be bitwise equal.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.models.batch import Batch

ROW = 128  # positions of a row
_STEP = 64  # the narrowest row; wider rows, for models of more positions, are multiples of it
_SIZES = 16  # numbers of rows between one power of two and the next


@dataclass(frozen=True)
class Packing:
    """The places of sentences: `starts` [b] is row * width + column of each sentence's first word.

    `filled` is the number of rows with words; `rows` is that number rounded up, so that few shapes occur.
    """

    starts: np.ndarray
    width: int
    filled: int
    words: int

    @property
    def rows(self) -> int:
        """The number of rows that are computed: at most a sixteenth more than are filled.

        >>> [Packing(np.array([0]), 128, filled, 1).rows for filled in (1, 31, 33, 289)]
        [1, 31, 34, 304]
        """
        step = max(1, (1 << self.filled.bit_length()) // (2 * _SIZES))
        return -(-self.filled // step) * step

    @property
    def waste(self) -> float:
        """The share of places without a word.

        >>> pack(np.array([100, 60, 28, 4]), 128).waste
        0.25
        """
        return 1 - self.words / (self.rows * self.width)


def row_width(max_length: int) -> int:
    """Return the positions of a row for a model of `max_length` positions.

    Attention takes time with the width, and short sentences fill narrow rows as well.

    >>> [row_width(n) for n in (16, 33, 128, 129, 512)]
    [64, 128, 128, 192, 512]
    """
    return _STEP if max_length <= _STEP // 2 else max(ROW, -(-max_length // _STEP) * _STEP)


def pack(lengths: np.ndarray, width: int) -> Packing:
    """Return first-fit decreasing of sentences of `lengths` [b], 1 to `width` words each.

    The result equals filling one row after another with the longest remaining sentences that fit.  Rows of
    equal content then follow each other and are filled together, so the cost depends on the number of
    different lengths, which is small, and on a dozen operations on arrays [b].
    """
    counts = np.bincount(lengths).tolist()
    sizes = [size for size, count in enumerate(counts) if count]
    # For each group of equal sentences in equal rows: length, first row, column, number in a row, rows.
    groups: list[tuple[int, int, int, int, int]] = []
    row = 0
    while sizes:
        content: list[tuple[int, int, int]] = []
        space, k = width, len(sizes)
        while (k := bisect_right(sizes, space, 0, k) - 1) >= 0:
            size = sizes[k]
            each = min(counts[size], space // size)
            content.append((size, width - space, each))
            space -= each * size
        times = min(counts[size] // each for size, _, each in content)
        for size, column, each in content:
            counts[size] -= each * times
            groups.append((size, row, column, each, times))
        sizes = [size for size in sizes if counts[size]]
        row += times
    # The sentences of a length are dealt out to its groups in their order.
    groups.sort(key=lambda group: group[0])
    size, first, column, each, times = np.array(groups, dtype=np.int64).T
    number = each * times
    group = np.repeat(np.arange(len(groups)), number)
    nth = np.arange(len(group)) - (number.cumsum() - number)[group]
    down, across = np.divmod(nth, each[group])
    starts = np.empty(len(lengths), dtype=np.int64)
    # numpy sorts integers of 16 bits or fewer by their digits.
    starts[lengths.astype(np.min_scalar_type(width)).argsort(kind="stable")] = (
        (first[group] + down) * width + column[group] + across * size[group]
    )
    return Packing(starts=starts, width=width, filled=row, words=int(lengths.sum()))


@dataclass(frozen=True)
class Rows:
    """A batch in rows, on its device; all tensors are contiguous, as kernels take them.

    `ids` and `at` [R, W] are words and their positions, `sentence` [R, W] the number of each place's
    sentence, `masked` [M] the places row * W + column of masked words, in the order of the batch, and
    `targets` [M] these words.
    """

    ids: Tensor
    at: Tensor
    sentence: Tensor
    masked: Tensor
    targets: Tensor

    @property
    def tensors(self) -> list[Tensor]:
        """The tensors in a fixed order."""
        return [self.ids, self.at, self.sentence, self.masked, self.targets]

    @property
    def width(self) -> int:
        """The places of a row."""
        return self.ids.shape[1]

    @cached_property
    def visible(self) -> Tensor:
        """Return which place (last) each place sees [R, 1, W, W]."""
        return (self.sentence[:, :, None] == self.sentence[:, None, :])[:, None]


def lay_out(words: Batch, packing: Packing, pad_id: int) -> Rows:
    """Return the sentences of a batch at the places of `packing`, without waiting for the device."""
    device, (sentences, columns) = words.ids.device, words.ids.shape
    table = torch.from_numpy(np.stack([packing.starts, words.lengths.numpy()]))
    if device.type == "cuda":
        # A copy from pinned memory runs while the CPU goes on.
        table = table.pin_memory()
    starts, lengths = table.to(device, non_blocking=True)
    total, size = sentences * columns, packing.rows * packing.width
    column = torch.arange(columns, device=device)
    # Padding of the batch goes to one place after the rows, which is cut off.
    place = torch.where(column < lengths[:, None], starts[:, None] + column, size)
    # An empty place reads the word after the batch: padding, in a sentence of its own.
    source = torch.full((size + 1,), total, device=device)
    source.scatter_(0, place.flatten(), torch.arange(total, device=device))
    source = source[:size].view(packing.rows, packing.width)
    row, position = (None, words.index) if words.single else (words.index // columns, words.index % columns)
    return Rows(
        ids=F.pad(words.ids.flatten(), (0, 1), value=pad_id)[source],
        at=source % columns,
        sentence=source // columns,
        masked=(starts if row is None else starts[row]) + position,
        # Those of a half of a batch are every other number of the whole's.
        targets=words.targets.contiguous(),
    )
