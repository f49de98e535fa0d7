"""The results as one tidy table: a row for each run, milestone and metric."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.ledger import Ledger
from raysweep.sweep.run import RunSpec

if TYPE_CHECKING:
    import pandas as pd

_BEFORE = ("sweep", "run_id", "model", "algorithm", "seed")
_AFTER = ("parameters", "step", "metric", "value", "standard_error", "n", "unit")


def tidy(ledger: Ledger, sweep: Sweep) -> pd.DataFrame:
    """Return the results of a sweep's runs under the sweep's own evaluation settings.

    Columns: sweep, run_id, model, algorithm, seed, one for each other axis (its dotted path; sections as
    JSON), parameters (trainable, tied ones once), step, metric, value, standard_error, n, unit.  If nothing
    is trained (the look-up table), model, its axes, seed and parameters are missing and step is 0.
    Rows are sorted by run, step and metric and hold no times, so equal results give equal tables.
    """
    import pandas as pd  # takes a third of a second, which workers need not wait for

    axes = [name for name in sweep.axes if name not in _BEFORE]
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
                head = head or _head(sweep, spec, axes, counts)
                rows.extend(head | {"step": step} | _measured(metric) for metric in record.metrics)
    frame = pd.DataFrame(rows, columns=[*_BEFORE, *axes, *_AFTER])
    frame = frame.sort_values(["run_id", "step", "metric"], kind="stable", ignore_index=True)
    whole = ("seed", "parameters", "step", "n")
    real = ("value", "standard_error")
    text = ("sweep", "run_id", "model", "algorithm", "metric", "unit")
    # An empty table has the types of a full one.
    kinds = dict.fromkeys(whole, "Int64") | dict.fromkeys(real, "float64") | dict.fromkeys(text, "object")
    return frame.astype(kinds)


def _measured(metric: Any) -> dict[str, Any]:
    return {
        "metric": metric.name,
        "value": metric.value,
        "standard_error": metric.standard_error,
        "n": metric.n,
        "unit": metric.unit,
    }


def _head(sweep: Sweep, spec: RunSpec, axes: list[str], counts: dict[tuple[str, str], int]) -> dict[str, Any]:
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
        **{name: _cell(spec.axes.get(name)) if _applies(name, spec) else None for name in axes},
        "parameters": parameters,
    }


def _applies(axis: str, spec: RunSpec) -> bool:
    """Return whether an axis applies to a run: without training, its model and steps mean nothing."""
    return spec.trains or axis.partition(".")[0] not in ("model", "pretrain")


def _cell(value: Any) -> Any:
    return canonical(value) if isinstance(value, dict | list) else value
