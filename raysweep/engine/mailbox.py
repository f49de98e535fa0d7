"""The mailbox of a lane: passes one job at a time from a trial to the workers that train it.

The actor's process imports nothing but Ray, so a job is opaque here, and an error is a line of text.
"""

from __future__ import annotations

import asyncio
from typing import Any

#: Worker groups that may take up one job; the last three after a failure.
ATTEMPTS = 4

#: Seconds after which workers without a job are let go.  Tune starts the next trial in one or two.
IDLE = 10.0


class Mailbox:
    """The jobs of a lane, numbered from 1.

    A job is open from `put` until its workers ask for the next one.  If they die before that, the next worker
    group that asks takes the same job up again.  A job that `ATTEMPTS` groups took up and lost ends with an
    error.

    A trial holds the lane from `hold` to `rest`; a new lane is held.  A lane that nobody has held for `idle`
    seconds, and that has no open job, is closed: its workers are let go, so that others get their resources.
    """

    def __init__(self, idle: float = IDLE) -> None:
        self._idle = idle
        self._held, self._closed = True, False
        self._number = 0
        self._job: Any = None
        self._taken = 0
        self._error: str | None = None
        self._trouble: str | None = None
        self._group: str | None = None
        self._changed = asyncio.Condition()

    async def hold(self) -> bool:
        """Keep the workers for a job to come; False if the lane is closed."""
        async with self._changed:
            self._held = not self._closed
            self._changed.notify_all()
            return self._held

    async def rest(self) -> None:
        """Let the workers go unless somebody holds the lane again in time."""
        async with self._changed:
            self._held = False
            self._changed.notify_all()

    async def put(self, job: Any) -> int:
        """Open a job and return its number; raises `RuntimeError` if another is open, or the lane closed."""
        async with self._changed:
            if self._closed:
                raise RuntimeError("the lane is closed")
            if self._job is not None:
                raise RuntimeError(f"job {self._number} of the lane is still open")
            self._number += 1
            self._job, self._taken, self._error, self._trouble = job, 0, None, None
            self._changed.notify_all()
            return self._number

    async def take(self, group: str, ended: int | None = None) -> tuple[int, Any] | None:
        """Wait for an open job and return it with its number.

        `ended` is the number of the job that the group has just ended.  Only the newest group that has asked
        is served, because Ray Train ends a group before it starts the next one; an older one gets None.  So
        does everyone once the lane is closed.
        """
        async with self._changed:
            if ended == self._number and self._job is not None:
                self._end(None)
            self._group = group
            self._changed.notify_all()
            while self._group == group and not self._closed:
                if self._job is not None and self._taken < ATTEMPTS:
                    self._taken += 1
                    return self._number, self._job
                if self._job is not None:
                    self._end(f"the workers of the run were lost {ATTEMPTS} times{self._cause()}")
                if not await self._wait(None if self._held else self._idle):
                    self._closed = not self._held and self._job is None
            return None

    async def _wait(self, seconds: float | None) -> bool:
        """Wait for a change; return whether there was one within so many seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return False
        return True

    async def note(self, trouble: str) -> None:
        """Keep the reason for which the worker group of the open job is lost."""
        if self._job is not None:
            self._trouble = trouble

    async def outcome(self, number: int) -> str | None:
        """Wait for the end of a job; return None, or the reason for which it was given up."""
        async with self._changed:
            await self._changed.wait_for(lambda: number != self._number or self._job is None)
            return self._error if number == self._number else None

    def _end(self, error: str | None) -> None:
        self._job, self._error = None, error
        self._changed.notify_all()

    def _cause(self) -> str:
        return "" if self._trouble is None else f"; the last time: {self._trouble}"
