"""Notes on the computation of gradient norms, carried in the shards' arrays as text."""

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
    texts = {"method": traces.method, "reason": traces.reason}
    return {PREFIX + name: np.frombuffer(text.encode(), dtype=np.uint8) for name, text in texts.items()}


def method_notes(shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
    """Return `method`, and `reason` where it is slower than ghost norms; several are joined by "; "."""
    found: dict[str, dict[str, None]] = {"method": {}, "reason": {}}
    for shard in shards:
        for name, texts in found.items():
            stored = shard.get(PREFIX + name)
            if stored is not None:
                texts[stored.tobytes().decode()] = None
            elif name == "method":
                texts[_USUAL] = None
    return {name: "; ".join(texts) for name, texts in found.items() if texts}


def slower(kind: str, notes: Mapping[str, str]) -> str:
    """Return, for a reader, why an evaluation was not measured the usual way; its notes hold a `reason`.

    >>> slower("trace", {"method": "vmap", "reason": "Conv1d is unknown"})
    'trace was measured by vmap: Conv1d is unknown'
    """
    return f"{kind} was measured by {notes['method']}: {notes['reason']}"
