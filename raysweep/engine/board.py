"""The notice board: what every run is doing now, for the live view; and the request to stop.

Nothing on it is needed for a result.  The ledger is the truth, the board is news.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import ray


class _Board:
    """Keeps the latest news of each run, and which runs are asked to stop."""

    def __init__(self) -> None:
        self._news: dict[str, dict[str, Any]] = {}
        self._stop_all = False
        self._stop: set[str] = set()

    def begin(self, run_id: str) -> None:
        """Note that a run is taken up; an earlier request to stop it no longer holds."""
        self._stop.discard(run_id)
        self.post(run_id, {"state": "starting"})

    def post(self, run_id: str, news: dict[str, Any]) -> None:
        """Merge news of one run into what is known of it."""
        self._news.setdefault(run_id, {}).update(news)

    def read(self) -> dict[str, dict[str, Any]]:
        """Return all news by run id."""
        return self._news

    def request_stop(self, run_id: str | None = None) -> None:
        """Ask the workers of one run, or of all, to write a checkpoint and leave."""
        if run_id is None:
            self._stop_all = True
        else:
            self._stop.add(run_id)

    def stop_requested(self, run_id: str) -> bool:
        """Return whether the workers of a run have been asked to leave."""
        return self._stop_all or run_id in self._stop


Board: Any = ray.remote(num_cpus=0, max_restarts=-1)(_Board)


class StopWatch:
    """Asks the board once a second, in a thread, whether to stop; reading the answer costs nothing."""

    def __init__(self, board: Any, run_id: str) -> None:
        self._board = board
        self._run_id = run_id
        self._stop = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="raysweep-stop-watch", daemon=True)
        self._thread.start()

    def __call__(self) -> bool:
        return self._stop

    def close(self) -> None:
        """End the thread."""
        self._ended.set()

    def _watch(self) -> None:
        while not self._ended.wait(1.0):
            try:
                self._stop = ray.get(self._board.stop_requested.remote(self._run_id), timeout=5)
            except ray.exceptions.RayError:
                time.sleep(1.0)  # the board is being restarted: training goes on without it
