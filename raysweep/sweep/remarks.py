"""Remarks for readers on the measurements of a sweep, from the notes of its records."""

from __future__ import annotations

import json
from collections import Counter

from raysweep.evaluation.notes import remarks as remarks_on
from raysweep.sweep.config import Sweep
from raysweep.sweep.snapshot import Snapshot


def remarks(sweep: Sweep, snapshot: Snapshot | None = None) -> list[str]:
    """Return a line for each remark on a measurement, such as a less exact way, with its checkpoints."""
    snapshot = snapshot or Snapshot.of(sweep)
    # Thousands of measurements have the same notes.
    alike = Counter(
        (kind, snapshot.note(row)) for spec in sweep.runs for _, kind, row in snapshot.evaluations(spec)
    )
    seen, ways = Counter[str](), Counter[tuple[str, str]]()
    for (kind, note), count in alike.items():
        seen[kind] += count
        for text in remarks_on(kind, json.loads(note)):
            ways[kind, text] += count
    return [f"{text} ({count} of {seen[kind]} checkpoints)" for (kind, text), count in sorted(ways.items())]
