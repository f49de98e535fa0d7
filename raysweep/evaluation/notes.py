"""Notes on the way of measuring, carried in the shards' arrays as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from raysweep.evaluation.base import Arrays
from raysweep.flatness.trace.fisher import InputTraces

#: The beginning of these arrays' names.
PREFIX = "note/"
_USUAL = "ghost norms"


def method_arrays(traces: InputTraces) -> Arrays:
    """Return the method of gradient norms and its reason as UTF-8 bytes; {} for ghost norms."""
    if traces.reason is None:
        return {}
    return text_arrays({"method": traces.method, "reason": traces.reason})


def text_arrays(texts: Mapping[str, str]) -> Arrays:
    """Return texts by name as arrays of UTF-8 bytes."""
    return {PREFIX + name: np.frombuffer(text.encode(), dtype=np.uint8) for name, text in texts.items()}


def text_of(shard: Mapping[str, np.ndarray], name: str) -> str | None:
    """Return a text that `text_arrays` has put into a shard; None where there is none."""
    stored = shard.get(PREFIX + name)
    return None if stored is None else stored.tobytes().decode()


def method_notes(shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
    """Return `method`, and `reason` where it is slower than ghost norms; several are joined by "; "."""
    found: dict[str, dict[str, None]] = {"method": {}, "reason": {}}
    for shard in shards:
        for name, texts in found.items():
            stored = text_of(shard, name)
            if stored is not None:
                texts[stored] = None
            elif name == "method":
                texts[_USUAL] = None
    return {name: "; ".join(texts) for name, texts in found.items() if texts}


def remarks(kind: str, notes: Mapping[str, str]) -> list[str]:
    """Return, for a reader, all that is worth knowing about the measurement of an evaluation.

    That is why it was not measured the usual way, where its notes hold a `reason`, and every other note but
    the method: each is a sentence that begins with the evaluation's kind.

    >>> remarks("trace", {"method": "vmap", "reason": "Conv1d is unknown"})
    ['trace was measured by vmap: Conv1d is unknown']
    """
    said = [f"{kind} was measured by {notes['method']}: {notes['reason']}"] if "reason" in notes else []
    return said + [text for name, text in notes.items() if name not in ("method", "reason")]
