"""The tidy table as the report uses it: one row per checkpoint, and the look-up table beside it.

A checkpoint is a run at a step.  Rows without a model belong to the look-up table: the exact conditionals
themselves, a reference and not a checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, TypeAlias

import numpy as np
import pandas as pd

from raysweep.evaluation.metric import Description, Kind, Quantity, error_key
from raysweep.evaluation.trace import ENLARGED, TRACE
from raysweep.report.format import shared_ending, short
from raysweep.report.sample import of_whole_groups
from raysweep.sweep.tidy import FIXED, SEEDS, descriptions

#: A checkpoint with its columns: thousands of dicts are made in the time of a hundred series.
Row: TypeAlias = pd.Series | Mapping[Hashable, Any]

#: Most runs that a page shows one by one; of more, about so many checkpoints, and fewest groups of them.
MANY = 200
DRAWN, LEAST_DRAWN = 400, 2


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that could not go on; `retried` where it has been tried again since."""

    run_id: str
    error: str
    message: str
    step: int | None = None
    retried: bool = False


@dataclass(frozen=True)
class Measurements:
    """The measurements of a sweep so far.

    `checkpoints` has a row per run and step: run_id, model, algorithm, seed or seeds, parameters, the axes,
    variant, step, a column per metric, and one for its standard error (`error_key`); nan where nothing was
    measured.  `sizes` are the model labels from small to large, `variants` what else distinguishes runs
    (algorithm and further axes, not the seeds).  `metrics` describes every metric, losses first.  `means` are
    means over all rows, `reference` means over the rows without a model, with their standard errors in
    `reference_errors` where they are known.  `reservations` are by run, step and metric.  A `sample` has some
    of the runs alone.
    """

    checkpoints: pd.DataFrame
    sizes: tuple[str, ...]
    variants: tuple[str, ...]
    metrics: dict[str, Description]
    means: dict[str, float]
    reference: dict[str, float]
    reference_errors: dict[str, float]
    reservations: dict[tuple[str, int, str], str]
    sample: bool = False

    def shown(self, *kinds: Kind) -> list[Description]:
        """Return the metrics that the report shows, of these kinds or of all.

        Of the trace in each model's own parameters and that in one space it is the one of `comparable`, also
        where an evaluation of traces has a name, which begins its metrics.
        """
        hidden = TRACE.name if self._enlarged else ENLARGED.name
        found = (m for m in self.metrics.values() if m.report and m.name.rpartition("/")[2] != hidden)
        return [m for m in found if not kinds or m.kind in kinds]

    def comparable(self, kind: Kind = "flatness") -> list[Description]:
        """Return the metrics of a kind that serve best to compare all checkpoints of the sweep.

        Where models of several sizes are all seen as one shape, theirs is the trace in one space, and else
        the trace in the model's own parameters: `one_space` says whether these are the same for all.
        """
        return self.shown(kind)

    @property
    def one_space(self) -> bool:
        """Whether the traces of all checkpoints are of one parameter space: one size, or seen as one."""
        return self._enlarged or self._one_size

    @cached_property
    def _one_size(self) -> bool:
        return bool(self.has(TRACE.name)["parameters"].nunique() <= 1)

    @cached_property
    def _enlarged(self) -> bool:
        """Whether there are several sizes, and a trace in one space wherever there is a trace."""
        return not self._one_size and len(self.has(TRACE.name, ENLARGED.name)) == len(self.has(TRACE.name))

    @cached_property
    def saturating(self) -> Description | None:
        """The loss whose least possible value is known: a checkpoint near to that value is saturated."""
        return next((m for m in self.shown("loss") if m.least is not None), None)

    def saturated(self, table: pd.DataFrame, tolerance: float) -> pd.Series:
        """Return which rows of `table` have a loss of at most `tolerance` above the least possible value."""
        loss = self.saturating
        if loss is None or loss.least is None or loss.name not in table:
            return pd.Series(False, index=table.index)
        return table[loss.name].le(loss.least + tolerance)

    def named(self, accuracy: Description) -> str:
        """Return what the columns and sentences of a page call an accuracy, such as its task."""
        quantities = {metric.quantity for metric in self.shown("accuracy")}
        if not accuracy.place:
            return accuracy.title
        return accuracy.place if len(quantities) == 1 else f"{accuracy.place} ({accuracy.brief})"

    def has(self, *metrics: str) -> pd.DataFrame:
        """Return the checkpoints at which all of these metrics were measured; their columns exist."""
        wanted = [name for metric in metrics for name in (metric, error_key(metric))]
        missing = dict.fromkeys((name for name in wanted if name not in self.checkpoints), np.nan)
        return self.checkpoints.assign(**missing).dropna(subset=list(metrics))

    def shortly(self) -> Self:
        """Return the same with sizes that leave out the settings that all of them share, such as dropout."""
        shared = shared_ending(list(self.sizes))
        table = self.checkpoints.assign(model=self.checkpoints["model"].str.removesuffix(shared))
        sizes = tuple(size.removesuffix(shared) for size in self.sizes)
        return replace(self, checkpoints=table, sizes=sizes)

    @cached_property
    def names(self) -> dict[str, str]:
        """The name of each run for a reader, by run id."""
        rows = self.checkpoints.drop_duplicates("run_id")
        return {str(row["run_id"]): named_run(row) for row in rows.to_dict("records")}

    @cached_property
    def drawn(self) -> Measurements:
        """The measurements that figures draw: all, or of `many` runs a sample, of whole variants if possible.

        A variant has all its sizes and seeds, so that means over seeds are those of all of them.
        """
        if not self.many:
            return self
        table = self.checkpoints
        levels = (["variant"], ["model", "variant"], ["run_id"])
        groups = [table.groupby(names, sort=False).ngroup().to_numpy() for names in levels]
        part = table.iloc[of_whole_groups(DRAWN, *groups, least=LEAST_DRAWN)].reset_index(drop=True)
        kept = (set(part[name]) for name in ("model", "variant"))
        sizes, variants = (
            tuple(filter(of.__contains__, names))
            for of, names in zip(kept, (self.sizes, self.variants), strict=True)
        )
        return replace(self, checkpoints=part, sizes=sizes, variants=variants, sample=True)

    @cached_property
    def many(self) -> bool:
        """Whether there are too many runs for a page to show each."""
        return self.runs > MANY

    @property
    def runs(self) -> int:
        """Number of runs with a measurement, the look-up table not among them."""
        return int(self.checkpoints["run_id"].nunique()) if len(self.checkpoints) else 0


def measurements(frame: pd.DataFrame) -> Measurements:
    """Arrange a tidy table (see `raysweep.sweep.tidy`); an empty one gives empty measurements."""
    metrics = {metric.name: metric for metric in descriptions(frame)}
    trained = frame[frame["model"].notna()]
    table = _wide(trained, sorted(metrics))
    sizes = table.drop_duplicates("model").sort_values(["parameters", "model"], kind="stable")["model"]
    doubtful = trained[trained["reservations"].fillna("") != ""]
    cells = zip(doubtful["run_id"], doubtful["step"], doubtful["metric"], strict=True)
    return Measurements(
        checkpoints=table,
        sizes=tuple(sizes),
        variants=tuple(sorted(table["variant"].unique())),
        metrics=metrics,
        means=_means(frame),
        reference=_means(frame[frame["model"].isna()]),
        reference_errors=_errors(frame[frame["model"].isna()]),
        reservations=dict(zip(cells, doubtful["reservations"], strict=True)),
    )


def threshold(loss: Description, tolerance: float) -> str:
    """Return, for a reader, the largest loss of a saturated checkpoint."""
    return f"{short((loss.least or 0.0) + tolerance)} {loss.unit}"


def at(frame: pd.DataFrame, *quantities: Quantity) -> pd.DataFrame:
    """Return the rows of some quantities, with a column for each of their coordinates."""
    rows = frame[frame["quantity"].isin([quantity.name for quantity in quantities])]
    return rows.join(pd.DataFrame([json.loads(of) for of in rows["of"]], index=rows.index))


def seed_of(row: Row) -> str:
    """Return the seed of a checkpoint's run for a reader, or all of its seeds where there are several."""
    if not pd.isna(row["seed"]):
        return f"seed {row['seed']:.0f}"
    return ", ".join(f"{name} {row[column]:.0f}" for column, name in SEEDS.items() if column in row)


def named_run(row: Row) -> str:
    """Return what people call the run of a checkpoint: size, variant and seed, as far as it has them."""
    return " · ".join(filter(None, [str(row["model"]), str(row["variant"]), seed_of(row)]))


def _means(frame: pd.DataFrame) -> dict[str, float]:
    return {str(name): float(value) for name, value in frame.groupby("metric")["value"].mean().items()}


def _errors(frame: pd.DataFrame) -> dict[str, float]:
    """Return the standard errors of the means of metrics over rows that are independent."""
    known = frame.dropna(subset=["standard_error"]).groupby("metric")["standard_error"]
    return {str(name): float(np.sqrt((errors**2).sum()) / len(errors)) for name, errors in known}


def _wide(frame: pd.DataFrame, metrics: list[str]) -> pd.DataFrame:
    axes = [column for column in frame.columns if column not in FIXED]
    heads = ["run_id", "model", "algorithm", "seed", "parameters", *axes]
    # The rows of a checkpoint share its heads; its metrics go to their columns.
    keys = ["run_id", "step"]
    first = frame.drop_duplicates(keys)
    table = pd.DataFrame(list(first[heads].itertuples(index=False, name=None)), columns=heads)
    measured: dict[str, Any] = {"step": first["step"].to_numpy(dtype=int)}
    at = (
        frame.groupby(keys, sort=False).ngroup().to_numpy(),
        pd.Categorical(frame["metric"], categories=metrics).codes,
    )
    cells = {}
    for name in ("value", "standard_error"):
        cells[name] = np.full((len(first), len(metrics)), np.nan)
        cells[name][at] = frame[name].to_numpy(dtype=float)
    for place, metric in enumerate(metrics):
        measured[metric] = cells["value"][:, place]
        measured[error_key(metric)] = cells["standard_error"][:, place]
    table = pd.concat([table, pd.DataFrame(measured)], axis=1).astype({"parameters": float, "step": int})
    # A number that is not finite was measured and cannot be drawn or ranked.
    table = table.replace({metric: {np.inf: np.nan, -np.inf: np.nan} for metric in metrics})
    table = pd.concat([table, _variants(table, axes).rename("variant")], axis=1)
    table = table.sort_values(
        ["parameters", "model", "variant", "run_id", "step"], kind="stable", ignore_index=True
    )
    # Columns that were converted one by one lie apart in memory; a copy lays them together.
    return table.copy()


def _variants(table: pd.DataFrame, axes: list[str]) -> pd.Series:
    """Return the values that distinguish runs of one size and seed, as readable text; "" where none do."""
    own = [name for name in axes if name.startswith("algorithm.")]
    told = bool(own) and bool(table[own].notna().all(axis=None))
    # The label of an algorithm adds nothing to values that tell all algorithms apart.
    told = told and bool(table.groupby(own)["algorithm"].nunique().le(1).all())
    parts = []
    for name in [*([] if told else ["algorithm"]), *axes]:
        if name in ("seed", *SEEDS) or name.startswith(("model.shape", "pretrain.milestones")):
            continue
        # An axis that follows from the model's label, such as its width, adds nothing.
        if table.groupby("model")[name].nunique(dropna=False).le(1).all() and name != "algorithm":
            continue
        places, values = table[name].factorize(use_na_sentinel=False)
        if len(values) > 1:
            parts.append(np.array([_part(name, value) for value in values], dtype=object)[places])
    joined = [", ".join(filter(None, row)) for row in zip(*parts, strict=True)] if parts else ""
    return pd.Series(joined, index=table.index, dtype=object)


def _part(name: str, value: Any) -> str:
    """Return an axis's value for a reader, "" for a run without a value on it."""
    if name == "algorithm":
        return str(value)
    if pd.isna(value):
        return ""
    if name in ("init_from", "init_from.run"):
        return f"from {value}"
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # beside absent values whole numbers have become floats in the table
    return f"{name.rsplit('.', 1)[-1]} {value}"
