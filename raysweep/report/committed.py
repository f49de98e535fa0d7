"""Committed results of a sweep file: its tidy table, its figures and its verdicts, beside the file.

    results/fig1-small/cells.parquet    the tidy table of the file's runs (`raysweep.sweep.tidy`)
    results/fig1-small/*.svg            the figures of its claims (`raysweep.report.suite_figures`)
    results/fig1-small/result.json      state, verdicts, and where they come from (`Written`)

All of it is computed from the records of a storage.  Equal records give equal bytes, but for `provenance`,
with equal versions of pyarrow and matplotlib.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import ValidationError

from raysweep.errors import DataError
from raysweep.files import write_atomic
from raysweep.registry import Config
from raysweep.report.claims import sweep_verdicts
from raysweep.report.data import measurements
from raysweep.report.paper import save_figures
from raysweep.report.parts import figures_kept
from raysweep.report.suite_figures import suite_figures
from raysweep.sweep import Sweep
from raysweep.sweep.claims import Questions
from raysweep.sweep.learnt import covered
from raysweep.sweep.provenance import all_launches
from raysweep.sweep.suite import Member, Standing, State
from raysweep.sweep.tidy import FIXED, SEEDS, tidy, typed
from raysweep.sweep.units import size

TABLE, RESULT = "cells.parquet", "result.json"
#: Most bytes of a committed table.
MOST_BYTES = 200_000


class Software(Config):
    """The program and the processor of some measurements; None is not recorded."""

    raysweep: str | None
    commit: str | None
    #: Whether the checkout had changes that are not committed.
    dirty: bool | None
    torch: str | None
    python: str | None
    processor: str | None

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Software:
        """Return what the provenance of a launch says."""
        versions = facts["versions"]
        return cls(
            raysweep=versions.get("raysweep"), commit=facts["git_commit"], dirty=facts["git_dirty"],
            torch=versions.get("torch"), python=facts["python"], processor=facts.get("processor"),
        )  # fmt: skip


class Origin(Config):
    """The origin of some results."""

    #: Time of the newest record, in unix seconds, and its day.
    time: float
    date: str
    #: Seconds in which something was trained or measured, whatever was done at once.
    wall_seconds: float
    #: Seconds of processor time that this took; None where not all records tell.
    cpu_seconds: float | None = None
    launches: int
    #: Of all launches of the sweep up to `time`; () where its records come from none.
    measured_with: tuple[Software, ...]
    judged_with: Software


class Written(Config):
    """The content of `result.json`."""

    file: str
    name: str
    #: The sha256 of what the file asked for (`Member.configuration`).
    configuration: str
    state: State
    runs: int
    done: int
    #: `tolerance` and `claims` of the file.
    asked: dict[str, Any]
    #: As `Verdict.encode` gives them.
    verdicts: tuple[dict[str, Any], ...]
    #: The sha256 of the table as CSV.
    content: str
    #: Whether the table has all metrics, or those alone that the report shows, because it is large.
    metrics: str
    provenance: Origin

    @property
    def questions(self) -> Questions:
        """The questions of the file."""
        return Questions.of(self.asked)

    @property
    def standing(self) -> Standing:
        """The progress of the file."""
        return Standing(state=self.state, runs=self.runs, done=self.done)


@dataclass(frozen=True, kw_only=True)
class Result:
    """The results of a file with their tidy table."""

    written: Written
    frame: pd.DataFrame


def result_of(member: Member, sweep: Sweep, standing: Standing, software: Software) -> Result | None:
    """Return the results of a file from the records of its storage; None where nothing was measured.

    `software` is what judges them.
    """
    frame = tidy(sweep.ledger(), sweep)
    origin = _origin(sweep, software)
    if frame.empty or origin is None:
        return None
    frame, kept = _fitting(frame, member)
    asked = sweep.questions.model_copy(update={"paper": None}).model_dump(mode="json", exclude_none=True)
    written = Written(
        file=member.path.name,
        name=sweep.name,
        configuration=member.configuration,
        state=standing.state,
        runs=standing.runs,
        done=standing.done,
        asked=asked,
        verdicts=tuple(verdict.encode() for verdict in sweep_verdicts(sweep, frame)),
        content=hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest(),
        metrics=kept,
        provenance=origin,
    )
    return Result(written=written, frame=frame)


def write_result(result: Result, folder: Path) -> list[Path]:
    """Write results into a folder in place of those that it has, and return the paths of the files."""
    measured = measurements(result.frame)
    with figures_kept() as kept:
        suite_figures(measured, result.written.questions, name=folder.name)
    for old in folder.glob("*.svg"):
        old.unlink()
    figures = save_figures(kept, result.frame, folder, "svg")
    write_atomic(folder / TABLE, _parquet(result.frame))
    text = result.written.model_dump_json(indent=1)
    write_atomic(folder / RESULT, (text + "\n").encode())
    return [folder / TABLE, *figures, folder / RESULT]


def read_result(folder: Path) -> Result | None:
    """Return committed results, or None where there are none; raises `DataError` for damaged ones."""
    path = folder / RESULT
    try:
        written = Written.model_validate_json(path.read_bytes())
        frame = _table(folder / TABLE)
    except FileNotFoundError:
        if folder.is_dir() and any(folder.iterdir()):
            raise DataError(f"{folder}: {TABLE} or {RESULT} is missing; {_RENEW}") from None
        return None
    except (ValidationError, ValueError, KeyError) as error:
        raise DataError(f"{path}: damaged ({str(error).splitlines()[0]}); {_RENEW}") from error
    return Result(written=written, frame=frame)


_RENEW = "restore it, or write it anew with `raysweep paper collect`"


def _parquet(frame: pd.DataFrame) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet

    columns = {}
    for name in frame.columns:
        column = frame[name]
        if name not in FIXED and column.map(type).nunique() > 1 and column.dtype == object:
            # An axis may have words and numbers.
            column = column.map(lambda value: None if value is None or value != value else str(value))
        columns[name] = pa.Array.from_pandas(column)
    target = io.BytesIO()
    # pandas' own metadata would name versions, and `_table` knows the types.
    pyarrow.parquet.write_table(pa.table(columns), target, compression="zstd", compression_level=19)
    return target.getvalue()


def _table(path: Path) -> pd.DataFrame:
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(path)
    whole = {name for name in ("seed", *SEEDS, "parameters", "step", "n") if name in table.column_names}
    # By way of floats, whole numbers beyond 2^53 would change.
    columns = {
        name: pd.array(table[name].to_pylist(), dtype="Int64") if name in whole else table[name].to_pandas()
        for name in table.column_names
    }
    return typed(pd.DataFrame(columns))


def _fitting(frame: pd.DataFrame, member: Member) -> tuple[pd.DataFrame, str]:
    """Return the table with all metrics, or with those alone that the report shows where it is too large.

    Raises `DataError` where that is too large too.
    """
    if len(_parquet(frame)) <= MOST_BYTES:
        return frame, "all"
    referred = {name for column in ("baseline", "ceiling") for name in frame[column].dropna().unique()}
    shown = frame[frame["report"] | frame["metric"].isin(referred)].reset_index(drop=True)
    found = len(_parquet(shown))
    if found > MOST_BYTES:
        raise DataError(
            f"{member.path}: a table of {len(shown):,} rows takes {size(found)}, and {size(MOST_BYTES)} is "
            "the most; give the file fewer milestones, runs or tasks"
        )
    return shown, "those that the report shows"


def _origin(sweep: Sweep, software: Software) -> Origin | None:
    """Return the origin of a sweep's records; None without any."""
    spans = list(_spans(sweep))
    if not spans:
        return None
    last = max(end for _, end in spans)
    used = [facts for facts in all_launches(sweep.directory) if facts["time"] <= last]
    return Origin(
        time=last,
        date=datetime.fromtimestamp(last, UTC).strftime("%Y-%m-%d"),
        wall_seconds=round(covered(spans), 1),
        cpu_seconds=_processor_time(sweep),
        launches=len(used),
        measured_with=tuple(dict.fromkeys(Software.of(facts) for facts in used)),
        judged_with=software,
    )


def _processor_time(sweep: Sweep) -> float | None:
    """Return the seconds of processor time of all training and measuring; None where a record has none."""
    found: list[float | None] = []
    ledger = sweep.ledger()
    for spec in sweep.runs:
        run = ledger.open(spec.run_id)
        found += [record.train_cpu_seconds for record in run.checkpoint_records()[-1:]]
        records = (run.evaluation(step, one) for step in spec.milestones for one in spec.evaluations.values())
        found += [record.cpu_seconds for record in records if record is not None]
    known = [seconds for seconds in found if seconds is not None]
    return round(sum(known), 1) if len(known) == len(found) else None


def last_record(sweep: Sweep) -> float | None:
    """Return the time of the newest record of a sweep, in unix seconds; None where it has none."""
    return max((end for _, end in _spans(sweep)), default=None)


def _spans(sweep: Sweep) -> Iterator[tuple[float, float]]:
    """Yield start and end, in unix seconds, of all training and measuring that a sweep's records tell of."""
    ledger = sweep.ledger()
    for spec in sweep.runs:
        run, before = ledger.open(spec.run_id), 0.0
        for checkpoint in run.checkpoint_records():
            yield checkpoint.time - max(0.0, checkpoint.train_seconds - before), checkpoint.time
            before = checkpoint.train_seconds
        for step in spec.milestones:
            for evaluation in spec.evaluations.values():
                record = run.evaluation(step, evaluation)
                if record is not None:
                    yield record.time - record.seconds, record.time
