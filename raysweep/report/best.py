"""The tables of searches: their best samples, for the page and for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from raysweep.report.format import plus_minus
from raysweep.sweep.config import Sweep
from raysweep.sweep.made import Mode, made
from raysweep.sweep.names import value_text
from raysweep.sweep.samples import IN_VAIN, Trial, best, judged, trials
from raysweep.sweep.units import count

#: Most samples of a table.
SHOWN = 10


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The samples of a search, the best first; `paths` are those of the fields that it has set.

    `what` made them: "Search", that of the sweep's file, or "Tuner".  `total` is the number of samples that
    there will be.
    """

    what: str
    samples: list[Trial]
    total: int
    paths: list[str]
    metric: str
    mode: Mode | None


@dataclass(frozen=True, kw_only=True)
class Best:
    """Headings and rows of plain text, and a sentence that says what they are."""

    headings: list[str]
    rows: list[list[str]]
    title: str


def rankings(sweep: Sweep) -> list[Ranking]:
    """Return the samples of the search of a sweep's file, and of what Tuners have made of the sweep.

    Samples that were stopped stand behind those that were trained to the end, as their values are of earlier
    steps.  A value is the mean over the runs of a sample.  Tuners that were told no metric have no ranking.
    """
    found = list[Ranking]()
    if sweep.search is not None:
        search = sweep.search
        found.append(
            Ranking(
                what="Search",
                samples=best(trials(sweep), search.mode),
                total=max(search.samples, len(sweep.samples)),
                paths=list(search.space),
                metric=search.metric,
                mode=search.mode,
            )
        )
    by_tuners = made(sweep.directory)
    for metric, mode in dict.fromkeys((one.metric, one.mode) for one in by_tuners):
        if metric is None or mode is None:
            continue
        specs = [one.spec for one in by_tuners if (one.metric, one.mode) == (metric, mode)]
        judgement = judged(sweep, [(spec.axes, (spec,)) for spec in specs], metric)
        found.append(
            Ranking(
                what="Tuner",
                samples=best(judgement, mode),
                total=len(judgement),
                paths=list(dict.fromkeys(path for spec in specs for path in spec.axes)),
                metric=metric,
                mode=mode,
            )
        )
    return found


def best_tables(sweep: Sweep) -> list[Best]:
    """Return the first samples of each ranking of a sweep (`rankings`)."""
    return [_table(ranking) for ranking in rankings(sweep)]


def _table(ranking: Ranking) -> Best:
    found, paths = ranking.samples, ranking.paths
    ended = sum(trial.state in ("done", "stopped", *IN_VAIN) for trial in found)
    rows = [
        [
            str(trial.index),
            *(value_text(trial.settings[path]) if path in trial.settings else "" for path in paths),
            plus_minus(trial.value, trial.standard_error),
            f"{trial.step:,}" if trial.step else "",
            trial.how,
        ]
        for trial in found[:SHOWN]
    ]
    shown = f"the best {len(rows)} of {count(len(found), 'sample')}" if len(rows) < len(found) else "samples"
    better = "least" if ranking.mode == "min" else "largest"
    return Best(
        headings=["sample", *map(_short(paths), paths), ranking.metric, "step", "state"],
        rows=rows,
        title=f"{ranking.what}: {shown} by {ranking.metric}, the {better} first; "
        f"{ended} of {ranking.total} have ended",
    )


def _short(paths: Sequence[str]) -> Callable[[str], str]:
    """Return what shortens a path to its last part, where that is of one path alone."""
    lasts = [path.rpartition(".")[2] for path in paths]
    return lambda path: path if lasts.count(path.rpartition(".")[2]) > 1 else path.rpartition(".")[2]
