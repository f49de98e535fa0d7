"""New stores are copies of one that MLflow made, and as MLflow would make them."""

import logging
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raysweep.tracking import sqlite
from raysweep.tracking.sqlite import prepare


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the kept store, with none in it."""
    path = tmp_path / "kept" / "mlflow.db"
    monkeypatch.setattr(sqlite, "_empty_one", lambda: path)
    return path


def content(store: Path) -> tuple[list[tuple[str, str, list[str]]], dict[str, list[tuple[Any, ...]]]]:
    """Return tables, triggers and indices, the lines of each sorted, and the rows of each table with some.

    Two stores that MLflow makes itself may have the constraints of a table in another order.
    """
    with sqlite3.connect(store) as database:
        made = database.execute("select type, name, sql from sqlite_master order by name").fetchall()
        tables = [name for kind, name, _ in made if kind == "table"]
        rows = {name: database.execute(f"select * from {name}").fetchall() for name in tables}
    lines = {name: sorted(line.strip("\t ,)") for line in (sql or "").split("\n")) for _, name, sql in made}
    return [(kind, name, lines[name]) for kind, name, _ in made], {k: v for k, v in rows.items() if v}


def mark(store: Path) -> None:
    with sqlite3.connect(store) as database:
        database.execute("pragma user_version = 7")


def marked(store: Path) -> bool:
    with sqlite3.connect(store) as database:
        return database.execute("pragma user_version").fetchone() == (7,)


@pytest.mark.parametrize("damage", [None, b"", b"no database at all" * 100], ids=["whole", "empty", "other"])
def test_a_copy_is_as_mlflow_makes_it(
    kept: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    damage: bytes | None,
) -> None:
    made = []
    for name in ("first", "second"):
        folder = tmp_path / name
        folder.mkdir()
        # MLflow's own first experiment has its files in the current folder.
        monkeypatch.chdir(folder)
        with caplog.at_level(logging.WARNING, logger="raysweep.tracking"):
            prepare(folder / "mlflow.db", rebuild=True)
        made.append(content(folder / "mlflow.db"))
        if name == "first":
            kept.write_bytes(damage) if damage is not None else mark(kept)
    assert ("cannot be copied" in caplog.text) == (damage is not None)
    assert marked(tmp_path / "second" / "mlflow.db") == (damage is None)
    (schema, rows), (again, others) = made
    assert again == schema
    assert any(kind == "trigger" for kind, *_ in schema)
    places = [place for experiments in (rows, others) for _, _, place, *_ in experiments.pop("experiments")]
    assert places == [f"{tmp_path}/{name}/mlruns/0" for name in ("first", "second")]
    assert others == rows
    assert content(kept) == (schema, rows)


def test_a_store_is_made_where_none_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a file"
    place.write_text("")
    monkeypatch.setattr(sqlite, "_empty_one", lambda: place / "mlflow.db")
    prepare(tmp_path / "mlflow.db", rebuild=True)
    assert content(tmp_path / "mlflow.db")[1]["experiments"]
    assert sorted(os.listdir(tmp_path)) == ["a file", "mlflow.db"]


def test_what_is_imported_ahead_is_what_a_store_needs() -> None:
    code = """
import sys
from raysweep.tracking.store import import_mlflow
needs = "mlflow.store.tracking.sqlalchemy_store"
import_mlflow("http://127.0.0.1:1")
assert "mlflow" in sys.modules and needs not in sys.modules
import_mlflow("sqlite:////a.db")
assert needs in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
