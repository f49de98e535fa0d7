"""The tidy table as the report uses it: one row per checkpoint, and the look-up table beside it.

A checkpoint is a run at a step.  Rows without a model are the look-up table's: the exact conditionals
themselves, a reference and not a checkpoint.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

#: Columns that every tidy table has; all others are axes of the sweep.
FIXED = (
    *("sweep", "run_id", "model", "algorithm", "seed", "parameters"),
    *("step", "metric", "value", "standard_error", "n", "unit"),
)
PROBE = "probe/"
#: How near a model is to its data: to a language whose truth is known, or to a corpus.
LOSSES = ("excess_loss", "held_out_loss")
#: What tables call a metric, where not by its own name.
HEADINGS = {"excess_loss": "excess loss (nats)", "held_out_loss": "held-out loss (nats)"}


@dataclass(frozen=True)
class Measurements:
    """The measurements of a sweep so far.

    `checkpoints` has a row per run and step: run_id, model, algorithm, seed, parameters, the axes, size,
    variant, step, a column per metric and `<metric>_se` for its standard error (nan where not measured).
    `sizes` are the model labels from small to large, `variants` what else tells runs apart (algorithm and
    further axes, not the seed), `reference` the look-up table's metrics.
    """

    checkpoints: pd.DataFrame
    sizes: tuple[str, ...]
    variants: tuple[str, ...]
    tasks: tuple[str, ...]
    reference: dict[str, float]
    majority: dict[str, float]
    entropy: float | None

    def has(self, *metrics: str) -> pd.DataFrame:
        """Return the checkpoints at which all of these metrics were measured; their columns exist."""
        wanted = [name for metric in metrics for name in (metric, f"{metric}_se")]
        missing = dict.fromkeys((name for name in wanted if name not in self.checkpoints), math.nan)
        return self.checkpoints.assign(**missing).dropna(subset=list(metrics))

    @property
    def runs(self) -> int:
        """Number of runs with any measurement, without the look-up table."""
        return int(self.checkpoints["run_id"].nunique()) if len(self.checkpoints) else 0


def measurements(frame: pd.DataFrame) -> Measurements:
    """Arrange a tidy table (see `raysweep.sweep.tidy`); an empty one gives empty measurements."""
    metrics = sorted(frame["metric"].unique())
    tasks = tuple(m.removeprefix(PROBE) for m in metrics if m.startswith(PROBE))
    trained = frame[frame["model"].notna()]
    table = _wide(trained, metrics)
    reference = frame[frame["model"].isna()].groupby("metric")["value"].mean()
    sizes = table.drop_duplicates("model").sort_values(["parameters", "model"], kind="stable")["model"]
    return Measurements(
        checkpoints=table,
        sizes=tuple(sizes),
        variants=tuple(sorted(table["variant"].unique())),
        tasks=tasks,
        reference={str(name): float(value) for name, value in reference.items()},
        majority={task: _mean(frame, f"majority/{task}") for task in tasks},
        entropy=_mean(frame, "entropy") if "entropy" in metrics else None,
    )


def _mean(frame: pd.DataFrame, metric: str) -> float:
    return float(frame.loc[frame["metric"] == metric, "value"].mean())


def _wide(frame: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    axes = [column for column in frame.columns if column not in FIXED]
    heads = ["run_id", "model", "algorithm", "seed", "parameters", *axes]
    cells: dict[tuple[str, int], dict[str, Any]] = {}
    for row in frame.to_dict(orient="records"):
        cell = cells.setdefault((row["run_id"], int(row["step"])), {name: row[name] for name in heads})
        cell["step"] = int(row["step"])
        cell[row["metric"]] = row["value"]
        cell[row["metric"] + "_se"] = row["standard_error"]
    columns = [*heads, "step", *(name for m in metrics for name in (m, f"{m}_se"))]
    table = pd.DataFrame(list(cells.values()), columns=list(dict.fromkeys(columns)))
    table = table.astype(dict.fromkeys([*columns[len(heads) :], "parameters"], float) | {"step": int})
    # A number that is not finite was measured and cannot be drawn or ranked.
    table = table.replace({metric: {np.inf: np.nan, -np.inf: np.nan} for metric in metrics})
    table = pd.concat([table, _variants(table, axes).rename("variant")], axis=1)
    table = table.sort_values(
        ["parameters", "model", "variant", "run_id", "step"], kind="stable", ignore_index=True
    )
    # Columns that each were given their type lie apart; a copy lays them together.
    return table.copy()


def _variants(table: pd.DataFrame, axes: list[str]) -> pd.Series:
    """Return what tells runs of one size and seed apart, as readable text; "" where nothing does."""
    parts = []
    for name in ["algorithm", *axes]:
        if name == "seed" or name.startswith(("model.shape", "pretrain.milestones")):
            continue
        # An axis that follows from the model's label, such as its width, tells nothing more.
        if table.groupby("model")[name].nunique(dropna=False).le(1).all() and name != "algorithm":
            continue
        if table[name].nunique(dropna=False) > 1:
            parts.append([_part(name, value) for value in table[name]])
    joined = [", ".join(filter(None, row)) for row in zip(*parts, strict=True)] if parts else ""
    return pd.Series(joined, index=table.index, dtype=object)


def _part(name: str, value: Any) -> str:
    """Return an axis's value for a reader, "" for a run that the axis says nothing of."""
    if name == "algorithm":
        return str(value)
    if pd.isna(value):
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # beside absent values whole numbers have become floats in the table
    return f"{name.rsplit('.', 1)[-1]}={value}"
