"""The results as one tidy table: a row for each run, milestone and metric."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from raysweep.evaluation.metric import Description, Metric, error_key, in_order
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.ledger import Ledger
from raysweep.sweep.run import RunSpec
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


def tidy(ledger: Ledger, sweep: Sweep) -> pd.DataFrame:
    """Return the results of a sweep's runs under the sweep's own evaluation settings.

    Its columns are

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
    rows: list[dict[str, Any]] = []
    counts: dict[tuple[str, str], int] = {}
    for spec in sweep.runs:
        run = ledger.open(spec.run_id)
        head: dict[str, Any] | None = None
        for step in spec.milestones:
            for evaluation in spec.evaluations.values():
                record = run.evaluation(step, evaluation)
                if record is None:
                    continue
                head = head or _head(sweep, spec, axes, seeds, counts)
                rows.extend(head | {"step": step} | cells(metric) for metric in record.metrics)
    frame = pd.DataFrame(rows, columns=[*_BEFORE, *seeds, *axes, *_AFTER])
    frame = frame.sort_values(["run_id", "step", "metric"], kind="stable", ignore_index=True)
    return typed(frame)


def typed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a tidy table with the types of its columns; an empty one has those of a full one."""
    whole = ("seed", *(name for name in SEEDS if name in frame), "parameters", "step", "n")
    real = ("value", "standard_error", "least")
    text = (
        *("sweep", "run_id", "model", "algorithm", "metric", "unit"),
        *("quantity", "of", "heading", "short", "kind", "better", "baseline", "ceiling", "reservations"),
    )
    kinds = dict.fromkeys(whole, "Int64") | dict.fromkeys(real, "float64") | dict.fromkeys(text, "object")
    return frame.astype(kinds | {"report": "bool"})


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
    sweep: Sweep, spec: RunSpec, axes: list[str], seeds: list[str], counts: dict[tuple[str, str], int]
) -> dict[str, Any]:
    """Return the columns that all rows of a run share."""
    parameters = None
    if spec.trains:
        key = (spec.language_fingerprint, canonical(spec.model.encode()))
        if key not in counts:
            counts[key] = spec.model.parameters(sweep.language(spec))
        parameters = counts[key]
    return {
        "sweep": sweep.name,
        "run_id": spec.run_id,
        "model": spec.model.label if spec.trains else None,
        "algorithm": spec.algorithm.label,
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
