"""Remembers the pages of runs in MLflow, so that a report can link to them without asking MLflow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from raysweep.files import write_atomic
from raysweep.sweep.tracking_uri import is_server

_FILE = "mlflow-pages.json"

#: The address at which `raysweep ui` serves a database, unless told otherwise.
LOCAL = "http://127.0.0.1:5000"


def save_pages(directory: Path, tracking_uri: str, experiment_id: str, runs: Mapping[str, str]) -> None:
    """Keep MLflow's ids of a sweep's runs (run id -> MLflow's) in the sweep's folder."""
    base = tracking_uri.rstrip("/") if is_server(tracking_uri) else LOCAL
    pages = {run: f"{base}/#/experiments/{experiment_id}/runs/{known}" for run, known in runs.items()}
    write_atomic(directory / _FILE, (json.dumps(pages, indent=1, sort_keys=True) + "\n").encode())


def run_pages(directory: Path) -> dict[str, str]:
    """Return the address of each run's page in MLflow by run id; {} where none is known."""
    try:
        pages: dict[str, str] = json.loads((directory / _FILE).read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return pages
