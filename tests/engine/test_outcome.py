"""A run's own failures are kept separate from trouble around it."""

from __future__ import annotations

import pytest
import ray

from raysweep.engine.outcome import RunUnfinishedError, cause_of, in_a_line, is_trouble
from raysweep.errors import CheckpointError, RunFailedError, StorageError


def in_a_task(cause: Exception) -> Exception:
    """Return an error as `ray.get` raises it for a task that raised `cause`."""
    return ray.exceptions.RayTaskError("measure", "traceback", cause).as_instanceof_cause()


@pytest.mark.parametrize(
    "error",
    [
        OSError(28, "No space left on device"),
        StorageError("disk full"),
        RunUnfinishedError("given up"),
        ray.exceptions.WorkerCrashedError(),
        ray.exceptions.OutOfMemoryError("the node ran out of memory"),
        in_a_task(OSError("gone")),
        in_a_task(StorageError("not visible")),
    ],
)
def test_trouble(error: Exception) -> None:
    assert is_trouble(error)


@pytest.mark.parametrize(
    "error",
    [
        RunFailedError("loss is nan"),
        CheckpointError("torn"),
        ValueError("a defect"),
        in_a_task(ValueError("a defect")),
        in_a_task(RunFailedError("not finite")),
    ],
)
def test_own_failures(error: Exception) -> None:
    assert not is_trouble(error)


def test_a_line_says_what_happened() -> None:
    assert in_a_line(in_a_task(ValueError("two\nlines"))) == "ValueError: two lines"
    assert in_a_line(RunFailedError("step 3: the loss is nan")) == "step 3: the loss is nan"
    assert type(cause_of(in_a_task(ValueError("x")))) is ValueError
