"""The difference between a failure of a run and trouble around it.

A failure of the run itself (a loss that is not finite, a defect) would come again.  It is recorded, and the
run is left alone until somebody asks for a retry.  Trouble around the run (a process or node that died, a
full disk, lost objects) leaves no record.  The run is unfinished, and the next launch continues it.
"""

from __future__ import annotations

import errno
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, Self

import ray

from raysweep.errors import CheckpointError, RaysweepError, StorageError

#: Room on a storage does not come back while a sweep goes on writing, so another attempt is in vain.
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})

#: Errors of Python, torch and Ray; this module does not import torch.
_SHORT = ("MemoryError", "OutOfMemoryError")

#: Among these is a checkpoint that is damaged or has gone: the next attempt makes it again.  A process that
#: hung, and was given up for dead, may wake and remove one while its successor reads it.
_AROUND = (OSError, StorageError, CheckpointError)

#: Ray's error in place of one that it could not read back.
_UNREAD = ray.exceptions.UnserializableException

#: Ray's memory monitor says this of a process that it has killed.
_LOW_ON_MEMORY = "running low on memory"


class RunUnfinishedError(RaysweepError):
    """A run that the cluster or its storage gave up; the next launch continues it."""

    exit_code = 4


@dataclass(frozen=True)
class Trouble:
    """Trouble around a run: its kind, which decides what the launch does, and one line about it.

    `memory`: the memory of a node or GPU does not suffice.  `full`: the storage takes no more.
    """

    kind: Literal["memory", "full", "other"]
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the trouble that an error tells."""
        chain = list(_chain(error))
        if any(isinstance(link, OSError) and link.errno in _FULL for link in chain):
            return cls("full", in_a_line(error))
        short = any(type(link).__name__ in _SHORT or _LOW_ON_MEMORY in str(link) for link in chain)
        return cls("memory" if short else "other", in_a_line(error))


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and its causes; Ray and Ray Train keep causes in attributes of their own."""
    yield error
    inner = [error.__cause__, getattr(error, "cause", None), getattr(error, "controller_failure", None)]
    for cause in [*inner, *getattr(error, "worker_failures", {}).values()]:
        if isinstance(cause, BaseException) and cause is not error:
            yield from _chain(cause)


def is_trouble(error: BaseException) -> bool:
    """Return whether an error is trouble around the run, so that another attempt may succeed."""
    if isinstance(error, ray.exceptions.RayTaskError):
        # Raised in a task: by our own code, or by Ray for an input that was lost before the task began.
        return is_trouble(error.cause)
    if type(error) is ray.exceptions.RayError or isinstance(error, _UNREAD):
        return False  # an error of our own code that Ray could not pass on, such as a defect
    return isinstance(error, (*_AROUND, RunUnfinishedError, ray.exceptions.RayError))


def cause_of(error: BaseException) -> BaseException:
    """Return the error that a task raised, for one that Ray has wrapped."""
    cause = getattr(error, "cause", None)
    return cause if isinstance(cause, BaseException) else error


def in_a_line(error: BaseException) -> str:
    """Return an error in one line: raysweep's own errors as they are, others with their class.

    >>> in_a_line(StorageError("disk full")), in_a_line(ValueError("no"))
    ('disk full', 'ValueError: no')
    """
    error = cause_of(error)
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return str(error).partition("\n")[0]  # a page on all processes follows
    ours = isinstance(error, RaysweepError)
    return " ".join((str(error) if ours else traceback.format_exception_only(error)[-1]).split())
