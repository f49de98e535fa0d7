"""Writes the report's file from a sweep and its ledger."""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import pandas as pd

from raysweep.evaluation.finetune import DIVERGED_NOTE
from raysweep.files import write_atomic
from raysweep.remote import RemotePath, listed
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
from raysweep.sweep.snapshot import Snapshot
from raysweep.sweep.storage import storage_flag

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from raysweep.report.verdict import Verdict
    from raysweep.sweep import RunSpec, Sweep


#: Records of failures, those after which a run was tried again first.
_FAILURES: tuple[tuple[bool, Literal["retried", "failure"]], ...] = ((True, "retried"), (False, "failure"))


def write_report(
    sweep: Sweep,
    frame: pd.DataFrame,
    path: Path,
    *,
    tolerance: float | None = None,
    figures: Path | None = None,
    verdicts: Sequence[Verdict] | None = None,
    snapshot: Snapshot | None = None,
) -> Path:
    """Write the report of a sweep as it stands, also in mid-sweep, and return its absolute path.

    `frame` is the sweep's tidy table; `tolerance`, in place of the sweep's own, is the excess loss in nats up
    to which a checkpoint counts as saturated.  A path that ends in `.svg` gets the headline alone, as a
    picture.  The file is there whole or not at all.  With `figures`, each figure of the page is also a
    picture, an SVG file, in that folder.  `verdicts` are those of the sweep where they are known already.
    `snapshot` has the records that the frame was made of, where a caller has one.
    Beside the page of many runs comes the tidy table, as a Parquet file of the same name.
    Raises `OSError` where a file cannot be written, and `DataError` for a picture of nothing.
    """
    path = path.absolute()
    if path.suffix == ".svg":
        chosen = sweep.questions.within(tolerance).tolerance
        write_atomic(path, picture(frame, tolerance=chosen).encode())
        return path
    with figures_kept() as kept:
        content = content_of(
            sweep, frame, path.parent, tolerance=tolerance, verdicts=verdicts, snapshot=snapshot
        )
        if content.measured is not None and content.measured.many:
            # A page for people does not hold the numbers of thousands of runs.
            table = path.with_suffix(".parquet")
            write_atomic(table, frame.to_parquet(index=False))
            content = replace(content, table=table.name)
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
    measured = measurements(frame).shortly().drawn
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
    snapshot: Snapshot | None = None,
) -> Content:
    """Return the content of a sweep's page, with links as they are from the `folder` of the page.

    `tolerance` is in place of the sweep's own.
    """
    with listed(sweep.directory):
        return _content_of(sweep, frame, folder, tolerance, verdicts, snapshot or Snapshot.of(sweep))


def _content_of(
    sweep: Sweep,
    frame: pd.DataFrame,
    folder: Path,
    tolerance: float | None,
    verdicts: Sequence[Verdict] | None,
    snapshot: Snapshot,
) -> Content:
    ledger, questions = sweep.ledger(), sweep.questions.within(tolerance)
    measured = measurements(frame)
    shown = tuple(spec for spec in sweep.runs if not measured.many)
    if measured.many:
        drawn = set(measured.drawn.checkpoints["run_id"])
        shown = tuple(spec for spec in sweep.runs if spec.run_id in drawn)
    failures = [
        Failure(
            run_id=spec.run_id,
            error=head["error"],
            message=head["message"],
            step=head["step"],
            retried=retried,
        )
        for spec in sweep.runs
        for retried, type_ in _FAILURES
        for head in snapshot.failures(spec.run_id, type_)
    ]
    named, where = shlex.quote(sweep.name), storage_flag(sweep.storage)
    return Content(
        name=sweep.name,
        description=sweep.description,
        frame=frame,
        milestones={spec.run_id: spec.milestones for spec in sweep.runs},
        failures=failures,
        diverged=_diverged(sweep, snapshot),
        best=best_tables(sweep),
        changes=changes(sweep, shown),
        kinds=frozenset(kind for spec in sweep.runs for kind in spec.evaluations),
        remarks=remarks(sweep, snapshot),
        verdicts=sweep_verdicts(sweep, frame, questions, measured) if verdicts is None else verdicts,
        tolerance=questions.tolerance,
        curves={spec.run_id: ledger.open(spec.run_id).curve() for spec in shown},
        links=_links(sweep, shown, folder),
        measured=measured,
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


def _links(sweep: Sweep, shown: Sequence[RunSpec], folder: Path) -> dict[str, dict[str, str]]:
    """Return the addresses of the logs and of the MLflow page of some runs, by run id."""
    ledger, pages = sweep.ledger(), run_pages(sweep.directory)
    links: dict[str, dict[str, str]] = {}
    for spec in shown:
        logs = ledger.open(spec.run_id).logs
        found = {}
        # Browsers open no addresses of object stores; `raysweep logs` does.
        if not isinstance(logs, RemotePath) and not isinstance(folder, RemotePath) and logs.is_dir():
            found["logs"] = quote(os.path.relpath(logs, folder)) + "/"
        if spec.run_id in pages:
            found["MLflow"] = pages[spec.run_id]
        links[spec.run_id] = found
    return links


def _diverged(sweep: Sweep, snapshot: Snapshot) -> list[Diverged]:
    """Return the cells of fine-tuning that diverged, by run and milestone."""
    found = []
    for spec in sweep.runs:
        evaluation = spec.evaluations.get("finetune")
        if evaluation is None:
            continue
        for step in spec.milestones:
            row = snapshot.evaluation(spec.run_id, step, evaluation)
            notes = {} if row is None else snapshot.notes(row)
            if "diverged" in notes:
                cells = notes["diverged"].removeprefix(DIVERGED_NOTE)
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
