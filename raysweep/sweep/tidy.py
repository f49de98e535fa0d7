"""The results as one tidy table: a row for each run, milestone and metric."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raysweep.evaluation.metric import Description, Metric, error_key, in_order
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.index import NUMBERS
from raysweep.sweep.ledger import Ledger
from raysweep.sweep.run import RunSpec
from raysweep.sweep.snapshot import Numbers, Snapshot
from raysweep.training.seeds import Seeds

if TYPE_CHECKING:
    import pandas as pd

_BEFORE = ("sweep", "run_id", "model", "algorithm", "seed")
#: Columns of the seeds of runs, by field, where a sweep has runs with several different ones.
SEEDS = {f"seeds.{name}": name for name in Seeds.model_fields}
_AFTER = (
    *("parameters", "step", "metric", "value", "standard_error", "n", "unit"),
    *("quantity", "of", "heading", "short", "kind", "better", "least", "baseline", "ceiling", "report"),
    "reservations",
)
#: The section of the run that is started from.
_START = "init_from"
#: Columns that every tidy table has; all others are axes of the sweep.
FIXED = (*_BEFORE, *_AFTER)


def tidy(ledger: Ledger, sweep: Sweep, snapshot: Snapshot | None = None) -> pd.DataFrame:
    """Return the results of a sweep's runs under the sweep's own evaluation settings.

    They are those of a `snapshot` of the ledger, if there is one.  The columns are

    - sweep, run_id, model, algorithm, seed (missing where a run has several);
    - seeds.init, seeds.data and seeds.dropout, where some run of the sweep has several;
    - one for each other axis: its dotted path, sections as JSON;
    - init_from, where runs start from others: the algorithm and step of these, which tell configurations
      apart, as seeds do not (or init_from.run, where that is the axis);
    - parameters (trainable, tied ones once) and step;
    - metric (its name, such as probe/A), value, standard_error, n, unit;
    - quantity and of: what is measured (probe/{task}) and at which coordinates, as JSON ({"task":"A"});
    - heading, short (that of a narrow column, "" for the same), kind (loss, flatness, accuracy or diagnostic)
      and better (less or more);
    - least: the least possible value, where it is known; baseline: the metric that holds a guess's value;
      ceiling: the one that holds the best possible value;
    - report: whether the report shows the metric;
    - reservations: why a reader should not trust the number, several joined by "; ".

    See `raysweep.evaluation.metric` for what describes a metric.  Where nothing is trained (the look-up
    table) model, its axes, seed and parameters are missing and step is 0.  Rows are sorted by run, step and
    metric and hold no times, so equal results give equal tables.
    """
    import pandas as pd  # takes a third of a second, and workers do without it

    axes = [name for name in sweep.axes if name not in _BEFORE and name.partition(".")[0] != "seeds"]
    if any(spec.source is not None for spec in sweep.runs) and not {_START, f"{_START}.run"} & set(axes):
        axes.append(_START)
    seeds = list(SEEDS) if any(spec.trains and spec.seed is None for spec in sweep.runs) else []
    snapshot = snapshot or Snapshot(ledger, (spec.run_id for spec in sweep.runs))
    heads: list[dict[str, Any]] = []
    # Of each record: its row in the snapshot, the place of its run in `heads`, and its step.
    records: list[tuple[int, int, int]] = []
    counts: dict[tuple[str, str | int], int] = {}
    for spec in sweep.runs:
        found = [(row, len(heads), step) for step, _, row in snapshot.evaluations(spec)]
        if found:
            heads.append(_head(sweep, spec, axes, seeds, counts))
            records += found
    frame = pd.DataFrame(columns=[*_BEFORE, *seeds, *axes, *_AFTER])
    if records:
        frame = _table(snapshot.numbers, heads, np.array(records))[list(frame)]
    return typed(frame)


def _table(numbers: Numbers, heads: Sequence[dict[str, Any]], records: np.ndarray) -> pd.DataFrame:
    """Return the sorted table of some records [n, 3]: row, place of the run in `heads`, step."""
    import pandas as pd

    rows, runs, steps = records.T
    lengths = numbers.end[rows] - numbers.begin[rows]
    runs, steps = np.repeat(runs, lengths), np.repeat(steps, lengths)
    # The metrics of a record are neighbours: each is so far behind the first one.
    behind = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = np.repeat(numbers.begin[rows], lengths) + behind
    by_run = _ranks([head["run_id"] for head in heads])[runs]
    by_metric = _ranks([fact.name for fact in numbers.facts])[numbers.fact[at]]
    order = np.lexsort((by_metric, steps, by_run))
    at, runs, steps = at[order], runs[order], steps[order]
    reserved = np.array(["; ".join(texts) for texts in numbers.reservations], dtype=object)
    measured = {name: getattr(numbers, name)[at] for name in NUMBERS}
    measured |= {"step": steps, "reservations": reserved[numbers.reserved[at]]}
    described = _taken([cells(fact) for fact in numbers.facts], numbers.fact[at])
    described = described.drop(columns=[*NUMBERS, "reservations"])
    return pd.concat([_taken(heads, runs), described, pd.DataFrame(measured)], axis=1)


def _taken(rows: Sequence[dict[str, Any]], places: np.ndarray) -> pd.DataFrame:
    """Return the table of the rows at some places; only these decide the types of its columns."""
    import pandas as pd

    used, of = np.unique(places, return_inverse=True)
    frame = pd.DataFrame([rows[place] for place in used])
    return frame.astype(_types(frame)).take(of).reset_index(drop=True)


def _ranks(texts: Sequence[str]) -> np.ndarray:
    """Return the place of each text among all of them in their order; equal ones have one place."""
    places = {text: place for place, text in enumerate(sorted(set(texts)))}
    return np.array([places[text] for text in texts], dtype=int)


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a tidy table with the types of its columns; an empty one has those of a full one."""
    return frame.astype(_types(frame))


def _types(columns: Iterable[str]) -> dict[str, str]:
    """Return the types of those of some columns that have one in every tidy table."""
    whole = ("seed", *SEEDS, "parameters", "step", "n")
    real = ("value", "standard_error", "least")
    text = (
        *("sweep", "run_id", "model", "algorithm", "metric", "unit"),
        *("quantity", "of", "heading", "short", "kind", "better", "baseline", "ceiling", "reservations"),
    )
    kinds = dict.fromkeys(whole, "Int64") | dict.fromkeys(real, "float64") | dict.fromkeys(text, "object")
    return {name: kind for name, kind in (kinds | {"report": "bool"}).items() if name in set(columns)}


def wide(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a tidy table with a row for each run and milestone.

    Its columns are those that tell runs and milestones apart, then one for each metric, with one for its
    standard error, METRIC_se, where that is known somewhere.  Metrics come in the order in which people see
    them; a number that was not measured is missing.
    """
    keys = ["run_id", "step"]
    heads = [name for name in frame if name not in _AFTER or name in ("parameters", "step")]
    found = frame[heads].drop_duplicates(keys, ignore_index=True)
    for name in (description.name for description in descriptions(frame)):
        own = frame[frame["metric"] == name]
        columns = {"value": name}
        if own["standard_error"].notna().any():
            columns["standard_error"] = error_key(name)
        found = found.merge(own[[*keys, *columns]].rename(columns=columns), on=keys, how="left")
    return found


def cells(metric: Metric) -> dict[str, Any]:
    """Return what a metric's row of the table says of it."""
    facts = metric.model_dump(exclude={"name", "live"})
    return facts | {
        "metric": metric.name,
        "of": canonical(metric.of),
        "reservations": "; ".join(metric.reservations),
    }


def descriptions(frame: pd.DataFrame) -> list[Description]:
    """Return the description of every metric of a tidy table, in the order in which people see them."""
    named = {"metric": "name"}
    columns = [*named, *(field for field in Description.model_fields if field in frame)]
    rows = frame.drop_duplicates("metric")[columns].rename(columns=named).to_dict(orient="records")
    found = []
    for row in rows:
        known = {field: value for field, value in row.items() if value is not None and value == value}
        found.append(Description.model_validate(known | {"of": json.loads(known["of"])}))
    return in_order(found)


def _head(
    sweep: Sweep, spec: RunSpec, axes: list[str], seeds: list[str], counts: dict[tuple[str, str | int], int]
) -> dict[str, Any]:
    """Return the columns that all rows of a run share."""
    parameters = None
    if spec.trains:
        # Thousands of runs share the very models, which the sweep keeps alive.
        own = (spec.language_fingerprint, id(spec.model))
        if own not in counts:
            key = (spec.language_fingerprint, canonical(spec.model.encode()))
            if key not in counts:
                counts[key] = spec.model.parameters(sweep.language(spec))
            counts[own] = counts[key]
        parameters = counts[own]
    return {
        "sweep": sweep.name,
        "run_id": spec.run_id,
        "model": spec.model_label if spec.trains else None,
        "algorithm": spec.algorithm_label,
        "seed": spec.seed if spec.trains else None,
        **{name: getattr(spec.seeds, SEEDS[name]) if spec.trains else None for name in seeds},
        **{name: _axis(name, spec) for name in axes},
        "parameters": parameters,
    }


def _applies(axis: str, spec: RunSpec) -> bool:
    """Return whether an axis applies to a run: without training, its model and steps mean nothing."""
    return spec.trains or axis.partition(".")[0] not in ("model", "pretrain")


def _axis(name: str, spec: RunSpec) -> Any:
    """Return a run's value on an axis; that of a source is without seeds, which tell replicates apart."""
    if not _applies(name, spec):
        return None
    if name in (_START, f"{_START}.run"):
        if spec.source is None:
            return None
        return f"{spec.source.label}{' keep' if spec.source.optimizer == 'keep' else ''}"
    return _cell(spec.axes.get(name))


def _cell(value: Any) -> Any:
    return canonical(value) if isinstance(value, dict | list) else value
