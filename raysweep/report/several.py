"""Several sweeps on one page: their facts, headlines and last milestones beside each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

import pandas as pd

from raysweep.report.data import Measurements, measurements
from raysweep.report.headline import legend, pair
from raysweep.report.page import Content, facts, page
from raysweep.report.parts import section, small
from raysweep.report.summary import summary
from raysweep.report.tables import table


def render_several(contents: Sequence[Content]) -> str:
    """Return a page that compares sweeps; a size has one colour and a variant one dash on all of it.

    Accuracies of one name are in one section, such as those of task A of every sweep that measured it.
    """
    shown = _alike([measurements(content.frame) for content in contents])
    names = [content.name for content in contents]
    everything = replace(
        shown[0],
        checkpoints=pd.concat([measured.checkpoints for measured in shown], ignore_index=True),
        reference={name: value for measured in shown for name, value in measured.reference.items()},
    )
    parts = [f"<h1>{escape(', '.join(names))}</h1>", _facts(contents, shown)]
    parts.append(section("At the last milestone", _summaries(contents), fold=False))
    parts.append(legend(everything, contents[0].tolerance))
    accuracies = dict.fromkeys(metric.name for one in shown for metric in one.shown("accuracy"))
    for number, name in enumerate(accuracies):
        body = ""
        for place, (content, measured) in enumerate(zip(contents, shown, strict=True)):
            metric = measured.metrics.get(name)
            if metric is not None and metric.report:
                drawn = pair(
                    measured, metric, name=content.name, tolerance=content.tolerance,
                    place=number * len(contents) + place,
                )  # fmt: skip
                body += f"<div><h3>{escape(content.name)}</h3>{drawn}</div>"
        title = next(one.metrics[name].title for one in shown if name in one.metrics)
        parts.append(section(title, f'<div class="pairs">{body}</div>', fold=False))
    if not accuracies:
        parts.append(small("Not enough data: no accuracy has been measured."))
    return page(", ".join(names), "\n".join(filter(None, parts)), len(everything.sizes))


def _alike(shown: Sequence[Measurements]) -> list[Measurements]:
    """Return measurements that list the sizes and variants of all."""
    sizes = pd.concat([m.checkpoints[["model", "parameters"]] for m in shown]).drop_duplicates("model")
    ordered = tuple(sizes.sort_values(["parameters", "model"], kind="stable")["model"])
    variants = tuple(dict.fromkeys(variant for m in shown for variant in m.variants))
    return [replace(m, sizes=ordered, variants=variants) for m in shown]


def _facts(contents: Sequence[Content], shown: Sequence[Measurements]) -> str:
    """Return what each sweep is and how far it is."""
    parts = []
    for content, measured in zip(contents, shown, strict=True):
        said = f'<p class="lead">{escape(content.description)}</p>' if content.description else ""
        parts.append(f"<section><h2>{escape(content.name)}</h2>{said}{facts(content, measured)}</section>")
    return f'<div class="pairs">{"".join(parts)}</div>'


def _summaries(contents: Sequence[Content]) -> str:
    """Return the tables at the end of the launches as one, with the name of the sweep in front."""
    found = [summary(content.frame) for content in contents]
    headings = _merged([one.headings for one in found])
    rows = [
        [content.name, *(dict(zip(one.headings, row, strict=True)).get(heading, "–") for heading in headings)]
        for content, one in zip(contents, found, strict=True)
        for row in one.rows
    ]
    if not rows:
        return small("Not enough data: nothing has been measured yet.")
    cells = [[escape(cell) for cell in row] for row in rows]
    return table(["sweep", *map(escape, headings)], cells, text=2) + small(f"{found[0].title}.")


def _merged(orders: Sequence[Sequence[str]]) -> list[str]:
    """Return all headings once; one that is new stands behind the one that it follows in its own table.

    So the columns that stand last in every table stand last here.

    >>> _merged([["loss", "A", "B"], ["loss", "trace", "B"]])
    ['loss', 'trace', 'A', 'B']
    """
    found: list[str] = []
    for order in orders:
        place = 0
        for heading in order:
            if heading not in found:
                found.insert(place, heading)
            place = found.index(heading) + 1
    return found
