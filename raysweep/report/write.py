"""Writes the report's file from a sweep and its ledger."""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysweep.evaluation.finetune import DIVERGED_NOTE
from raysweep.files import write_atomic
from raysweep.report.claims import sweep_verdicts
from raysweep.report.contrasts import changes
from raysweep.report.page import Content, Failure, render
from raysweep.report.picture import picture
from raysweep.report.transfer import Diverged
from raysweep.sweep.provenance import last_launch
from raysweep.sweep.remarks import remarks
from raysweep.sweep.storage import storage_flag

if TYPE_CHECKING:
    from raysweep.sweep import Sweep


def write_report(
    sweep: Sweep,
    frame: pd.DataFrame,
    path: Path,
    *,
    tolerance: float | None = None,
) -> Path:
    """Write the report of a sweep as it stands, also in mid-sweep, and return its absolute path.

    `frame` is the sweep's tidy table; `tolerance`, in place of the sweep's own, is the excess loss in nats up
    to which a checkpoint counts as saturated.  A path that ends in `.svg` gets the headline alone, as a
    picture.  The file is there whole or not at all.  Raises `OSError` where it cannot be written, and
    `DataError` for a picture of nothing.
    """
    path = path.absolute()
    questions = sweep.questions.within(tolerance)
    if path.suffix == ".svg":
        write_atomic(path, picture(frame, tolerance=questions.tolerance).encode())
        return path
    ledger = sweep.ledger()
    failures = []
    for spec in sweep.runs:
        run = ledger.open(spec.run_id)
        for retried, records in ((True, run.retries()), (False, run.failures())):
            failures += [
                Failure(run_id=spec.run_id, error=r.error, message=r.message, step=r.step, retried=retried)
                for r in records
            ]
    named, where = shlex.quote(sweep.name), storage_flag(sweep.storage)
    content = Content(
        name=sweep.name,
        description=sweep.description,
        frame=frame,
        milestones={spec.run_id: spec.milestones for spec in sweep.runs},
        failures=failures,
        diverged=_diverged(sweep),
        changes=changes(sweep),
        remarks=remarks(sweep),
        verdicts=sweep_verdicts(sweep, frame, questions),
        tolerance=questions.tolerance,
        provenance={
            "sweep file": str(sweep.path),
            **origin(last_launch(sweep.directory)),
            "report written": _when(time.time()),
        },
        commands={
            "MLflow": f"raysweep ui {named}{where}",
            "table": f"raysweep export {named} -o {named}.parquet{where}",
        },
    )
    write_atomic(path, render(content).encode())
    return path


def _diverged(sweep: Sweep) -> list[Diverged]:
    """Return the cells of fine-tuning that diverged, by run and milestone."""
    ledger, found = sweep.ledger(), []
    for spec in sweep.runs:
        evaluation, run = spec.evaluations.get("finetune"), ledger.open(spec.run_id)
        if evaluation is None:
            continue
        for step in spec.milestones:
            record = run.evaluation(step, evaluation)
            if record is not None and "diverged" in record.notes:
                cells = record.notes["diverged"].removeprefix(DIVERGED_NOTE)
                found.append(Diverged(run_id=spec.run_id, step=step, cells=cells))
    return found


def origin(launch: Mapping[str, Any] | None) -> dict[str, str]:
    """Return the provenance of a sweep's latest launch as readable text; {} where there was none.

    `launch` is what `raysweep.sweep.provenance` recorded.
    """
    if launch is None:
        return {}
    commit = launch.get("git_commit") or "not a git checkout"
    dirty = ", with uncommitted changes" if launch.get("git_dirty") else ""
    versions = [f"{name} {number}" for name, number in launch["versions"].items() if number]
    return {
        "last launch": f"{_when(launch['time'])}: {shlex.join(launch['argv'])}",
        "commit": commit + dirty,
        "versions": ", ".join([*versions, f"Python {launch['python']}"]),
        "machine": f"{launch['host']}, {launch['platform']}, {launch['cpus']} CPUs",
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
