"""The only writer of a sweep: a background thread that brings MLflow up to date with the ledger's views.

The writer never raises into a sweep and never makes it wait for a server: `submit` only notes the newest view
of a run.  An outage is logged once, retried with growing pauses, and logged again when it is over.  The next
launch writes, from the same records, what could not be written before `close`.
"""

from __future__ import annotations

import logging
import math
import pickle
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

from raysweep.remote import local_place
from raysweep.sweep.pages import save_pages
from raysweep.sweep.tracking_uri import is_server
from raysweep.tracking.store import Store
from raysweep.tracking.view import RunView, Status, SweepView

_log = logging.getLogger("raysweep.tracking")

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 60.0
#: Seconds between two words on what is left to write at the end.
_TELL = 10.0


@dataclass(frozen=True)
class Location:
    """The place of a sweep in MLflow."""

    tracking_uri: str
    experiment_id: str
    parent_run_id: str


def default_tracking_uri(directory: Path) -> str:
    """Return the absolute SQLite URI of a sweep's own store, in the sweep's folder.

    Of a sweep in an object store it is on this machine, as a view that its ledger can make again.
    """
    return f"sqlite:///{local_place(directory).resolve() / 'mlflow.db'}"


def own_artifacts(directory: Path) -> str:
    """Return the URI of the folder of artifacts beside a sweep's own store, or for a database elsewhere."""
    return (local_place(directory).resolve() / "artifacts").as_uri()


class MLflowWriter:
    """Writes one sweep to MLflow, in the background.

    `directory` is the sweep's folder; without a `tracking_uri` the store is `directory/mlflow.db`, created
    on first use, and made anew where it is damaged.  A server keeps the artifacts itself, for a database they
    are in `directory/artifacts`.

        writer = MLflowWriter(SweepView(name="scaling"), directory=folder)
        writer.open()                    # returns at once
        writer.submit(view)              # the newest view of a run; never blocks, never raises
        flushed = writer.close("FINISHED", timeout=30)
    """

    def __init__(self, sweep: SweepView, *, directory: Path, tracking_uri: str | None = None) -> None:
        self.sweep = sweep
        self._directory = directory
        self.tracking_uri = tracking_uri or default_tracking_uri(directory)
        self._own = self.tracking_uri == default_tracking_uri(directory)
        # A database keeps no files, and MLflow would put them into ./mlruns of the current folder.
        self._artifacts = None if is_server(self.tracking_uri) else own_artifacts(directory)
        self._lock = threading.Condition()
        #: The newest view of each run, packed once it is written: a store that was lost gets all of them.
        self._views: dict[str, RunView | bytes] = {}
        self._pending: dict[str, RunView | bytes] = {}
        self._refused: dict[str, str] = {}
        self._closing: Status | None = None
        self._location: Location | None = None
        self._connected = threading.Event()
        self._flushed = False
        self._down = False
        self._taken = 0
        self._store: Store | None = None
        self._thread: threading.Thread | None = None

    @property
    def location(self) -> Location | None:
        """The place of the sweep in MLflow; None until the store has been reached."""
        return self._location

    @property
    def refused(self) -> dict[str, str]:
        """Runs with content that MLflow refuses, and its messages; an outage is not a refusal."""
        with self._lock:
            return dict(self._refused)

    def open(self) -> None:
        """Start the thread; a second call is an error."""
        if self._thread is not None:
            raise RuntimeError("this writer has been opened already")
        # A daemon: an unreachable server must not keep a finished sweep's process alive.
        self._thread = threading.Thread(target=self._serve, name="raysweep-mlflow", daemon=True)
        self._thread.start()

    def wait(self, timeout: float) -> Location | None:
        """Wait up to `timeout` seconds until the store has been reached; None if it has not."""
        self._connected.wait(timeout)
        return self._location

    def submit(self, view: RunView) -> None:
        """Note the newest view of a run, to be written soon.  Views are cumulative: the last one counts."""
        with self._lock:
            self._views[view.run_id] = self._pending[view.run_id] = view
            self._refused.pop(view.run_id, None)
            self._lock.notify()

    def close(self, status: Status, *, timeout: float = 30.0, most: float = math.inf) -> bool:
        """Write the rest, end the parent run with `status`, and return whether everything has arrived.

        This goes on while the store takes a run within `timeout` seconds, for at most about `most` seconds
        in all, and for one attempt if the store is down.  Children that are still RUNNING are ended as
        KILLED.
        """
        if self._thread is None:
            raise RuntimeError("this writer has not been opened")
        with self._lock:
            self._closing = status
            self._lock.notify()
        began = seen_at = told_at = time.monotonic()
        seen = -1
        while self._thread.is_alive():
            self._thread.join(0.1)
            now = time.monotonic()
            if self._taken != seen:
                seen, seen_at = self._taken, now
            if now - seen_at > timeout or now - began > most:
                break
            if now - told_at > _TELL:
                told_at = now
                _log.info("MLflow: %d runs are still to be written", len(self._pending))
        if self._thread.is_alive():
            _log.warning(
                "MLflow at %s is still busy after %.0f s; the next launch writes the rest",
                self.tracking_uri,
                time.monotonic() - began,
            )
        return self._flushed

    def _serve(self) -> None:
        pause = _FIRST_PAUSE
        while True:
            closing = self._closing
            try:
                store = self._drain()
                if closing is not None:
                    store.finish(closing)
                    save_pages(self._directory, self.tracking_uri, store.experiment_id, store.runs)
                    self._flushed = not self._pending and not self._refused
            # The sweep goes on, whatever error the client, its server or its database raises.
            except Exception as error:
                self._store = None
                self._report(error)
                if closing is not None:
                    return
                until, pause = time.monotonic() + pause, min(2 * pause, _LONGEST_PAUSE)
                with self._lock:
                    while self._closing is None and (left := until - time.monotonic()) > 0:
                        self._lock.wait(left)
                continue
            pause = _FIRST_PAUSE
            if closing is not None:
                return
            with self._lock:
                while self._closing is None and not self._pending:
                    self._lock.wait()

    def _drain(self) -> Store:
        """Write everything pending; views that arrive meanwhile wait for the next turn."""
        if self._store is None:
            self._store = Store(self.sweep, self.tracking_uri, self._artifacts, rebuild=self._own)
            self._location = Location(self.tracking_uri, self._store.experiment_id, self._store.parent_id)
            self._connected.set()
            # Connecting has ended all runs that were RUNNING, ours included; unchanged runs cost nothing.
            with self._lock:
                self._pending = dict(self._views)
        store = self._store
        with self._lock:
            held = list(self._pending.values())
        for one in held:
            view = _unpacked(one)
            try:
                store.write(view)
            except Exception as error:
                if not _is_refusal(error):
                    raise
                _log.error("MLflow refuses run %s: %s", view.run_id, error)
                with self._lock:
                    self._refused[view.run_id] = str(error)
            packed = _packed(one)
            with self._lock:
                self._taken += 1
                if self._pending.get(view.run_id) is one:
                    del self._pending[view.run_id]
                    self._views[view.run_id] = packed
        if self._down:
            self._down = False
            _log.warning("MLflow at %s is reachable again", self.tracking_uri)
        return store

    def _report(self, error: Exception) -> None:
        if not self._down:
            self._down = True
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            _log.warning(
                "MLflow at %s cannot be written (%s); the sweep goes on, and this is retried",
                self.tracking_uri,
                reason,
            )


def _packed(view: RunView | bytes) -> bytes:
    """Return a view as a sixth of its bytes: a launch keeps those of thousands of runs."""
    return view if isinstance(view, bytes) else zlib.compress(pickle.dumps(view), 1)


def _unpacked(view: RunView | bytes) -> RunView:
    """Return the view that `_packed` made these bytes of, or the view itself."""
    if isinstance(view, RunView):
        return view
    unpacked: RunView = pickle.loads(zlib.decompress(view))  # noqa: S301 -- packed by this process
    return unpacked


def _is_refusal(error: Exception) -> bool:
    """Return whether MLflow will never accept a value, as opposed to an outage that passes."""
    from mlflow.exceptions import MlflowException

    return isinstance(error, MlflowException) and error.error_code == "INVALID_PARAMETER_VALUE"
