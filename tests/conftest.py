"""Settings that all tests share: one thread a process, no network, and a plan for several workers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import pytest
import torch

if TYPE_CHECKING:
    from helpers.object_store import ObjectStore

torch.set_num_threads(1)

#: The folder of the tests that start Ray.
RAY = "tests/integration/"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the tests that start Ray first where several workers share the tests, because they take longest."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: not item.nodeid.startswith(RAY))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give each worker of pytest-xdist whole files, and one worker all tests that start Ray.

    Two Rays at once would take each other's processors.  The tests of a file share what its fixtures make.
    """
    from xdist.scheduler import LoadScopeScheduling

    class Files(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return RAY if nodeid.startswith(RAY) else nodeid.partition("::")[0]

    return Files(config, log)


@pytest.fixture(scope="module")
def object_server() -> Iterator[ObjectStore]:
    """A real S3-compatible server."""
    # Few tests need its libraries.
    from helpers import object_store

    with object_store.object_server() as served:
        yield served


@pytest.fixture
def store(object_server: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """An object store with nothing in it; copies go to a folder of the test."""
    from helpers.object_store import anew

    return anew(object_server, tmp_path, monkeypatch)
