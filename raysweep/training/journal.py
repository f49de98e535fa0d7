"""The durable memory of a run, and the checkpoint to resume from: the newest one whose files are intact."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from raysweep.errors import CheckpointError
from raysweep.files import move_aside
from raysweep.remote import listed
from raysweep.training import checkpoint as disk
from raysweep.training.checkpoint import CheckpointRecord

log = logging.getLogger(__name__)


class Journal(Protocol):
    """The durable memory of one run; rank 0 alone calls its methods."""

    @property
    def directory(self) -> Path:
        """The folder of the run; checkpoints lie in it."""

    def checkpoints(self) -> Sequence[CheckpointRecord]:
        """Return the committed records, newest (largest step) first."""

    def commit(self, record: CheckpointRecord) -> None:
        """Keep a record; it is durable when this returns.

        A second record of a step replaces the first one, except for its curve and time.
        """

    def quarantine(self, record: CheckpointRecord, reason: str) -> None:
        """Forget a record whose files cannot be trusted; the loop moves the files aside afterwards."""


def survey(journal: Journal, milestones: Sequence[int]) -> tuple[CheckpointRecord | None, bool]:
    """Return the record to resume from (None: start anew), and whether no milestone is missing.

    The record is the newest intact one before the first missing milestone.  Damaged checkpoints are set
    aside on the way, and half-written ones, left by a killed process, are removed.
    """
    run = journal.directory
    disk.remove_unfinished(run)
    with listed(run):
        return _survey(journal, run, milestones)


def _survey(journal: Journal, run: Path, milestones: Sequence[int]) -> tuple[CheckpointRecord | None, bool]:
    while True:
        records = sorted(journal.checkpoints(), key=lambda r: r.step, reverse=True)
        broken = next((found for r in records if r.milestone and (found := _incomplete(run, r))), None)
        if broken is None:
            have = {r.step for r in records if r.milestone}
            missing = [m for m in milestones if m not in have]
            if not missing:
                return None, True
            # States between milestones are removed once a newer one is kept, so they may be absent.
            record = next(
                (
                    r
                    for r in records
                    if r.step < missing[0] and disk.checkpoint_directory(run, r.step).exists()
                ),
                None,
            )
            if record is None:
                return None, False
            try:
                disk.verify(disk.checkpoint_directory(run, record.step), record.files)
            except CheckpointError as error:
                broken = (record, str(error))
            else:
                return record, False
        _quarantine(journal, *broken)


def _incomplete(run: Path, record: CheckpointRecord) -> tuple[CheckpointRecord, str] | None:
    """Return the record and why its files are incomplete, judged by size alone; None if they are complete."""
    place = disk.checkpoint_directory(run, record.step)
    for name, digest in record.files.items():
        path = place / name
        if not path.exists() or path.stat().st_size != digest.size:
            return record, f"{path}: missing or not of the recorded size"
    return None


def _quarantine(journal: Journal, record: CheckpointRecord, reason: str) -> None:
    log.warning("the checkpoint of step %d is set aside and computed again: %s", record.step, reason)
    journal.quarantine(record, reason)
    move_aside(disk.checkpoint_directory(journal.directory, record.step), journal.directory / "quarantine")
