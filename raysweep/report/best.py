"""The tables of searches: their best samples, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raysweep.report.format import plus_minus
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.made import made
from raysweep.sweep.samples import Trial, best, judged, trials
from raysweep.sweep.units import count

#: Most samples of a table.
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Best:
    """Headings and rows of plain text, and a sentence that says what they are."""

    headings: list[str]
    rows: list[list[str]]
    title: str


def best_tables(sweep: Sweep) -> list[Best]:
    """Return the best samples of the search of a sweep's file, and of what Tuners have made of the sweep.

    Samples that were stopped stand behind those that were trained to the end, as their values are of earlier
    steps.  A value is the mean over the runs of a sample.  Tuners that were told no metric have no table.
    """
    tables = []
    if sweep.search is not None:
        search = sweep.search
        total = max(search.samples, len(sweep.samples))
        known = trials(sweep)
        tables.append(_table("Search", known, total, list(search.space), search.metric, search.mode))
    found = made(sweep.directory)
    for metric, mode in dict.fromkeys((one.metric, one.mode) for one in found):
        if metric is None or mode is None:
            continue
        specs = [one.spec for one in found if (one.metric, one.mode) == (metric, mode)]
        judgement = judged(sweep, [(spec.axes, (spec,)) for spec in specs], metric)
        paths = list(dict.fromkeys(path for spec in specs for path in spec.axes))
        tables.append(_table("Tuner", judgement, len(judgement), paths, metric, mode))
    return tables


def _table(
    what: str, found: Sequence[Trial], total: int, paths: Sequence[str], metric: str, mode: str | None
) -> Best:
    ended = sum(trial.state in ("done", "stopped", "failed") for trial in found)
    rows = [
        [
            str(trial.index),
            *(_text(trial.settings.get(path)) for path in paths),
            plus_minus(trial.value, trial.standard_error),
            f"{trial.step:,}" if trial.step else "",
            trial.how,
        ]
        for trial in best(found, mode)[:SHOWN]
    ]
    shown = f"the best {len(rows)} of {count(len(found), 'sample')}" if len(rows) < len(found) else "samples"
    better = "least" if mode == "min" else "largest"
    title = f"{what}: {shown} by {metric}, the {better} first; {ended} of {total} have ended"
    return Best(
        headings=["sample", *map(_short(paths), paths), metric, "step", "state"], rows=rows, title=title
    )


def _short(paths: Sequence[str]) -> Callable[[str], str]:
    """Return what shortens a path to its last part, where that is of one path alone."""
    lasts = [path.rpartition(".")[2] for path in paths]
    return lambda path: path if lasts.count(path.rpartition(".")[2]) > 1 else path.rpartition(".")[2]


def _text(value: object) -> str:
    return value if isinstance(value, str) else "" if value is None else canonical(value)
