"""The only record of finished work: small files, each written whole or not at all.

    <storage>/<sweep>/lock                                the process that launches this sweep (see SweepLock)
    <storage>/<sweep>/runs/<run id>/run.json              the identity of the run and its configuration
    <storage>/<sweep>/runs/<run id>/records/*.json        one fact a file (raysweep.sweep.records)
    <storage>/<sweep>/runs/<run id>/checkpoints/step-*/   weights and resumable state (raysweep.training)
    <storage>/<sweep>/runs/<run id>/arrays/<evaluation>/  measured shards, per input
    <storage>/<sweep>/runs/<run id>/quarantine/           damaged files, for a person to see

Every write is idempotent: the first record of a fact stands, so a replay after a kill changes neither values
nor times.  Any number of processes may read while one writes.  A ledger holds only its path and may be sent
to other processes.
"""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ValidationError

from raysweep.errors import DataError, IdentityError
from raysweep.evaluation.base import Arrays, Evaluation
from raysweep.evaluation.metric import Metric
from raysweep.files import TEMPORARY, make_directory, move_aside, names, rename, write_atomic
from raysweep.remote import RemotePath, listed, path_of
from raysweep.sweep.identity import DIGITS, evaluation_identity
from raysweep.sweep.records import (
    EvaluationRecord,
    FailureRecord,
    RecordName,
    RunRecord,
    StopRecord,
    checkpoint_name,
    encode,
    evaluation_name,
    parsed_names,
    stop_name,
)
from raysweep.sweep.run import RunSpec
from raysweep.training.checkpoint import (
    CheckpointRecord,
    CurvePoint,
    checkpoint_directory,
    checkpoints_directory,
    is_whole,
)

log = logging.getLogger("raysweep.sweep")

R = TypeVar("R", bound=BaseModel)

_PREFIX = "array:"

#: The folder of a run's records.
RECORDS = "records"


@dataclass
class RunLedger:
    """The ledger of one run, and the `Journal` of its training."""

    directory: Path

    @property
    def run_id(self) -> str:
        """The id of the run, the name of its folder."""
        return self.directory.name

    @classmethod
    def of_checkpoint(cls, directory: Path) -> tuple[RunLedger, int]:
        """Return the ledger of the run that a checkpoint's folder belongs to, and the checkpoint's step."""
        return cls(directory.resolve().parent.parent), int(directory.name.rpartition("-")[2])

    @property
    def sweep_directory(self) -> Path:
        """The folder of the sweep."""
        return self.directory.parent.parent

    @property
    def storage(self) -> Path:
        """The root of all results."""
        return self.sweep_directory.parent

    @property
    def logs(self) -> Path:
        """The folder of the run's log files."""
        return self.directory / "logs"

    @property
    def identity_path(self) -> Path:
        """The file of the run's identity, a `RunRecord`."""
        return self.directory / "run.json"

    @property
    def visible(self) -> bool:
        """Whether this process sees the run's folder."""
        return self.identity_path.is_file()

    def identity(self) -> RunRecord | None:
        """Return the identity of the run, or None if it is absent; a damaged record is quarantined."""
        return read_record(self.identity_path, RunRecord, self._quarantine)

    @property
    def _records(self) -> Path:
        return self.directory / RECORDS

    @property
    def _quarantine(self) -> Path:
        return self.directory / "quarantine"

    @property
    def records_directory(self) -> Path:
        """The folder of the run's records."""
        return self._records

    def record_path(self, name: str) -> Path:
        """Return the file of a record."""
        return self._records / name

    def record_names(self) -> list[tuple[str, RecordName]]:
        """Return the file names of all records with their parts, by type and step."""
        return parsed_names(names(self._records))

    def read(self, name: str, cls: type[R]) -> R | None:
        """Return a record, or None if it is absent; a damaged one is quarantined and counts as absent."""
        return read_record(self.record_path(name), cls, self._quarantine)

    # Checkpoints

    def checkpoint_directory(self, step: int) -> Path:
        """Return the folder of the checkpoint of a step."""
        return checkpoint_directory(self.directory, step)

    def steps_on_disk(self) -> set[int]:
        """Return the steps whose checkpoint folder exists, recorded or not."""
        folder = checkpoints_directory(self.directory)
        with listed(folder):
            found = [(name, name.removeprefix("step-")) for name in names(folder)]
            return {int(step) for name, step in found if step.isdecimal() and is_whole(folder, name)}

    def checkpoint(self, step: int) -> CheckpointRecord | None:
        """Return the record of a checkpoint, even if its files are gone."""
        record = self.read(checkpoint_name(step), CheckpointRecord)
        return record if record is not None and record.step == step else None

    def checkpoint_records(self) -> list[CheckpointRecord]:
        """Return the records of all checkpoints ever committed, in the order of their steps."""
        steps = sorted(n.step for _, n in self.record_names() if n.type == "checkpoint")
        found = (self.checkpoint(step) for step in steps)
        return [record for record in found if record is not None]

    def checkpoints(self) -> list[CheckpointRecord]:
        """Return the committed checkpoints that have a folder, newest first."""
        there = self.steps_on_disk()
        return [record for record in reversed(self.checkpoint_records()) if record.step in there]

    def commit(self, record: CheckpointRecord) -> None:
        """Record a checkpoint, durably.

        A step recorded before keeps its first curve and times, so a replay draws no second curve.  Its
        manifest becomes that of the new files.
        """
        first = self.checkpoint(record.step)
        if first is not None:
            record = record.model_copy(
                update={
                    "curve": first.curve,
                    "time": first.time,
                    "train_seconds": first.train_seconds,
                    "train_cpu_seconds": first.train_cpu_seconds,
                    "milestone": first.milestone or record.milestone,
                }
            )
            if record == first:
                return
        write_atomic(self._records / checkpoint_name(record.step), encode(record))

    def quarantine(self, record: CheckpointRecord, reason: str) -> None:
        """Move the files of a checkpoint aside; its record stays, for its curve."""
        moved = move_aside(self.checkpoint_directory(record.step), self._quarantine)
        where = f"; moved to {moved}" if moved else ""
        log.warning("%s: checkpoint of step %d: %s%s", self.run_id, record.step, reason, where)
        if moved is not None:
            write_atomic(moved.with_name(moved.name + ".reason.txt"), (reason + "\n").encode())

    def curve(self) -> list[CurvePoint]:
        """Return the training curve, one point for each step; the first record of a step counts."""
        return curve_of(self.checkpoint_records())

    # Evaluations

    def evaluation(self, step: int, evaluation: Evaluation) -> EvaluationRecord | None:
        """Return the record of an evaluation at a step with exactly these settings, or None."""
        return self._evaluation(step, evaluation.key, evaluation_identity(evaluation))

    def _evaluation(self, step: int, kind: str, identity: str) -> EvaluationRecord | None:
        record = self.read(evaluation_name(step, kind, identity), EvaluationRecord)
        if record is None or (record.step, record.kind, record.identity) != (step, kind, identity):
            return None
        return record

    def evaluations(self) -> list[EvaluationRecord]:
        """Return all evaluations of all steps and settings, sorted by step and kind."""
        found = [self.read(n, EvaluationRecord) for n, p in self.record_names() if p.type == "evaluation"]
        return [record for record in found if record is not None]

    def record_evaluation(
        self,
        step: int,
        evaluation: Evaluation,
        metrics: Sequence[Metric],
        *,
        seconds: float,
        cpu_seconds: float | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> EvaluationRecord:
        """Record an evaluation durably and return its record; an earlier record stands."""
        first = self.evaluation(step, evaluation)
        if first is not None:
            return first
        identity = evaluation_identity(evaluation)
        record = EvaluationRecord(
            kind=evaluation.key,
            step=step,
            config=evaluation.encode(),
            identity=identity,
            metrics=tuple(metrics),
            time=time.time(),
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            notes=dict(notes or {}),
        )
        write_atomic(self._records / evaluation_name(step, evaluation.key, identity), encode(record))
        return record

    # Failures

    def _failure_names(self) -> list[str]:
        return [name for name, parsed in self.record_names() if parsed.type == "failure"]

    def failures(self) -> list[FailureRecord]:
        """Return the failures that keep this run from being tried again, oldest first."""
        found = [self.read(name, FailureRecord) for name in self._failure_names()]
        return [record for record in found if record is not None]

    def retries(self) -> list[FailureRecord]:
        """Return the failures after which this run was tried again, oldest first."""
        found = [self.read(n, FailureRecord) for n, p in self.record_names() if p.type == "retried"]
        return [record for record in found if record is not None]

    def record_failure(self, message: str, *, error: str, step: int | None = None) -> FailureRecord:
        """Record that the run cannot go on; a launch leaves it alone until `retry`."""
        taken = [p.step for _, p in self.record_names() if p.type in ("failure", "retried")]
        record = FailureRecord(message=message, error=error, step=step, time=time.time())
        write_atomic(self._records / f"failure-{max(taken, default=0) + 1:03d}.json", encode(record))
        return record

    def retry(self) -> int:
        """Let the run be tried again: its failures become history.  Returns their number."""
        failed = self._failure_names()
        for name in failed:
            rename(self._records / name, self._records / name.replace("failure-", "retried-"))
        return len(failed)

    # Stops of a search

    def stop(self, rule: str) -> StopRecord | None:
        """Return the decision of a rule to train the run no further; None if it has not decided so."""
        names = (n for n, p in self.record_names() if (p.type, p.head) == ("stopped", rule))
        found = (self.read(name, StopRecord) for name in names)
        return next((record for record in found if record is not None), None)

    def record_stop(self, rule: str, record: StopRecord) -> StopRecord:
        """Record that a rule stops the run, durably; an earlier decision stands."""
        first = self.stop(rule)
        if first is not None:
            return first
        write_atomic(self._records / stop_name(record.step, rule), encode(record))
        return record

    def unfinished_writes(self) -> list[Path]:
        """Return the files of this run that a killed process left half-written."""
        places = [self.directory, self._records, *self._arrays.glob("*")]
        return [path for place in places for path in place.glob(f"{TEMPORARY}*")]

    # Measured shards

    @property
    def _arrays(self) -> Path:
        return self.directory / "arrays"

    def arrays_directory(self, step: int, kind: str, identity: str) -> Path:
        """Return the folder of the shards of an evaluation."""
        return self._arrays / f"{step:08d}-{kind}-{identity[:DIGITS]}"

    def save_arrays(self, step: int, kind: str, identity: str, shard: int, arrays: Arrays) -> None:
        """Store the arrays of one shard durably; raises `DataError` for arrays of Python objects."""
        for name, array in arrays.items():
            if np.asarray(array).dtype.hasobject:
                raise DataError(f"{kind}: array '{name}' of shard {shard} holds Python objects, not numbers")
        content = io.BytesIO()
        # The prefix prevents clashes with the parameters of savez.
        members: dict[str, Any] = {f"{_PREFIX}{name}": array for name, array in arrays.items()}
        np.savez(content, **members)
        write_atomic(self.arrays_directory(step, kind, identity) / f"{shard:06d}.npz", content.getvalue())

    def load_arrays(self, step: int, kind: str, identity: str, shard: int) -> Arrays | None:
        """Return the arrays of a shard, or None if it is absent or damaged."""
        path = self.arrays_directory(step, kind, identity) / f"{shard:06d}.npz"
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        try:
            with np.load(io.BytesIO(content), allow_pickle=False) as stored:
                return {name.removeprefix(_PREFIX): stored[name] for name in stored.files}
        # A torn zip raises many errors (BadZipFile, EOFError, zlib.error, KeyError, ValueError).
        except Exception as error:
            moved = move_aside(path, self._quarantine)
            log.warning("%s: damaged shard moved to %s (%s)", path, moved, error)
            return None


class Ledger:
    """The ledger of a sweep: the folder `directory` (storage/name)."""

    def __init__(self, directory: Path) -> None:
        self.directory = path_of(directory)
        #: The folder that holds a folder for each run.
        self.runs_directory = self.directory / "runs"

    def __repr__(self) -> str:
        return f"Ledger({str(self.directory)!r})"

    def run_ids(self) -> list[str]:
        """Return the ids of all runs that have a folder, sorted."""
        return names(self.runs_directory)

    def open(self, run_id: str) -> RunLedger:
        """Return the ledger of a run for reading, without making or checking anything."""
        return RunLedger(self.runs_directory / run_id)

    def run(self, spec: RunSpec) -> RunLedger:
        """Return the ledger of a run, made if it is new.

        Raises `IdentityError` if the folder belongs to another configuration.
        """
        run = self.open(spec.run_id)
        if self.check(spec) is None:
            record = RunRecord(
                run_id=spec.run_id,
                identity=spec.training_identity,
                content=spec.identity_content,
                language=spec.language.encode(),
            )
            make_directory(run._records)
            write_atomic(run.identity_path, encode(record))
        return run

    def check(self, spec: RunSpec) -> RunRecord | None:
        """Return the stored identity of a run, or None; raises `IdentityError` if it is another run's."""
        run = self.open(spec.run_id)
        record = run.identity()
        if record is not None and record.identity != spec.training_identity:
            raise IdentityError(
                f"{run.directory} holds run {record.run_id} (identity {record.identity}), but the sweep asks "
                f"for run {spec.run_id} (identity {spec.training_identity}); move that folder away"
            )
        return record

    def clean(self) -> int:
        """Remove unfinished writes of killed processes; only the holder of the sweep's lock may call it.

        Returns their number.
        """
        if isinstance(self.directory, RemotePath):
            return 0
        runs = [self.open(run_id) for run_id in self.run_ids()]
        lefts = [*self.directory.glob(f"{TEMPORARY}*"), *(p for run in runs for p in run.unfinished_writes())]
        for left in lefts:
            left.unlink(missing_ok=True)
        return len(lefts)


def read_record(path: Path, cls: type[R], quarantine: Path) -> R | None:
    """Return a record from its file, or None if it is absent; a damaged one is moved to `quarantine`."""
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    try:
        return cls.model_validate_json(content)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
    # What a listing says may be older than what would be moved.
    if isinstance(path, RemotePath):
        with suppress(FileNotFoundError, ValidationError):
            return cls.model_validate_json(path.fetched())
    moved = move_aside(path, quarantine)
    log.warning("%s: damaged record moved to %s and taken as absent (%s)", path, moved, reason)
    return None


def curve_of(checkpoints: Iterable[CheckpointRecord]) -> list[CurvePoint]:
    """Return the training curve in some checkpoints, one point for each step, in the order of steps.

    Steps that are trained again, for a new milestone, are recorded again with later times.  The first point
    of a step counts, because it has been shown before.
    """
    points: dict[int, CurvePoint] = {}
    for record in checkpoints:
        for point in record.curve:
            known = points.get(point.step)
            if known is None or point.time_ms < known.time_ms:
                points[point.step] = point
    return [points[step] for step in sorted(points)]


def heads(evaluations: Mapping[str, Evaluation]) -> dict[str, str]:
    """Return kind -> head of the identity, as in the names of records."""
    return {kind: evaluation_identity(evaluation)[:DIGITS] for kind, evaluation in evaluations.items()}
