"""The inputs of a Fisher trace: sentences with masked positions, drawn, checked and put into batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from raysweep import seeding
from raysweep.errors import ConfigError, DataError

#: Floats of one layer's activations in a batch; a processor's second cache holds a few times as many.
_CACHED, _GPU = 180_000, 1 << 24
#: Entries of a batch's logits: 16 MB and 256 MB in float32; a few such tensors are held at once.
_LOGITS, _GPU_LOGITS = 1 << 22, 1 << 26


def mask_id(model: nn.Module) -> int:
    """Return the id of the mask token: the model's `mask_id` if it has one, else the id after padding."""
    found: Any = getattr(model, "mask_id", None)
    return padding_id(model) + 1 if found is None else int(found)


def padding_id(model: nn.Module) -> int:
    """Return the id of padding; raises `ConfigError` for a model without one."""
    found: Any = getattr(model, "pad_id", None)
    if found is None:
        raise ConfigError(
            f"{type(model).__name__} has no pad_id: give it one, or wrap a masked language model of "
            "transformers as HuggingFaceMaskedLM(model, mask_id=...)"
        )
    return int(found)


def draw_positions(ids: Tensor, pad_id: int, *, seed: int, start: int = 0) -> Tensor:
    """Draw one position [n] uniformly from the words of each sentence of `ids` [n, T].

    Row i is keyed by (seed, start + i).
    """
    check_sentences(ids)
    index = torch.arange(start, start + len(ids))
    return seeding.one_position(seed, index, (ids != pad_id).sum(dim=1))


def check_sentences(ids: Tensor) -> None:
    """Raise `DataError` unless `ids` are sentences [n, T], whole numbers."""
    _check_whole(ids, "ids")
    if ids.dim() != 2 or len(ids) == 0:
        raise DataError(f"ids of shape {list(ids.shape)}: give at least one sentence, as [n, T]")


def _check_whole(given: object, what: str, *, mask: bool = False) -> None:
    """Raise `DataError` unless `given` is a tensor of whole numbers, or of bools where it may be a `mask`."""
    if not isinstance(given, Tensor):
        raise DataError(
            f"{what} of type {type(given).__name__}: give a tensor, such as torch.as_tensor({what})"
        )
    if given.is_floating_point() or given.is_complex() or (given.dtype == torch.bool and not mask):
        raise DataError(f"{what} of {given.dtype}: give whole numbers, such as {what}.long()")


def masked_places(ids: Tensor, positions: Tensor, pad_id: int) -> tuple[Tensor, Tensor]:
    """Return the masked positions, [n] or [n, m] with −1 for none, and the mask [n, T] that they make.

    `positions` are one position a sentence [n], several [n, m] with −1 for none, or a mask [n, T] of bools.
    Raises `DataError` for positions that are no tensor of these, for any that is not one of its sentence's
    words, for one that is named twice, and for a sentence without any.
    """
    _check_whole(positions, "positions", mask=True)
    n, width = ids.shape
    positions = positions.to(ids.device) if positions.dtype == torch.bool else positions.to(ids.device).long()
    if positions.dtype == torch.bool and positions.shape == ids.shape:
        counts = positions.sum(dim=1)
        order = positions.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        order = order[:, : max(1, int(counts.max()))]
        positions = order.where(torch.arange(order.shape[1], device=ids.device) < counts[:, None], -1)
    elif positions.dtype == torch.bool or positions.dim() not in (1, 2) or len(positions) != n:
        raise DataError(
            f"positions of shape {list(positions.shape)} for {n} sentences: give one each [{n}], several "
            f"[{n}, m] with -1 for none, or a mask {[n, width]} of bools"
        )
    several = positions if positions.dim() == 2 else positions[:, None]
    lengths = (ids != pad_id).sum(dim=1)
    least = -1 if positions.dim() == 2 else 0
    wrong = (several < least) | (several >= lengths[:, None])
    if bool(wrong.any()):
        row, slot = wrong.nonzero()[0].tolist()
        raise DataError(
            f"sentence {row}: masked position {int(several[row, slot])} is not one of its "
            f"{int(lengths[row])} words"
        )
    real = several >= 0
    marked = torch.zeros(n, width, dtype=torch.int64, device=ids.device)
    marked.scatter_add_(1, several.clamp(min=0), real.long())
    for bad, what in ((marked > 1).any(dim=1), "a position twice"), ((marked == 0).all(dim=1), "no position"):
        if bool(bad.any()):
            raise DataError(f"sentence {int(bad.nonzero()[0])}: {what}; mask distinct words of each sentence")
    return positions, marked.bool()


def keys(masked: Tensor, positions: Tensor, pad_id: int) -> Tensor:
    """Return a hash [n] of each input: of its masked ids and positions, without padding.

    Two different inputs have the same hash with probability of about 2^-64.
    """
    several = positions if positions.dim() == 2 else positions[:, None]
    base = 0x9E3779B97F4A7C15 - (1 << 64)
    # Products wrap modulo 2^64.
    powers = torch.full(masked.shape[1:], base, dtype=torch.int64, device=masked.device).cumprod(dim=0)
    where = torch.zeros_like(masked, dtype=torch.int64)
    where.scatter_add_(1, several.clamp(min=0), (several >= 0).long())
    # Padding adds 0, and the shift mixes the upper half of a product into the lower.
    words = (2 * masked + where + 1) * (masked != pad_id)
    products = powers * (words ^ (words << 17))
    key = (products ^ (products >> 29)).sum(dim=1)
    return key.cpu()


def batch_rows(lengths: Tensor, width: int, batch: int | None, classes: int = 0) -> Iterator[Tensor]:
    """Yield the row numbers of each batch: neighbours in length, the shortest first.

    Most batches then hold no padding at all.  `batch` is the number of rows.  None takes as many as suit the
    device: by the size of their activations, `width` wide, and of their logits, `classes` wide.
    """
    order = lengths.argsort(stable=True)
    if batch is not None:
        yield from torch.split(order, batch)
        return
    cpu = lengths.device.type == "cpu"
    words = (_CACHED if cpu else _GPU) // width
    most = (_LOGITS if cpu else _GPU_LOGITS) // max(1, classes)
    first, sizes = 0, lengths[order].tolist()
    while first < len(order):
        # No longer than the last: the rows are in order.
        rows = max(1, min(most, words // sizes[first]))
        rows = max(1, min(most, words // sizes[min(first + rows, len(sizes)) - 1]))
        yield order[first : first + rows]
        first += rows
