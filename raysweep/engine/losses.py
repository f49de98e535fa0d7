"""Notes why a lane has lost workers; runs in the process of Ray Train's controller, which sees them die."""

from __future__ import annotations

from typing import Any

from ray.train import UserCallback

from raysweep.engine.outcome import in_a_line


class Losses(UserCallback):
    """Passes the deaths of a lane's workers on to its mailbox.

    An error that a worker raised is no news: the worker has told it.
    """

    def __init__(self, mailbox: Any) -> None:
        self._mailbox = mailbox

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        """Note the death of the first worker that has died."""
        for error in worker_exceptions.values():
            death = getattr(error, "health_check_failure", None)
            if isinstance(death, BaseException):
                self._mailbox.note.remote(in_a_line(death))
                return
