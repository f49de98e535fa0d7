"""The difference between a failure of a run and trouble around it.

A failure of the run itself (a loss that is not finite, a defect) would come again.  It is recorded, and the
run is left alone until somebody asks for a retry.  Trouble around the run (a process or node that died, a
full disk, lost objects) leaves no record.  The run is unfinished, and the next launch continues it.
"""

from __future__ import annotations

import traceback

import ray

from raysweep.errors import RaysweepError, StorageError


class RunUnfinishedError(RaysweepError):
    """A run that the cluster or its storage gave up; the next launch continues it."""

    exit_code = 4


def is_trouble(error: BaseException) -> bool:
    """Return whether an error is trouble around the run, so that another attempt may succeed."""
    if isinstance(error, ray.exceptions.RayTaskError):
        # Raised by our own code in a task; Ray makes it an instance of its cause if it can.
        cause = error.cause
        return isinstance(cause, OSError | StorageError) if isinstance(cause, BaseException) else False
    return isinstance(error, OSError | StorageError | RunUnfinishedError | ray.exceptions.RayError)


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
    ours = isinstance(error, RaysweepError)
    return " ".join((str(error) if ours else traceback.format_exception_only(error)[-1]).split())
