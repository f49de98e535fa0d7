"""From a sweep and its ledger to the report's file."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from raysweep.report.page import Content, Failure, render

if TYPE_CHECKING:
    from raysweep.sweep import Sweep


def write_report(
    sweep: Sweep,
    frame: pd.DataFrame,
    path: Path,
    *,
    tolerance: float = 0.02,
    provenance: Mapping[str, str] | None = None,
) -> Path:
    """Write the report of a sweep as it stands, also in mid-sweep, and return its absolute path.

    `frame` is the sweep's tidy table; `tolerance` is the excess loss in nats up to which a checkpoint counts
    as saturated; `provenance` (name -> text) is shown before what is known of this process.  The file is
    there whole or not at all.  Raises `OSError` where it cannot be written.
    """
    ledger = sweep.ledger()
    failures = []
    for spec in sweep.runs:
        run = ledger.open(spec.run_id)
        for retried, records in ((True, run.retries()), (False, run.failures())):
            failures += [
                Failure(run_id=spec.run_id, error=r.error, message=r.message, step=r.step, retried=retried)
                for r in records
            ]
    content = Content(
        name=sweep.name,
        description=sweep.description,
        frame=frame,
        milestones={spec.run_id: spec.milestones for spec in sweep.runs},
        failures=failures,
        tolerance=tolerance,
        provenance={"sweep file": str(sweep.path), **(provenance or {}), **surroundings()},
        commands={
            "MLflow": f"raysweep ui {shlex.quote(sweep.name)}",
            "table": f"raysweep export {shlex.quote(sweep.name)} -o {shlex.quote(sweep.name)}.parquet",
        },
    )
    path = path.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        fresh.write_text(render(content), encoding="utf-8")
        os.replace(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)
    return path


def surroundings() -> dict[str, str]:
    """Return what is known of this process: versions, machine and time."""
    versions = []
    for package in ("raysweep", "torch", "ray", "mlflow", "numpy"):
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            continue
    return {
        "versions": ", ".join([*versions, f"Python {platform.python_version()}"]),
        "machine": f"{platform.node()}, {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "written": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
