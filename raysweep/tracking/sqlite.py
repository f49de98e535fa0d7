"""The SQLite file of a store: created, migrated, made anew where it is damaged, followed where it moves."""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import closing, suppress
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raysweep.files import move_aside, replacing

_log = logging.getLogger("raysweep.tracking")

#: The SQLite files of sweeps that this process has opened.
_OURS: set[Path] = set()
_FILE = "raysweep.file"


def prepare(path: Path, *, rebuild: bool) -> None:
    """Create or migrate a store once, before others open it, because concurrent first openings fail.

    With `rebuild`, a damaged file is moved to the folder `quarantine` beside it, and made anew.  Raises
    `ValueError` for a relative path.
    """
    from mlflow import MlflowClient

    uri = f"sqlite:///{path}"
    if not path.is_absolute():
        raise ValueError(f"tracking_uri: '{uri}' is relative; write sqlite:////absolute/path/mlflow.db")
    _give_up_when_moved(path)
    damage = _damage(path) if rebuild and path.exists() else None
    if damage is not None:
        moved = move_aside(path, path.parent / "quarantine")
        for rest in ("-journal", "-wal", "-shm"):
            path.with_name(path.name + rest).unlink(missing_ok=True)
        _log.warning("%s is damaged (%s); moved to %s and written anew from the ledger", path, damage, moved)
    if path.exists():
        _upgrade(path)
        return
    # An incomplete store could never be opened again.
    with replacing(path) as fresh:
        copied = _copy_the_empty_one(fresh)
        # MLflow adds what is missing: everything, or its first experiment, which names the working directory.
        MlflowClient(tracking_uri=f"sqlite:///{fresh}").search_experiments(max_results=1)
        if not copied:
            _keep_an_empty_one(fresh)


def _upgrade(path: Path) -> None:
    """Do `mlflow db upgrade` in this process; it does nothing to a store that is up to date."""
    from mlflow.db import upgrade

    upgrade.main([f"sqlite:///{path}"], standalone_mode=False)


def _empty_one() -> Path:
    """Return the place of a store without experiments, beside the compiled modules of this package.

    MLflow makes each store through all migrations of its history, which takes seconds.  So one is kept, where
    this installation can be written.
    """
    import mlflow

    return Path(cache_from_source(__file__)).with_name(f"mlflow-{mlflow.__version__}.db")


def _copy_the_empty_one(path: Path) -> bool:
    """Copy the kept store and return True; return False where there is none that can be used."""
    kept = _empty_one()
    if not kept.exists():
        return False
    try:
        shutil.copyfile(kept, path)
        wrong = _damage(path)
        if wrong is None:
            _upgrade(path)  # a version of MLflow under development may have new migrations
            return True
    # Of the disk, of SQLite or of migrations: the store is made without it.
    except Exception as error:
        wrong = str(error)
    _log.warning("%s cannot be copied (%s); it is made anew", kept, wrong)
    path.unlink(missing_ok=True)
    return False


def _keep_an_empty_one(path: Path) -> None:
    """Keep a copy of a new store, where this installation can be written."""
    with suppress(OSError, sqlite3.Error), replacing(_empty_one()) as kept:
        shutil.copyfile(path, kept)
        with closing(sqlite3.connect(kept)) as store, store:
            store.execute("DELETE FROM experiments")


def settle(path: Path, experiment: str, artifacts: str) -> None:
    """Let the artifacts of an experiment be those at the URI `artifacts`, in a store that MLflow may serve.

    MLflow writes the absolute place of each run's artifacts into the store.  After a sweep's folder was moved
    or copied that is the old place: a launch would write there, and pages would show what lies there.
    Nothing is written where the places are right, or where there is no such store or experiment.  A store
    that cannot be written is left as it is, with a warning.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path, timeout=60.0)) as store:
            if not store.execute("SELECT 1 FROM sqlite_master WHERE name = 'experiments'").fetchone():
                return
            query = "SELECT artifact_location FROM experiments WHERE name = ?"
            found = store.execute(query, (experiment,)).fetchone()
            if found is None or found[0] == artifacts:
                return
            [old] = found
            tables = [("experiments", "artifact_location"), ("runs", "artifact_uri")]
            if store.execute("SELECT 1 FROM sqlite_master WHERE name = 'logged_models'").fetchone():
                tables.append(("logged_models", "artifact_location"))
            with store:
                for table, column in tables:
                    store.execute(
                        f"UPDATE {table} SET {column} = ? || substr({column}, ?)"
                        f" WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                        (artifacts, len(old) + 1, old, len(old) + 1, f"{old}/"),
                    )
    except sqlite3.DatabaseError as error:
        _log.warning("%s: its artifacts stay at their old place (%s)", path, error)


def _give_up_when_moved(path: Path) -> None:
    """Let MLflow's kept connections to a file be given up when the file is no longer at its place.

    They would go on writing into a damaged file that was moved aside.
    """
    from sqlalchemy import event
    from sqlalchemy.pool import Pool

    if not _OURS:
        event.listen(Pool, "connect", _connected)
        event.listen(Pool, "checkout", _taken)
    _OURS.add(path.resolve())


def _connected(connection: Any, record: Any) -> None:
    """Note the file of a new connection, if it is one of ours."""
    if isinstance(connection, sqlite3.Connection):
        path = Path(connection.execute("PRAGMA database_list").fetchone()[2])
        if path.resolve() in _OURS:
            record.info[_FILE] = path, _inode(path)


def _taken(connection: Any, record: Any, _: Any) -> None:
    """Raise the error that makes a pool connect again where the file has moved."""
    from sqlalchemy.exc import DisconnectionError

    if _FILE in record.info:
        path, inode = record.info[_FILE]
        if inode != _inode(path):
            raise DisconnectionError(f"{path} was moved")


def _inode(path: Path) -> tuple[int, int] | None:
    """Return device and inode of a file; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _damage(path: Path) -> str | None:
    """Return what is wrong with an SQLite file; None if it is whole, or cannot be opened now."""
    try:
        # With the right to write: a file whose writer was killed is whole only after its journal is applied.
        with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True)) as store:
            [found] = store.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                return str(found)
            made = store.execute("SELECT 1 FROM sqlite_master WHERE name = 'alembic_version'").fetchone()
    except sqlite3.OperationalError:
        return None  # locked, or out of reach
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if made else "it has no tables of MLflow"
