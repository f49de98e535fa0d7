"""Follows the ledger of a sweep and keeps MLflow up to date with it, in the background.

The tracker finds records by their file names, so any process may write them.  A run is FINISHED if nothing of
it is missing, FAILED if it has a failure, RUNNING if this launch has added to it, and KILLED if an earlier
launch left it unfinished.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from raysweep.remote import RemotePath, listed, local_place
from raysweep.sweep.ledger import Ledger, RunLedger, heads
from raysweep.sweep.missing import missing
from raysweep.sweep.names import axes_label
from raysweep.sweep.records import EvaluationRecord, FailureRecord, RecordName
from raysweep.sweep.survey import RunRecords
from raysweep.tracking.sqlite import settle
from raysweep.tracking.store import import_mlflow, no_telemetry
from raysweep.tracking.view import OVER, RunView, Status, SweepView, run_view
from raysweep.tracking.writer import Location, MLflowWriter, default_tracking_uri, own_artifacts
from raysweep.training import CheckpointRecord

if TYPE_CHECKING:
    from raysweep.sweep import RunSpec, Sweep

_log = logging.getLogger("raysweep.tracking")

#: Seconds between two looks at a ledger in an object store, and most runs that are looked at in a second.
_REMOTE, _LOOKS = 10.0, 20

#: Seconds between two looks at the ledger.
PERIOD = 2.0
#: Seconds after which MLflow is opened though there is nothing new to write; opened sooner, it would take
#: processor time from the first steps.
_LATEST = 20.0

Names = tuple[tuple[str, RecordName], ...]


def tracking_uri(sweep: Sweep) -> str:
    """Return the tracking URI of a sweep: its own setting, or SQLite in its folder."""
    return sweep.tracking_uri or default_tracking_uri(sweep.directory)


def shared_directory(sweep: Sweep) -> str:
    """Return the folder that distinguishes a sweep from others of its name, "" in a store of its own."""
    own = tracking_uri(sweep) == default_tracking_uri(sweep.directory)
    return "" if own else str(sweep.directory.resolve())


def settled(sweep: Sweep) -> str:
    """Return the tracking URI of a sweep, after the artifacts of its own store were found where it is now."""
    if not shared_directory(sweep):
        settle(
            local_place(sweep.directory).resolve() / "mlflow.db", sweep.name, own_artifacts(sweep.directory)
        )
    return tracking_uri(sweep)


class Tracker:
    """Writes a sweep to MLflow while it runs: `start`, then `close`.

    It never raises into the sweep.  `commit` is the git commit to show.  A tracker that is sent to another
    process (Tune pickles its callbacks) is not started there.
    """

    def __init__(self, sweep: Sweep, *, commit: str | None = None) -> None:
        no_telemetry()  # now, because Tune imports MLflow before the writer does
        self._sweep = sweep
        self._commit = commit
        self._writer = MLflowWriter(
            SweepView(
                name=sweep.name,
                config=sweep.config,
                note=sweep.description,
                git_commit=commit,
                directory=shared_directory(sweep),
            ),
            directory=sweep.directory,
            tracking_uri=sweep.tracking_uri,
        )
        self._specs = {spec.run_id: spec for spec in sweep.runs}
        self._ledger = Ledger(sweep.directory)
        self._before: dict[str, Names] = {}
        #: The records that were looked at, and the milestones that the run was to have.
        self._seen: dict[str, tuple[Names, tuple[int, ...]]] = {}
        self._records: dict[str, dict[str, Any]] = {}
        self._status: dict[str, Status] = {}
        self._opened = self._active = False
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._flushed: bool | None = None

    def __reduce__(self) -> tuple[Callable[..., Tracker], tuple[Any, ...]]:
        return _again, (self._sweep, self._commit)

    @property
    def location(self) -> Location | None:
        """The place of the sweep in MLflow; None until the store has been reached."""
        return self._writer.location

    def warm_up(self) -> None:
        """Import MLflow in a thread, for a caller that goes on to wait for something else."""

        def imports() -> None:
            with suppress(Exception):  # the writer will say what is wrong
                import_mlflow(self._writer.tracking_uri)

        threading.Thread(target=imports, name="raysweep-imports", daemon=True).start()

    def start(self) -> None:
        """Start to follow the ledger; a second call does nothing."""
        if self._thread is not None:
            return
        with listed(self._ledger.directory):
            self._before = {run_id: self._names(run_id) for run_id in self._ledger.run_ids()}
        self._thread = threading.Thread(target=self._follow, name="raysweep-tracker", daemon=True)
        self._thread.start()

    def follow(self, sweep: Sweep) -> None:
        """Take up the runs that a search has added to the sweep, and those that it has stopped."""
        self._specs = self._specs | {spec.run_id: spec for spec in sweep.runs}

    def close(self, *, timeout: float = 30.0, most: float = math.inf) -> bool:
        """Write the rest and return whether everything has arrived; a second call returns the same.

        This goes on while the store takes a run within `timeout` seconds, for at most about `most` seconds.
        With such a limit, a store that has not been opened yet stays closed.  The next launch writes what has
        not arrived.
        """
        if math.isfinite(most) and not self._opened:
            self._flushed = False
            self._stop.set()
            return False
        self.start()
        if self._flushed is None and self._thread is not None:
            began = time.monotonic()
            self._stop.set()
            self._thread.join(min(timeout, most))
            left = max(0.0, most - (time.monotonic() - began))
            self._flushed = self._opened and self._writer.close(self._outcome(), timeout=timeout, most=left)
        return bool(self._flushed)

    def _open(self) -> None:
        if not self._opened:
            self._writer.open()
            self._opened = True

    def _follow(self) -> None:
        troubled, period = False, PERIOD
        latest = time.monotonic() + _LATEST
        while True:
            last = self._stop.is_set()
            if self._flushed is None and (last or self._active or time.monotonic() >= latest):
                self._open()
            try:
                with listed(self._ledger.directory):
                    run_ids = self._ledger.run_ids()
                    for run_id in run_ids:
                        self._look(run_id)
                if isinstance(self._ledger.directory, RemotePath):
                    # A look takes a request for each run.
                    period = max(_REMOTE, len(run_ids) / _LOOKS)
                troubled = False
            except OSError as error:
                if not troubled:
                    _log.warning("the ledger cannot be read for tracking (%s); this is tried again", error)
                troubled = True
            if last:
                return
            self._stop.wait(period)

    def _names(self, run_id: str) -> Names:
        return tuple(self._ledger.open(run_id).record_names())

    def _look(self, run_id: str) -> None:
        names = self._names(run_id)
        spec = self._specs.get(run_id)
        look = (names, () if spec is None else spec.milestones)
        active = names != self._before.get(run_id, ())
        # A folder of another run belongs to an older sweep, unless this launch works on it: then a search
        # algorithm has made it.
        if not names or look == self._seen.get(run_id) or (spec is None and not active):
            return
        view = self._view(self._ledger.open(run_id), names, spec, active)
        if view is not None:
            self._writer.submit(view)
            self._status[run_id] = view.status
            self._active = self._active or active
            if view.status in OVER:
                # Of thousands of runs they would take much memory.  With a new one, all are read again.
                del self._records[run_id]
        self._seen[run_id] = look

    def _view(self, run: RunLedger, names: Names, spec: RunSpec | None, active: bool) -> RunView | None:
        wanted = heads(spec.evaluations) if spec is not None else None
        shown = [
            (name, parsed)
            for name, parsed in names
            if parsed.type != "evaluation" or wanted is None or wanted.get(parsed.kind) == parsed.head
        ]
        held, records = RunRecords(), self._read(run, shown)
        for name, parsed in shown:
            if name in records:
                held.add(parsed)
        checkpoints = [r for r in records.values() if isinstance(r, CheckpointRecord)]
        evaluations = [r for r in records.values() if isinstance(r, EvaluationRecord)]
        failures = [r for r in records.values() if isinstance(r, FailureRecord)]
        shown_as = self._identity(run, spec)
        if shown_as is None:
            return None
        status: Status = "RUNNING" if active else "KILLED"
        if failures:
            status = "FAILED"
        elif self._finished(held, spec):
            status = "FINISHED"
        return run_view(
            run_id=run.run_id,
            **shown_as,
            checkpoints=checkpoints,
            evaluations=evaluations,
            status=status,
            note=f"{failures[-1].error}: {failures[-1].message}" if failures else "",
        )

    def _read(self, run: RunLedger, names: list[tuple[str, RecordName]]) -> dict[str, Any]:
        """Return name -> record, each read once; retried failures are not shown."""
        known = self._records.setdefault(run.run_id, {})
        classes: dict[str, Any] = {
            "checkpoint": CheckpointRecord,
            "evaluation": EvaluationRecord,
            "failure": FailureRecord,
        }
        kept: dict[str, Any] = {}
        for name, parsed in names:
            if parsed.type not in classes:
                continue
            record = known.get(name) or run.read(name, classes[parsed.type])
            if record is not None:
                kept[name] = record
        self._records[run.run_id] = kept
        return kept

    def _identity(self, run: RunLedger, spec: RunSpec | None) -> dict[str, Any] | None:
        """Return identity, name, params and configuration of a run; None where they are not known."""
        if spec is not None:
            name = axes_label(spec.axes, " · ") if spec.trains else spec.algorithm.label
            params = settings(spec.identity_content, spec.language.encode())
            for kind, evaluation in spec.evaluations.items():
                params |= {f"evaluate.{kind}.{k}": v for k, v in settings(evaluation.content()).items()}
            known = {"identity": spec.training_identity, "name": name or spec.run_id}
            return known | {"params": params, "config": spec.encode()}
        record = run.identity()
        if record is None:
            return None
        base = flatten(self._sweep.runs[0].identity_content) if self._sweep.runs else {}
        varied = {path: value for path, value in flatten(record.content).items() if base.get(path) != value}
        params = settings(record.content, record.language)
        known = {"identity": record.identity, "name": axes_label(varied, " · ") or run.run_id}
        return known | {"params": params, "config": record.content}

    def _finished(self, held: RunRecords, spec: RunSpec | None) -> bool:
        # A run that a search algorithm has made must have what the sweep's own runs have.
        reference = spec or next((s for s in self._sweep.runs if s.trains), None)
        return reference is not None and missing(reference, held).finished

    def _outcome(self) -> Status:
        states = {run_id: self._status.get(run_id) for run_id in {*self._specs, *self._status}}
        if "FAILED" in states.values():
            return "FAILED"
        return "FINISHED" if set(states.values()) <= {"FINISHED"} else "KILLED"


def settings(content: Mapping[str, Any], language: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what a run or an evaluation was set to, by dotted path, without what was left open.

    The language's configuration takes the place of its fingerprint.  The number of steps and the milestones
    are no settings unless weights depend on them: more steps extend a run, and MLflow cannot alter a param.

    >>> settings({"language": "5fac", "algorithm": {"lr": 0.001, "ema": None}}, {"kind": "hmm"})
    {'language.kind': 'hmm', 'algorithm.lr': 0.001}
    """
    whole = {**content, "language": language} if language is not None else content
    return {path: value for path, value in flatten(whole).items() if value is not None}


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested plain data as dotted path -> value.

    >>> flatten({"model": {"shape": "64/1/2/256"}, "seed": 0})
    {'model.shape': '64/1/2/256', 'seed': 0}
    """
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


def _again(sweep: Sweep, commit: str | None) -> Tracker:
    return Tracker(sweep, commit=commit)
