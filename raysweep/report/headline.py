"""The headline of the page: each accuracy against loss and, where that is saturated, against flatness."""

from __future__ import annotations

from html import escape

from raysweep.evaluation.metric import Description
from raysweep.evaluation.trace import ENLARGED, TRACE
from raysweep.report.data import Measurements, threshold
from raysweep.report.drawing import marker_svg
from raysweep.report.figures import scatter
from raysweep.report.format import count
from raysweep.report.parts import capital, figure, folded, section, small
from raysweep.report.style import OTHERS

#: Where a sweep asks for no measure of flatness.
_NO_FLATNESS = (
    " This sweep does not measure flatness; add `trace` to `evaluate` and launch it again to ask whether "
    "flatter goes with better at equal loss."
)

#: Fewest checkpoints of a figure of saturated ones, and most accuracies whose figures are not folded.
LEAST_SATURATED, MOST_OPEN = 3, 3


def headline(measured: Measurements, *, name: str, tolerance: float, awaited: bool = True) -> str:
    """Return each accuracy against loss and, of saturated checkpoints, against flatness.

    Where no flatness has been measured, one sentence says so; `awaited` is whether the sweep will measure it.
    """
    titles = [metric.title for metric in measured.shown("loss", "flatness")] or ["loss"]
    heading = capital(", ".join(titles)) + " and accuracy"
    accuracies, flat = measured.shown("accuracy"), measured.shown("flatness")
    if not accuracies:
        return section(heading, small("Not enough data: no accuracy has been measured."), fold=False)
    pairs = [
        pair(measured, accuracy, name=name, tolerance=tolerance, place=place)
        for place, accuracy in enumerate(accuracies)
    ]
    said = "A dot is a checkpoint; the pointer over it shows its values."
    loss = measured.saturating
    if loss is not None:
        most = threshold(loss, tolerance)
        said += f" The shaded band is where {loss.title} is at most {most}: these checkpoints are saturated."
    if loss is not None and flat:
        said += (
            f" Figures against flatness show them alone, where there are {LEAST_SATURATED} or more. Losses "
            "still differ within the band; the verdicts allow for that, and these figures do not."
        )
    trace = " over the inputs for a trace," if flat else ""
    said += (
        " Bars are one standard error of the measurement: over the evaluation sentences for a loss,"
        f"{trace} over seeds for an accuracy.{_spaces(measured)}"
    )
    if not flat:
        said += " No flatness has been measured yet." if awaited else _NO_FLATNESS
    first, others = pairs[:MOST_OPEN], pairs[MOST_OPEN:]
    grid = "pairs" if len(measured.shown("loss", "flatness")) > 1 else "pairs single"
    body = f'{legend(measured, tolerance)}<div class="{grid}">{"".join(first)}</div>'
    if others:
        body += folded("Further accuracies", f'<div class="{grid}">{"".join(others)}</div>')
    return section(heading, body + small(said), fold=False)


def _spaces(measured: Measurements) -> str:
    """Return a sentence on the parameters of the traces that a page compares, "" for models of one size."""
    names = [metric.name for metric in measured.comparable()]
    if ENLARGED.name in names:
        return (
            f" The {ENLARGED.heading} is that of each model seen as one of a shape that holds all of them, "
            "so it compares models of different size."
        )
    if TRACE.name not in names or measured.one_space:
        return ""
    return (
        " The trace is that of each model in its own parameters; models of different size are not viewed as "
        "one architecture."
    )


def pair(
    measured: Measurements, accuracy: Description, *, name: str, tolerance: float, place: int = 0
) -> str:
    """Return one accuracy against every loss, and of saturated checkpoints against every flatness."""
    named, shown = measured.named(accuracy), []
    for kind in ("loss", "flatness"):
        against = measured.shown(kind)
        if not against and kind == "loss":
            shown.append(small(capital(f"{accuracy.title}, against {kind}: not enough data.")))
        for x in against:
            equal = kind == "flatness" and comparable(measured, x, accuracy, tolerance)
            drawn = scatter(
                measured, x.name, accuracy.name, tolerance=tolerance,
                name=f"headline-{place}-{x.name}", saturated=equal,
            )  # fmt: skip
            if drawn is None:
                shown.append(small(capital(f"{accuracy.title}, against {x.title}: not enough data.")))
                continue
            caption = "All checkpoints."
            if equal and measured.saturating is not None:
                caption = "Saturated checkpoints alone."
            shown.append(figure(drawn, f"{name}-{named}-{x.name}.csv", caption))
    return f'<div class="pair">{"".join(shown)}</div>'


def comparable(measured: Measurements, x: Description, accuracy: Description, tolerance: float) -> bool:
    """Return whether a figure of saturated checkpoints has enough of them."""
    table = measured.has(x.name, accuracy.name)
    return int(measured.saturated(table, tolerance).sum()) >= LEAST_SATURATED


def legend(measured: Measurements, tolerance: float) -> str:
    """Return the markers of sizes, the dashes of variants and what else the figures share."""
    if not measured.sizes:
        return ""
    parameters = measured.checkpoints.groupby("model")["parameters"].first()
    items = [
        f"<li>{marker_svg(index)}{escape(size)} ({count(parameters[size])} parameters)</li>"
        for index, size in enumerate(measured.sizes)
    ]
    if len(measured.variants) > 1:
        items += [
            f"<li>{marker_svg(None, dash=dash)}{escape(variant or OTHERS)}</li>"
            for dash, variant in enumerate(measured.variants)
        ]
    if any(metric.name in measured.reference for metric in measured.shown("accuracy")):
        items.append(f"<li>{marker_svg(None)}look-up table: the exact conditionals themselves</li>")
    loss = measured.saturating
    if loss is not None:
        above = f"{loss.title} above {threshold(loss, tolerance)}"
        items.append(f"<li>filled: saturated, hollow: {escape(above)}</li>")
    return f'<ul class="legend">{"".join(items)}</ul>'
