"""The checkpoints that a sweep keeps: `keep: milestones | last | none` in its file, and `raysweep clean`.

    milestones   those of all milestones
    last         the newest of each run, from which it can be trained further
    none         those of unfinished runs alone

A checkpoint stays, whatever is asked for, as long as something that is known needs it: an evaluation that is
missing, a training that resumes from it, or a run that starts from it.  Of runs of the same sweep those count
that are not finished, of other sweeps of the storage all: their checkpoint cannot be made again from there.

The record of a checkpoint stays with its curve.  A milestone without a checkpoint is trained again where one
is needed after all, such as for an evaluation that is added to the file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal, get_args

from raysweep.remote import path_of
from raysweep.sweep.config import Sweep
from raysweep.sweep.format import STORED
from raysweep.sweep.ledger import RunLedger
from raysweep.sweep.missing import missing
from raysweep.sweep.run import RunSpec
from raysweep.sweep.survey import survey_run
from raysweep.training.checkpoint import remove, remove_unfinished

Keep = Literal["milestones", "last", "none"]

KEEPS: tuple[Keep, ...] = get_args(Keep)


@dataclass(frozen=True)
class Kept:
    """A checkpoint on the disk, its bytes, and why it stays: "" for one that may go."""

    run_id: str
    step: int
    bytes: int
    why: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {"run_id": self.run_id, "step": self.step, "bytes": self.bytes, "kept": self.why or None}


def keep_of(sweep: Sweep) -> Keep:
    """Return which checkpoints the file of a sweep wants to keep."""
    found: Keep = sweep.config.get("keep") or "milestones"
    return found


class Needs:
    """The checkpoints of a sweep that runs start from: its own, and those of the storage's other sweeps."""

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._specs = (*sweep.runs, *sweep.left_out)
        self._others = dict[tuple[str, int], str]()
        for path in sorted(sweep.storage.glob(f"*/{STORED}")):
            runs: list[Any] = []
            with suppress(OSError, ValueError, KeyError, TypeError):
                runs = list(json.loads(path.read_bytes())["runs"])
            for run in runs:
                with suppress(ValueError, KeyError, TypeError, AttributeError):
                    self._add(run.get("source") or {}, path.parent.name)

    def _add(self, source: Mapping[str, Any], user: str) -> None:
        """Note a source of a run of the sweep `user`, if it is a checkpoint of this sweep."""
        reason = f"a run of '{user}' starts from it"
        if source.get("sweep") == self._sweep.name:
            self._others[source["run"], source["step"]] = reason
        elif source.get("folder") is not None:
            folder = path_of(source["folder"]).resolve()
            run = RunLedger(folder.parent.parent)
            if run.sweep_directory == self._sweep.directory.resolve() and folder.name.startswith("step-"):
                self._others[run.run_id, int(folder.name.removeprefix("step-"))] = reason

    def of(self, run_id: str, *, finished_too: bool = False) -> dict[int, str]:
        """Return the steps of a run that others start from, with the reason to keep their checkpoints.

        With `finished_too`, runs of the same sweep count that are finished already.
        """
        ledger, found = self._sweep.ledger(), dict[int, str]()
        for spec in self._specs:
            source = spec.source
            if source is None or source.own != run_id:
                continue
            if finished_too or not missing(spec, survey_run(ledger.open(spec.run_id))).finished:
                found[source.step or 0] = f"{spec.run_id} starts from it"
        return found | {step: why for (run, step), why in self._others.items() if run == run_id}


def standing(run: RunLedger, spec: RunSpec, keep: Keep, needed: Mapping[int, str]) -> list[Kept]:
    """Return the checkpoints of a run that are on the disk, and why each stays.

    `needed` are the steps that other runs start from, with reasons.
    """
    held = survey_run(run)
    lacks = missing(spec, held, needed=needed)
    records = run.checkpoints()
    unmeasured = {step for step, _ in lacks.evaluations}
    why: dict[int, str] = {}
    if records and (keep != "none" or not lacks.finished):
        why[records[0].step] = "the newest of its run"
    if lacks.checkpoints:
        why[lacks.resume_step] = "training resumes from it"
    if keep == "milestones":
        why |= dict.fromkeys((record.step for record in records), "a milestone")
    why |= dict.fromkeys(unmeasured, "not measured yet")
    why |= needed
    return [
        Kept(
            run.run_id,
            record.step,
            sum(file.size for file in record.files.values()),
            why.get(record.step, ""),
        )
        for record in reversed(records)
    ]


def discard(run: RunLedger, found: Sequence[Kept]) -> int:
    """Remove the checkpoints of a run that may go; return their number."""
    gone = [kept.step for kept in found if not kept.why]
    for step in gone:
        remove(run.directory, step)
    return len(gone)


def tidy_up(sweep: Sweep, runs: Sequence[RunSpec]) -> int:
    """Remove the checkpoints of some runs that their sweep does not keep; return their number.

    Only the holder of the sweep's lock may call this, while nothing is trained.
    """
    keep = keep_of(sweep)
    if keep == "milestones":
        return 0
    needs, ledger, gone = Needs(sweep), sweep.ledger(), 0
    for spec in runs:
        run = ledger.open(spec.run_id)
        if spec.trains and run.visible:
            remove_unfinished(run.directory)
            gone += discard(run, standing(run, spec, keep, needs.of(spec.run_id)))
    return gone
