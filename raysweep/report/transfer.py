"""Transfer on the page: probe accuracy over the number of labels, and fine-tuning beside the probe."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd

from raysweep.evaluation.finetune import DIVERGED, FINETUNE, GUESS, STD
from raysweep.evaluation.metric import Description
from raysweep.evaluation.probe_metrics import BEST, PROBE, PROBE_AREA, of_labels
from raysweep.report.data import Measurements
from raysweep.report.drawing import Drawn
from raysweep.report.format import count, number, plus_minus
from raysweep.report.panels import Panel, abreast, over_runs, references_legend
from raysweep.report.parts import figure, section, small
from raysweep.report.tables import table

#: A size and what else distinguishes runs but their seed.
GROUP = ["model", "variant"]
_CURVE = of_labels(PROBE).name


@dataclass(frozen=True, kw_only=True)
class Diverged:
    """Cells of fine-tuning that diverged at one checkpoint, in words."""

    run_id: str
    step: int
    cells: str


def curve_section(measured: Measurements) -> str:
    """Return the curves of the probe over the number of labels as HTML; "" where there are none."""
    curves = [(task, found) for task in _tasks(measured, _CURVE) if (found := probe_curve(measured, task))]
    if not curves:
        return ""
    figures = [figure(drawn, f"labels-{task}.csv", caption) for task, (drawn, caption) in curves]
    note = (
        "Score of the linear probe by the number of labelled sentences that it was trained on, at the "
        "first and the last milestone that all sizes have reached: means over seeds of pre-training. "
        "Bands and bars are ± one standard error: over these seeds, or for one seed over those of the probe. "
        "A better representation needs fewer labels: its line lies higher on the left."
    )
    known = references_legend(drawn.figure for _, (drawn, _) in curves)
    body = f'{known}<div class="pair half">{"".join(figures)}</div>{_curve_table(measured)}'
    return section("Accuracy over the number of labels", small(note) + body)


def probe_curve(measured: Measurements, task: str) -> tuple[Drawn, str] | None:
    """Draw the probe's score on a task over the number of labels, and return the figure's caption."""
    metrics = _curve(measured, task)
    parts = []
    for metric in metrics:
        cells = over_runs(measured.has(metric.name), [*GROUP, "step"], metric.name)
        if len(cells):
            parts.append(cells.assign(x=float(metric.of["labels"])))
    if not parts:
        return None
    cells = pd.concat(parts, ignore_index=True)
    lookup = {
        float(metric.of["labels"]): measured.reference[metric.name]
        for metric in metrics
        if metric.name in measured.reference
    }
    references: dict[str, float | pd.Series] = dict(_known(measured, metrics[0]))
    if lookup:
        references["look-up table"] = pd.Series(lookup)
    panels = [Panel(title, part, references) for title, part in _ends(cells)]
    # A task's name is no name for parts of a drawing.
    place, judged = _tasks(measured, _CURVE).index(task), f"{metrics[0].heading}, task {task}"
    drawn, outside = abreast(
        measured, panels, x_label="labels", y_label=judged,
        tick=lambda value: f"{value:,.0f}",
    )  # fmt: skip
    low, high = metrics[0].of["labels"], metrics[-1].of["labels"]
    caption = f"Task {task}: the probe with {low:,} to {high:,} labels, on a log axis.{outside}"
    text = f"{judged}, over the number of labels on a log axis, {len(panels)} milestones"
    data = cells.rename(columns={"x": "labels"}).astype({"labels": int})
    return Drawn(drawn, f"labels-{place}", text, data), caption


def finetune_section(measured: Measurements, diverged: Sequence[Diverged]) -> str:
    """Return fine-tuning beside the probe as HTML, with the cells that diverged; "" where there is none."""
    tasks = list(dict.fromkeys([*_tasks(measured, FINETUNE.name), *_tasks(measured, DIVERGED.name)]))
    if not tasks:
        return ""
    curves = [(task, found) for task in tasks if (found := beside(measured, task))]
    figures = [figure(drawn, f"finetune-{task}.csv", caption) for task, (drawn, caption) in curves]
    note = (
        "The probe reads the representations as they are, fine-tuning changes all weights. Lines are means "
        "over seeds of pre-training. Bands and bars are ± one standard error: over these seeds, or for one "
        "seed over those of probe and fine-tuning."
    )
    parts = [
        small(note),
        references_legend(drawn.figure for _, (drawn, _) in curves),
        f'<div class="pair half">{"".join(figures)}</div>',
        _finetune_table(measured, tasks),
    ]
    if diverged:
        rows = [[f"<code>{escape(d.run_id)}</code>", escape(d.cells), f"{d.step:,}"] for d in diverged]
        parts.append(small("These cells of fine-tuning diverged, and no mean includes them:"))
        parts.append(table(["run", "cells", "milestone"], rows, text=2, wrap=1))
    return section("Fine-tuning beside the probe", "".join(parts))


def beside(measured: Measurements, task: str) -> tuple[Drawn, str] | None:
    """Draw probe and fine-tuning along training, side by side, and return the figure's caption."""
    tuned = measured.metrics.get(FINETUNE.name.format(task=task))
    if tuned is None:
        return None
    probe = _largest_probe(measured, task, tuned.unit)
    titles = {probe.name: _of_probe(probe)} if probe is not None else {}
    titles[tuned.name] = "fine-tuning"
    panels = [panel for name, title in titles.items() if (panel := _along_training(measured, name, title))]
    if not panels:
        return None
    drawn, outside = abreast(
        measured, panels, x_label="training steps", y_label=f"{tuned.unit}, task {task}",
        tick=count,
    )  # fmt: skip
    named = " and ".join(panel.title for panel in panels)
    caption = f"Task {task}: {named} at each milestone of pre-training.{outside}"
    data = pd.concat([panel.lines for panel in panels]).drop(columns="x")
    text = f"{tuned.unit}, task {task}, over training steps: {named}"
    return Drawn(drawn, f"finetune-{_tasks(measured, FINETUNE.name).index(task)}", text, data), caption


def _along_training(measured: Measurements, name: str, title: str) -> Panel | None:
    """Return a metric at each milestone, with what it can be compared with; None where it is not measured."""
    checkpoints = measured.has(name)
    cells = over_runs(checkpoints[checkpoints["step"] > 0], [*GROUP, "step"], name)
    if cells.empty:
        return None
    references: dict[str, float | pd.Series] = dict(_known(measured, measured.metrics[name]))
    if name in measured.reference:
        references["look-up table"] = measured.reference[name]
    return Panel(title, cells.assign(x=cells["step"].astype(float)), references)


def last_of(measured: Measurements, metric: str) -> list[tuple[list[str], pd.DataFrame]]:
    """Return the rows of each group's last milestone with a metric, and their cells of text.

    These are the model's label, the variant where there are several, step and number of runs.
    """
    found = []
    for (model, variant), group in measured.has(metric).groupby(GROUP, sort=False):
        rows = group[group["step"] == group["step"].max()]
        varied = [escape(str(variant))] if len(measured.variants) > 1 else []
        step = f"{rows['step'].iloc[0]:,}"
        found.append(([f"<code>{escape(str(model))}</code>", *varied, step, str(len(rows))], rows))
    return found


def heads(measured: Measurements) -> list[str]:
    """Return the headings of the cells that `last_of` gives."""
    return ["model", *(["variant"] if len(measured.variants) > 1 else []), "step", "runs"]


def mean_of(rows: pd.DataFrame, metric: str | None) -> str:
    """Return mean ± standard error of a metric over runs, "–" where it was not measured."""
    if metric is None or metric not in rows or rows[metric].isna().all():
        return "–"
    mean = over_runs(rows, GROUP, metric).iloc[0]
    return plus_minus(mean["mean"], mean["standard_error"], digits=1)


def _curve_table(measured: Measurements) -> str:
    curves = [metric for metric in measured.metrics.values() if metric.quantity == _CURVE]
    labels, rows = sorted({int(metric.of["labels"]) for metric in curves}), []
    for task in _tasks(measured, _CURVE):
        names = {int(metric.of["labels"]): metric.name for metric in _curve(measured, task)}
        area = PROBE_AREA.name.format(task=task)
        for cells, last in last_of(measured, max(names.items())[1]):
            values = [mean_of(last, names.get(n)) for n in labels]
            rows.append([escape(task), *cells, *values, mean_of(last, area)])
    headings = ["task", *heads(measured), *(f"{n:,} labels" for n in labels), "area"]
    note = (
        "The last milestone of each size, mean ± standard error. The area under the curve is the mean "
        "score over the logarithm of the number of labels."
    )
    return small(note) + table(headings, rows, text=2 + (len(measured.variants) > 1))


def _finetune_table(measured: Measurements, tasks: Sequence[str]) -> str:
    """Return probe, fine-tuning and what they can be compared with, at the last milestone of each group."""
    lost = any(measured.means.get(DIVERGED.name.format(task=task)) for task in tasks)
    rows = []
    for task in tasks:
        name = FINETUNE.name.format(task=task)
        tuned = measured.metrics.get(name)
        unit = tuned.unit if tuned is not None else "accuracy"
        probe = _largest_probe(measured, task, unit)
        for cells, last in last_of(measured, DIVERGED.name.format(task=task)):
            rows.append(
                [
                    escape(task if unit == "accuracy" else f"{task} ({unit})"),
                    *cells,
                    mean_of(last, probe.name if probe is not None else None),
                    mean_of(last, name),
                    _deviation(last, STD.name.format(task=task)),
                    *([f"{last[DIVERGED.name.format(task=task)].sum():.0f}"] if lost else []),
                    number(measured.means.get(GUESS.name.format(task=task))),
                    number(measured.means.get(BEST.name.format(task=task)) if unit == "accuracy" else None),
                ]
            )
    headings = ["task", *heads(measured), "probe", "fine-tuned", "deviation by seed"]
    headings += [*(["seeds diverged"] if lost else []), "majority label", "best possible"]
    note = (
        "The last milestone of each size, mean ± standard error over seeds of pre-training (of measuring, "
        "for one). Probe: with the most labels. Deviation by seed: the standard deviation between the seeds "
        "of fine-tuning one model, which the paper reports."
    )
    return small(note) + table(headings, rows, text=2 + (len(measured.variants) > 1))


def _deviation(rows: pd.DataFrame, deviation: str) -> str:
    """Return the root mean square over runs of a deviation within each."""
    squares = rows[deviation].dropna() ** 2 if deviation in rows else pd.Series(dtype=float)
    return number(math.sqrt(squares.mean()) if len(squares) else None, digits=2)


def _tasks(measured: Measurements, quantity: str) -> list[str]:
    metrics = (metric for metric in measured.metrics.values() if metric.quantity == quantity)
    return list(dict.fromkeys(str(metric.of["task"]) for metric in metrics))


def _curve(measured: Measurements, task: str) -> list[Description]:
    """Return the metrics of a task's probe at each number of labels, ascending."""
    found = [m for m in measured.metrics.values() if m.quantity == _CURVE and m.of["task"] == task]
    return sorted(found, key=lambda metric: int(metric.of["labels"]))


def _largest_probe(measured: Measurements, task: str, unit: str) -> Description | None:
    """Return the probe of a task with the most labels, judged by the metric of fine-tuning."""
    found = [
        metric
        for metric in measured.metrics.values()
        if metric.quantity in (PROBE.name, _CURVE) and (metric.of["task"], metric.unit) == (task, unit)
    ]
    return max(found, key=lambda metric: int(metric.of.get("labels", 0)), default=None)


def _of_probe(probe: Description) -> str:
    labels = probe.of.get("labels")
    return f"linear probe ({labels:,} labels)" if labels else "linear probe"


def _known(measured: Measurements, metric: Description) -> dict[str, float]:
    """Return the best possible value of a metric, and that of the majority label, where they are known."""
    names = {"best possible": metric.ceiling, "majority label": metric.baseline}
    known = {name: measured.means.get(other or "") for name, other in names.items()}
    return {name: value for name, value in known.items() if value is not None and np.isfinite(value)}


def _ends(cells: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    """Return the first and the last step that all sizes share, with their cells.

    Where they share none, return the last step of each group.
    """
    shared = set.intersection(*(set(group["step"]) for _, group in cells.groupby("model")))
    if shared:
        ends = dict.fromkeys([min(shared), max(shared)])
        return [(f"step {step:,}", cells[cells["step"] == step]) for step in ends]
    last = cells["step"] == cells.groupby(GROUP)["step"].transform("max")
    return [("last milestone of each size", cells[last])]
