"""Launches of small sweeps as processes of their own, and the comparison of their results."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, get_args

from raysweep.bench.process import VARIABLES
from raysweep.engine.forkclient import end_with_parent
from raysweep.errors import RunFailedError
from raysweep.sweep import Resources

#: The program `raysweep` of this very installation.
PROGRAM = (sys.executable, "-m", "raysweep.cli")

#: Settings of the caller that would send a launch elsewhere.
_OTHERS = ("RAY_ADDRESS", "MLFLOW_TRACKING_URI", "RAYSWEEP_STORAGE")

#: Metrics that are the machine's speed, and so differ between equal trainings.
SPEEDS = frozenset({"train/tokens_per_second", "train/mfu"})

#: Run, metric, step and value of a point in MLflow.
Point = tuple[str, str, int, float]


def engines() -> tuple[str, ...]:
    """Return the engines that a sweep file may name, in the order nested, lanes.

    An installation whose `resources` have no such field has the nested engine alone.
    """
    field = Resources.model_fields.get("engine")
    known = ("nested",) if field is None else get_args(field.annotation)
    return tuple(name for name in ("nested", "lanes") if name in known)


def with_engine(sweep: Mapping[str, Any], engine: str) -> dict[str, Any]:
    """Return the content of a sweep file with an engine of `engines`."""
    if "engine" not in Resources.model_fields:
        return dict(sweep)
    return {**sweep, "resources": {**sweep.get("resources", {}), "engine": engine}}


def write_sweep(folder: Path, sweep: Mapping[str, Any]) -> Path:
    """Write a sweep file into a folder and return its path; JSON is YAML."""
    file = folder / f"{sweep['name']}.yaml"
    file.write_text(json.dumps(sweep, indent=1) + "\n", encoding="utf-8")
    return file


def start(command: tuple[str, ...], log: Path) -> subprocess.Popen[bytes]:
    """Start a process in a session of its own, which writes to `log` and ends with this process."""
    environment = {name: value for name, value in os.environ.items() if name not in _OTHERS}
    environment |= dict.fromkeys(VARIABLES, "1") | {"NO_COLOR": "1", "COLUMNS": "200"}
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )


def start_launch(file: Path, storage: Path, log: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start `raysweep launch` of a sweep file."""
    return start((*PROGRAM, "launch", str(file), "--storage", str(storage), *options), log)


def exported(name: str, storage: Path, log: Path) -> bytes:
    """Return the tidy table of a sweep as `raysweep export` writes it; raises `RunFailedError`."""
    table = storage / f"{name}.csv"
    command = (*PROGRAM, "export", name, "-o", str(table), "--storage", str(storage))
    code = start(command, log).wait()
    if code != 0:
        raise RunFailedError(f"raysweep export ended with code {code}: {last_words(log)}")
    return table.read_bytes()


def last_words(log: Path, lines: int = 3) -> str:
    """Return the last lines of a log that hold something, joined by " / "."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])


def points(store: Path) -> list[Point]:
    """Return the points of all runs in an MLflow database that are not deleted, without the speeds."""
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "select tags.value, metrics.key, metrics.step, metrics.value from metrics "
            "join tags on tags.run_uuid = metrics.run_uuid and tags.key = 'raysweep.run_id' "
            "join runs on runs.run_uuid = metrics.run_uuid and runs.lifecycle_stage = 'active'"
        ).fetchall()
    return [row for row in rows if row[1] not in SPEEDS]


def unlike(found: list[Point], wanted: list[Point]) -> int:
    """Return the number of points that are missing, superfluous, of another value, or there twice.

    >>> unlike([("run", "loss", 1, 0.5)] * 2, [("run", "loss", 1, 0.5)])
    1
    """
    differences = Counter(found)
    differences.subtract(wanted)
    return sum(map(abs, differences.values()))
