"""Checks of the input of all languages, both batches and configurations; and room for their results."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.languages.base import Language
from raysweep.registry import Config, suggest

C = TypeVar("C", bound=Config)


def decoded(cls: type[C], data: Mapping[str, Any]) -> C:
    """Decode a configuration given as keyword arguments; all problems in one `ConfigError`."""
    try:
        return cls.decode(data)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            field = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                message = f"unknown field{suggest(field, cls.model_fields)}"
            else:
                message = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{field}: {message}")
        raise ConfigError("\n".join(lines)) from None


def check_sentences(language: Language, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the number of words of each sentence [B] after checking the batch.

    Raises `DataError` naming the first sentence that holds an id outside the vocabulary at a position that
    `mask` does not hide, or a word behind padding.
    """
    for name, given in (("ids", ids), ("mask", mask)):
        if given is not None and not isinstance(given, Tensor):
            raise DataError(
                f"{name} must be a tensor, not {type(given).__name__} {reprlib.repr(given)}; "
                "torch.tensor makes one"
            )
    # Shorter integers cannot always hold the id of padding, and torch takes some for masks.
    if ids.dim() != 2 or ids.dtype not in (torch.int32, torch.int64):
        raise DataError(f"ids must be integers [B, T], int64 or int32, not {ids.dtype} {list(ids.shape)}")
    if mask is not None and (mask.shape != ids.shape or mask.dtype != torch.bool):
        raise DataError(
            f"mask must be boolean {list(ids.shape)} like ids, not {mask.dtype} {list(mask.shape)}"
        )
    real = ids != language.pad_id
    # Padding is the first id above the words, so the extremes tell whether anything has to be sought.
    if ids.numel() and (ids.min() < 0 or ids.max() > language.pad_id):
        wrong = (ids < 0) | (ids > language.pad_id)
        if mask is not None:
            wrong &= ~mask
        if wrong.any():
            row, position = wrong.nonzero()[0].tolist()
            raise DataError(
                f"sentence {row}: id {int(ids[row, position])} at position {position} is no word; "
                f"words are 0 .. {language.vocabulary_size - 1}, padding is {language.pad_id}"
            )
    torn = real[:, 1:] > real[:, :-1]
    if torn.any():
        row, position = torn.nonzero()[0].tolist()
        raise DataError(f"sentence {row}: a word at position {position + 1} behind padding; pad on the right")
    return real.sum(dim=1)


def check_conditionals(
    language: Language, ids: Tensor, mask: Tensor | None = None, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Return the number of words of each sentence [B] after checking the arguments of `conditionals`.

    Raises `DataError` as `check_sentences` does, for a dtype other than float32 and float64, and for the
    first sentence that is shorter than `max_length` where the language has `fixed_length`.
    """
    if dtype not in (torch.float32, torch.float64):
        raise DataError(f"dtype must be torch.float32 or torch.float64, not {dtype}")
    lengths = check_sentences(language, ids, mask)
    if language.fixed_length and (wrong := lengths != language.max_length).any():
        row = int(wrong.nonzero()[0, 0])
        raise DataError(
            f"sentence {row}: {int(lengths[row])} words, but all sentences of this language "
            f"have {language.max_length}"
        )
    return lengths


def impossible(row: int) -> DataError:
    """Return the error for a sentence whose visible words the language cannot produce."""
    return DataError(f"sentence {row}: its visible words have probability zero in this language")


def floor(dtype: torch.dtype) -> float:
    """Return the least normaliser without lost digits; below it, float32 results are redone in float64."""
    return 1e-300 if dtype == torch.float64 else 1e-30


def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised tensor; on a CPU one of numpy's, which asks for huge pages where it is large.

    Filling fresh pages of 4 kB takes longer than computing what they are filled with.
    """
    if device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.empty(shape, dtype=np.float32 if dtype == torch.float32 else np.float64))
