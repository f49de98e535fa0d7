"""The small table at the end of a launch: the last checkpoint of each kind of run, mean over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from raysweep.evaluation.metric import Description, error_key
from raysweep.evaluation.quantize import RISE, in_words
from raysweep.report.data import Measurements, measurements
from raysweep.report.format import count, plus_minus, shared_ending
from raysweep.report.statistics import mean_and_error


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Headings and rows of plain text, and a sentence that says what they are."""

    headings: list[str]
    rows: list[list[str]]
    title: str


def summary(frame: pd.DataFrame, measured: Measurements | None = None) -> Summary:
    """Return a row per model and variant at its last milestone, with a column per metric of the report.

    Numbers are means over seeds, with the standard error over seeds where there are two or more, else with
    that of the measurement.  The look-up table closes the list.  Without such metrics there are no rows: a
    sweep that tests a theory has its results in its figure.  `measured` are the measurements of the frame,
    where they have been made already.
    """
    measured = measured or measurements(frame)
    shown = measured.shown()
    names = [metric.name for metric in shown]
    columns, explained = _columns(shown)
    headings = ["model", "parameters", "step", "seeds", *columns]
    if any(metric.kind == "accuracy" and "task" in metric.of for metric in shown):
        explained += "; ± leaves out the draw of test sentences, which all share"
    title = f"At the last milestone, mean ± standard error over seeds (of measuring, for one){explained}"
    rows: list[list[str]] = []
    if not names:
        return Summary(headings=headings, rows=rows, title=title)
    table = measured.checkpoints
    shared = shared_ending([str(model) for model in table["model"].unique()])
    steps, parameters = table["step"].to_numpy(), table["parameters"].to_numpy()
    values = {name: table[[name, error_key(name)]].to_numpy(dtype=float) for name in names}
    groups = table.groupby(["model", "variant"], sort=False)
    for (model, variant), places in groups.indices.items():
        last = places[steps[places] == steps[places].max()]
        label = f"{str(model).removesuffix(shared)} {variant}".strip()
        cells = [label, count(parameters[last[0]]), f"{steps[last[0]]:,}", str(len(last))]
        for name in names:
            known = values[name][last]
            known = known[~np.isnan(known[:, 0])]
            mean, error = mean_and_error(known[:, 0]) if len(known) else (None, None)
            own = known[0, 1] if len(known) else None
            cells.append(plus_minus(mean, own if error is None else error, digits=1))
        rows.append(cells)
    if measured.reference:
        pairs = [(measured.reference.get(name), measured.reference_errors.get(name)) for name in names]
        rows.append(["look-up table", *["–"] * 3, *(plus_minus(*pair, digits=1) for pair in pairs)])
    return Summary(headings=headings, rows=rows, title=title)


def _columns(shown: Sequence[Description]) -> tuple[list[str], str]:
    """Return the headings of metrics, and the part of the title that explains them.

    Where one quantity alone has coordinates, such as tasks, these are its headings.
    """
    placed = {metric.quantity: metric for metric in shown if metric.of}
    if len(placed) == 1:
        [one] = placed.values()
        explained = f"; the last columns are {one.heading or one.name} by {' and '.join(one.of)}"
        return [metric.place or metric.title for metric in shown], explained
    names = {metric.brief: metric.heading for metric in placed.values() if metric.brief != metric.heading}
    explained = "".join(f"; {brief}: {heading}" for brief, heading in names.items())
    if weights := [metric.place for metric in shown if metric.quantity == RISE.name]:
        explained += f"; {in_words(weights)}"
    return [metric.narrow if metric.of else metric.title for metric in shown], explained
