"""A run's own failures are kept separate from trouble around it."""

from __future__ import annotations

import errno
import os

import pytest
import ray
import torch
from ray.train import ControllerError, WorkerGroupError

from raysweep.engine.outcome import RunUnfinishedError, Trouble, cause_of, in_a_line, is_trouble
from raysweep.errors import CheckpointError, RunFailedError, StorageError


def in_a_task(cause: Exception) -> Exception:
    """Return an error as `ray.get` raises it for a task that raised `cause`."""
    return ray.exceptions.RayTaskError("measure", "traceback", cause).as_instanceof_cause()


class UnpicklableError(Exception):
    """An error that Ray cannot pass on."""

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError("not to be pickled")


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        StorageError("disk full"),
        CheckpointError("step-00000500/state.json: missing"),
        RunUnfinishedError("given up"),
        ray.exceptions.WorkerCrashedError(),
        ray.exceptions.OutOfMemoryError("the node ran out of memory"),
        in_a_task(OSError("gone")),
        in_a_task(StorageError("not visible")),
        in_a_task(CheckpointError("step-00000500/state.json: missing")),
        in_a_task(ray.exceptions.OwnerDiedError("ff" * 28, None, "")),
        in_a_task(in_a_task(ray.exceptions.ObjectLostError("ff" * 28, None, ""))),
    ],
)
def test_trouble(error: Exception) -> None:
    assert is_trouble(error)


@pytest.mark.parametrize(
    "error",
    [
        RunFailedError("loss is nan"),
        ValueError("a defect"),
        in_a_task(ValueError("a defect")),
        in_a_task(RunFailedError("not finite")),
        in_a_task(UnpicklableError()),
        ray.exceptions.UnserializableException("not to be read back"),
        in_a_task(ray.exceptions.UnserializableException("not to be read back")),
        in_a_task(in_a_task(ValueError("a defect"))),
    ],
)
def test_own_failures(error: Exception) -> None:
    assert not is_trouble(error)


def test_a_line_says_what_happened() -> None:
    assert in_a_line(in_a_task(ValueError("two\nlines"))) == "ValueError: two lines"
    assert in_a_line(RunFailedError("step 3: the loss is nan")) == "step 3: the loss is nan"
    assert type(cause_of(in_a_task(ValueError("x")))) is ValueError


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
KILLED = ray.exceptions.RayActorError(
    None, "The process was killed because the node was running low on memory.", False, False
)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FULL, "full"),
        (caused(StorageError("checkpoint of step 3 cannot be written"), FULL), "full"),
        (in_a_task(FULL), "full"),
        (OSError(errno.EROFS, "read-only"), "full"),
        (OSError(errno.ESTALE, "stale handle"), "other"),
        (WorkerGroupError("1 of 2", {0: ValueError("x"), 1: torch.OutOfMemoryError("CUDA")}), "memory"),
        (WorkerGroupError("1 of 1", {0: KILLED}), "memory"),
        (ControllerError(KILLED), "memory"),
        (caused(RunUnfinishedError("training was given up"), WorkerGroupError("", {0: KILLED})), "memory"),
        (MemoryError(), "memory"),
        (ray.exceptions.OutOfMemoryError("the node ran out"), "memory"),
        (ray.exceptions.NodeDiedError("its node died"), "other"),
        (RunUnfinishedError("a controller died"), "other"),
    ],
)
def test_kinds_of_trouble(error: Exception, kind: str) -> None:
    assert Trouble.of(error).kind == kind
    assert Trouble.of(error).message == in_a_line(error)
