"""The look of all figures, their form on a page, and the values that they show on hover.

A figure is drawn once, in the stand-in colours of `raysweep.report.style`.  On a page it becomes inline SVG
that takes its colours from the page (`Drawn.svg`), for a paper a file with colours of its own
(`raysweep.report.paper`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.markers import MarkerStyle

from raysweep.evaluation.metric import error_key
from raysweep.report.data import Measurements, named_run
from raysweep.report.format import plus_minus
from raysweep.report.style import DASHES, INK, INNER, MARKERS, MUTED, SURFACE, series, to_variables

RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "raysweep",
    "pdf.fonttype": 42,
    "text.parse_math": False,
    "font.size": 10.5,
    "font.family": "sans-serif",
    "axes.labelsize": 10.5,
    "xtick.labelsize": 10,
    "ytick.labelsize": 10,
    "axes.linewidth": 0.8,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.5,
}
WIDTH = 4.6
#: Points by which the lines in a dot are longer than the dot without its edge.
_BEYOND = 1.3

#: The mark of what is in a figure for hovering alone, and the diameter of its targets in points.
HOVER, _TARGET = "hover", 11.0
#: A link as matplotlib writes it: its address is in the quotes that it does not hold.
_LINK = re.compile(r"""<a xlink:href=(["'])(.*?)\1[^>]*>""", re.DOTALL)
#: A tag with coordinates, and a number in it with more digits than a page shows: a point has 72 to an inch.
_PLACED, _DIGITS = re.compile(r"<(?:path|use|text|rect)\b[^>]*>"), re.compile(r"\d+\.\d{3,}")
#: The fonts that matplotlib names with every text.
_FONTS = re.compile(r"font-family: [^;\"]*")


@dataclass(frozen=True)
class Drawn:
    """A figure, a name for the parts of its SVG, a sentence for who does not see it, and its data.

    `filled` says what filled marks mean, "" where that is nothing of its own.
    """

    figure: Figure
    name: str
    alternative: str
    data: pd.DataFrame
    filled: str = ""

    @cached_property
    def svg(self) -> str:
        """Inline SVG for a page."""
        return embedded(self.figure, self.name)


def hover(axes: Axes, x: Iterable[float], y: Iterable[float], texts: Sequence[str]) -> None:
    """Let each point of a figure show a text under the pointer, which takes no script in SVG."""
    if texts:
        targets = axes.scatter(list(x), list(y), s=_TARGET**2, color=INK, alpha=0, linewidths=0, urls=texts)
        targets.set_gid(HOVER)


def mark_inside(
    axes: Axes,
    x: Any,
    y: Any,
    variant: int,
    colour: str,
    *,
    marker: str = "o",
    size: float = RC["lines.markersize"],
) -> None:
    """Mark the dots of the variant number `variant` inside: variants of a size have one colour and `marker`.

    The lines go through the whole dot: one that ends in it would look like the hole of a hollow dot.
    """
    mark = INNER[variant % len(INNER)]
    if mark:
        style = MarkerStyle(marker)
        wide = style.get_path().transformed(style.get_transform()).get_extents().width
        axes.plot(
            x,
            y,
            linestyle="none",
            marker=mark,
            markersize=wide * size + _BEYOND,
            color=colour,
            markeredgewidth=0.15 * size,
        )


def told(measured: Measurements, table: pd.DataFrame, metrics: Sequence[str]) -> list[str]:
    """Return the text of each checkpoint of a table: run, step and the values of some metrics."""
    texts = []
    for row in table.to_dict("records"):
        lines = [f"{named_run(row)} · step {row['step']:,}"]
        for name in metrics:
            metric = measured.metrics[name]
            lines.append(f"{metric.label}: {plus_minus(row[name], row[error_key(name)])}")
        texts.append("\n".join(lines))
    return texts


@contextmanager
def laid_out(figure: Figure) -> Iterator[None]:
    """Lay a figure out for SVG, so that to save it does not draw it once more for that alone."""
    engine = figure.get_layout_engine()
    if engine is None:
        yield
        return
    FigureCanvasSVG(figure)
    figure.dpi = 72
    engine.execute(figure)
    # With any engine, one that does nothing included, matplotlib draws a figure twice.
    figure.set_layout_engine(None)
    try:
        yield
    finally:
        figure.set_layout_engine(engine)


def embedded(figure: Figure, name: str) -> str:
    """Return inline SVG: page colours, ids of its own, texts for hovering, nothing that a browser fetches."""
    buffer = io.StringIO()
    with matplotlib.rc_context(RC), laid_out(figure):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    # matplotlib has links for points, and no other text: they become titles.
    svg = _LINK.sub(r"<g><title>\2</title>", svg)
    svg = svg.replace("</a>", "</g>")
    svg = _PLACED.sub(lambda tag: _DIGITS.sub(_rounded, tag[0]), svg)
    svg = re.sub(r">\s+<", "><", svg.replace(" \n", " "))
    svg = _FONTS.sub("font-family: 'DejaVu Sans', Verdana, sans-serif", svg)
    svg = re.sub(r' transform="rotate\(-0 [^"]*"', "", svg)
    # Targets are not painted, and yet the pointer is to find them.
    svg = svg.replace(f' id="{HOVER}"', f' class="{HOVER}" pointer-events="all"')
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r"url\(#", f"url(#{name}-", svg)
    svg = svg.replace(' xlink:href="#', f' href="#{name}-')
    return to_variables(svg.strip())


def _rounded(number: re.Match[str]) -> str:
    return f"{float(number[0]):.2f}".rstrip("0").rstrip(".")


@cache
def marker_svg(index: int | None, *, dash: int | None = None, filled: bool = True) -> str:
    """Return a small SVG for the legend: a size's marker, a variant's dash, or the look-up table's line.

    Beside its dash a variant has the mark that its dots have inside.
    """
    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(0.36, 0.2))
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set_axis_off()
        axes.set(xlim=(0, 1), ylim=(0, 1))
        if index is not None:
            axes.plot(
                [0.5],
                [0.5],
                color=series(index),
                linestyle="none",
                marker=MARKERS[index % len(MARKERS)],
                markersize=6,
                markerfacecolor=series(index) if filled else "none",
                markeredgecolor=series(index),
            )
        else:
            style = DASHES[dash % len(DASHES)] if dash is not None else (0, (4, 3))
            axes.plot([0, 1], [0.5, 0.5], color=INK if dash is not None else MUTED, linestyle=style)
            if dash is not None:
                axes.plot([0.5], [0.5], marker="o", markersize=7, color=INK)
                mark_inside(axes, [0.5], [0.5], dash, SURFACE, size=7)
        svg = embedded(figure, f"key-{index}-{dash}-{filled}")
    return svg.replace("<svg", '<svg width="26" height="14" aria-hidden="true"', 1)
