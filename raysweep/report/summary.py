"""The small table at the end of a launch: the last checkpoint of each kind of run, mean over seeds."""

from __future__ import annotations

import pandas as pd

from raysweep.report.data import HEADINGS, LOSSES, PROBE, measurements
from raysweep.report.format import count, plus_minus
from raysweep.report.statistics import mean_and_error


def summary_rows(frame: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of plain text: one row per model and variant at its last milestone.

    Numbers are means over seeds, with the standard error over seeds where there are two or more.  The
    look-up table closes the list.  Without measurements of loss, trace or tasks there are no rows: a sweep
    that tests a theory has its results in its figure.
    """
    measured = measurements(frame)
    tasks = [PROBE + task for task in measured.tasks]
    names = [name for name in (*LOSSES, "trace", *tasks) if name in set(frame["metric"])]
    headings = [
        "model",
        "parameters",
        "step",
        "seeds",
        *(HEADINGS.get(name, name.replace(PROBE, "accuracy ")) for name in names),
    ]
    rows: list[list[str]] = []
    if not names:
        return headings, rows
    table = measured.checkpoints
    shared = _shared_ending([str(model) for model in table["model"].unique()])
    for (model, variant), group in table.groupby(["model", "variant"], sort=False):
        last = group[group["step"] == group["step"].max()]
        label = f"{str(model).removesuffix(shared)} {variant}".strip()
        cells = [label, count(last["parameters"].iloc[0]), f"{last['step'].iloc[0]:,}", str(len(last))]
        for name in names:
            values = last[name].dropna().to_numpy()
            cells.append(plus_minus(*mean_and_error(values), digits=1) if len(values) else "–")
        rows.append(cells)
    if measured.reference:
        values = [measured.reference.get(name) for name in names]
        rows.append(
            ["look-up table", "–", "–", "–", *("–" if v is None else plus_minus(v, None) for v in values)]
        )
    return headings, rows


def _shared_ending(labels: list[str]) -> str:
    """Return the settings, such as `-dropout0`, that end every label and so tell nothing apart.

    >>> _shared_ending(["16/1/1/64-post-dropout0", "32/1/1/128-dropout0"])
    '-dropout0'
    """
    endings = [label.partition("-")[2].split("-") for label in labels]
    shared: list[str] = []
    for words in zip(*(reversed(ending) for ending in endings), strict=False):
        if len(set(words)) > 1 or not words[0]:
            break
        shared.insert(0, words[0])
    return "".join(f"-{word}" for word in shared)
