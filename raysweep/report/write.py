"""Writes the report's file from a sweep and its ledger."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pandas as pd

from raysweep.evaluation.finetune import DIVERGED_NOTE
from raysweep.files import write_atomic
from raysweep.report.best import best_tables
from raysweep.report.claims import sweep_verdicts
from raysweep.report.contrasts import changes
from raysweep.report.data import measurements
from raysweep.report.page import Content, Failure, render
from raysweep.report.paper import alone, save_figures
from raysweep.report.parts import figures_kept
from raysweep.report.picture import picture, save_pictures
from raysweep.report.several import render_several
from raysweep.report.transfer import Diverged
from raysweep.sweep.pages import run_pages
from raysweep.sweep.provenance import last_launch
from raysweep.sweep.remarks import remarks
from raysweep.sweep.storage import storage_flag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raysweep.report.verdict import Verdict
    from raysweep.sweep import Sweep


def write_report(
    sweep: Sweep,
    frame: pd.DataFrame,
    path: Path,
    *,
    tolerance: float | None = None,
    figures: Path | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> Path:
    """Write the report of a sweep as it stands, also in mid-sweep, and return its absolute path.

    `frame` is the sweep's tidy table; `tolerance`, in place of the sweep's own, is the excess loss in nats up
    to which a checkpoint counts as saturated.  A path that ends in `.svg` gets the headline alone, as a
    picture.  The file is there whole or not at all.  With `figures`, each figure of the page is also a
    picture, an SVG file, in that folder.  `verdicts` are those of the sweep where they are known already.
    Raises `OSError` where a file cannot be written, and `DataError` for a picture of nothing.
    """
    path = path.absolute()
    if path.suffix == ".svg":
        chosen = sweep.questions.within(tolerance).tolerance
        write_atomic(path, picture(frame, tolerance=chosen).encode())
        return path
    with figures_kept() as kept:
        content = content_of(sweep, frame, path.parent, tolerance=tolerance, verdicts=verdicts)
        write_atomic(path, render(content).encode())
    if figures is not None:
        save_pictures(kept, frame, figures)
    return path


def write_figures(
    sweep: Sweep, frame: pd.DataFrame, folder: Path, kind: str, *, tolerance: float | None = None
) -> list[Path]:
    """Write every figure of the report as a file of a kind (pdf, svg, png), and return their paths.

    Raises `OSError` where one cannot be written.
    """
    folder = folder.absolute()
    with figures_kept() as kept:
        render(content_of(sweep, frame, folder, tolerance=tolerance))
    return save_figures(kept, frame, folder, kind)


def figures_of(sweep: Sweep, frame: pd.DataFrame) -> dict[str, Figure]:
    """Return every figure of a sweep's report, by name, as it stands alone; `frame` is its tidy table."""
    with figures_kept() as kept:
        render(content_of(sweep, frame, sweep.directory))
    measured = measurements(frame).shortly()
    return {name: alone(drawn, measured) for name, drawn in kept.items()}


def write_several(
    sweeps: Sequence[Sweep], frames: Sequence[pd.DataFrame], path: Path, *, tolerance: float | None = None
) -> Path:
    """Write one page that compares sweeps, each with its tidy table, and return its absolute path.

    Raises `OSError` where it cannot be written.
    """
    path = path.absolute()
    contents = [
        content_of(sweep, frame, path.parent, tolerance=tolerance)
        for sweep, frame in zip(sweeps, frames, strict=True)
    ]
    write_atomic(path, render_several(contents).encode())
    return path


def content_of(
    sweep: Sweep,
    frame: pd.DataFrame,
    folder: Path,
    *,
    tolerance: float | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> Content:
    """Return the content of a sweep's page, with links as they are from the `folder` of the page.

    `tolerance` is in place of the sweep's own.
    """
    ledger, questions = sweep.ledger(), sweep.questions.within(tolerance)
    failures = []
    for spec in sweep.runs:
        run = ledger.open(spec.run_id)
        for retried, records in ((True, run.retries()), (False, run.failures())):
            failures += [
                Failure(run_id=spec.run_id, error=r.error, message=r.message, step=r.step, retried=retried)
                for r in records
            ]
    named, where = shlex.quote(sweep.name), storage_flag(sweep.storage)
    return Content(
        name=sweep.name,
        description=sweep.description,
        frame=frame,
        milestones={spec.run_id: spec.milestones for spec in sweep.runs},
        failures=failures,
        diverged=_diverged(sweep),
        best=best_tables(sweep),
        changes=changes(sweep),
        kinds=frozenset(kind for spec in sweep.runs for kind in spec.evaluations),
        remarks=remarks(sweep),
        verdicts=sweep_verdicts(sweep, frame, questions) if verdicts is None else verdicts,
        tolerance=questions.tolerance,
        curves={spec.run_id: ledger.open(spec.run_id).curve() for spec in sweep.runs},
        links=_links(sweep, folder),
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


def _links(sweep: Sweep, folder: Path) -> dict[str, dict[str, str]]:
    """Return the addresses of the logs and of the MLflow page of each run, by run id."""
    ledger, pages = sweep.ledger(), run_pages(sweep.directory)
    links: dict[str, dict[str, str]] = {}
    for spec in sweep.runs:
        logs = ledger.open(spec.run_id).logs
        found = {"logs": quote(os.path.relpath(logs, folder)) + "/"} if logs.is_dir() else {}
        if spec.run_id in pages:
            found["MLflow"] = pages[spec.run_id]
        links[spec.run_id] = found
    return links


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
    facts = [launch["platform"], f"{launch['cpus']} CPUs"]
    return {
        "last launch": f"{_when(launch['time'])}: {shlex.join(launch['argv'])}",
        "commit": commit + dirty,
        "versions": ", ".join([*versions, f"Python {launch['python']}"]),
        "machine": ", ".join(filter(None, [launch["host"], launch.get("processor"), *facts])),
    }


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
