"""New stores are copies of one that MLflow made, and as MLflow would make them."""

import logging
import os
import sqlite3
from pathlib import Path

import pytest

from raysweep.tracking import sqlite
from raysweep.tracking.sqlite import prepare


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of the kept store, with none in it."""
    path = tmp_path / "kept" / "mlflow.db"
    monkeypatch.setattr(sqlite, "_empty_one", lambda: path)
    return path


def content(store: Path) -> tuple[list[tuple[str, str, list[str]]], list[tuple[str, str]]]:
    """Return tables, triggers and indices, the lines of each sorted, and the experiments.

    Two stores that MLflow makes itself may have the constraints of a table in another order.
    """
    with sqlite3.connect(store) as database:
        made = database.execute("select type, name, sql from sqlite_master order by name").fetchall()
        experiments = database.execute("select name, artifact_location from experiments").fetchall()
    lines = {name: sorted(line.strip("\t ,)") for line in (sql or "").split("\n")) for _, name, sql in made}
    return [(kind, name, lines[name]) for kind, name, _ in made], experiments


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
        if damage is not None and name == "first":
            kept.write_bytes(damage)
    assert ("damaged" in caplog.text) == (damage is not None)
    (schema, experiments), (again, others) = made
    assert again == schema
    assert any(kind == "trigger" for kind, *_ in schema)
    assert [(name, place.replace("/first/", "/second/")) for name, place in experiments] == others
    assert content(kept) == (schema, [])


def test_a_store_is_made_where_none_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a file"
    place.write_text("")
    monkeypatch.setattr(sqlite, "_empty_one", lambda: place / "mlflow.db")
    prepare(tmp_path / "mlflow.db", rebuild=True)
    assert content(tmp_path / "mlflow.db")[1]
    assert sorted(os.listdir(tmp_path)) == ["a file", "mlflow.db"]
