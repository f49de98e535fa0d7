"""An empty MLflow store, made once: making its tables takes seconds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from raysweep.tracking import SweepView, default_tracking_uri
from raysweep.tracking.store import Store


@pytest.fixture(scope="session")
def _template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("store")
    Store(SweepView(name="template"), default_tracking_uri(folder), (folder / "artifacts").as_uri())
    return folder / "mlflow.db"


@pytest.fixture
def make_store(_template: Path) -> Callable[[Path], None]:
    """Return a function that puts an empty store, tables and nothing else, into a sweep's folder."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        with sqlite3.connect(_template) as source, sqlite3.connect(folder / "mlflow.db") as target:
            source.backup(target)
            for table in ("tags", "runs", "experiments"):
                target.execute(f"delete from {table}")

    return make


@pytest.fixture
def folder(make_store: Callable[[Path], None], tmp_path: Path) -> Path:
    """A sweep's folder with an empty store."""
    make_store(tmp_path)
    return tmp_path
