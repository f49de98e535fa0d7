"""Remarks for readers on the measurements of a sweep, from the notes of its records."""

from __future__ import annotations

from collections import Counter

from raysweep.evaluation.notes import remarks as remarks_on
from raysweep.sweep.config import Sweep


def remarks(sweep: Sweep) -> list[str]:
    """Return a line for each remark on a measurement, such as a less exact way, with its checkpoints."""
    ledger, seen, ways = sweep.ledger(), Counter[str](), Counter[tuple[str, str]]()
    begun = set(ledger.run_ids())
    for spec in sweep.runs:
        if spec.run_id not in begun:
            continue
        run = ledger.open(spec.run_id)
        for step in spec.milestones:
            for kind, evaluation in spec.evaluations.items():
                record = run.evaluation(step, evaluation)
                if record is None:
                    continue
                seen[kind] += 1
                for text in remarks_on(kind, record.notes):
                    ways[kind, text] += 1
    return [f"{text} ({count} of {seen[kind]} checkpoints)" for (kind, text), count in sorted(ways.items())]
