"""The headline of a sweep as one picture: an SVG file that stands alone, for a README or a slide."""

from __future__ import annotations

import re
from html import escape

import pandas as pd

from raysweep.errors import DataError
from raysweep.report.data import measurements, threshold
from raysweep.report.drawing import marker_svg
from raysweep.report.figures import scatter
from raysweep.report.format import count
from raysweep.report.style import declarations
from raysweep.report.summary import shared_ending

#: Units of the drawing: width and height of a panel, and height of a line of the legend.
WIDTH, HEIGHT, LINE = 460, 320, 22


def picture(frame: pd.DataFrame, *, tolerance: float) -> str:
    """Return the first accuracy against every loss and measure of flatness, side by side, with a legend.

    `frame` is a tidy table; checkpoints of at most `tolerance` nats above the least loss count as saturated.
    Colours are those of the light scheme on white.  Raises `DataError` where there is nothing to draw.
    """
    measured = measurements(frame)
    panels = [
        drawn
        for accuracy in measured.shown("accuracy")[:1]
        for x in measured.shown("loss", "flatness")
        if (drawn := scatter(measured, x.name, accuracy.name, tolerance=tolerance, name=x.name)) is not None
    ]
    if not panels:
        raise DataError("there is nothing to draw: a picture needs accuracies and a loss or flatness")
    parameters = measured.checkpoints.groupby("model")["parameters"].first()
    shared = shared_ending(list(measured.sizes))
    keys = [
        (marker_svg(index), f"{size.removesuffix(shared)} ({count(parameters[size])} parameters)")
        for index, size in enumerate(measured.sizes)
    ]
    if measured.shown("accuracy")[0].name in measured.reference:
        keys.append((marker_svg(None), "look-up table"))
    loss = measured.saturating
    if loss is not None:
        keys.append(("", f"filled, and shaded band: {loss.title} of at most {threshold(loss, tolerance)}"))
    width, height = WIDTH * len(panels), HEIGHT + LINE * (1 + (len(keys) - 1) // 3)
    parts = [f'<rect width="{width}" height="{height}" fill="var(--surface)"/>']
    for place, drawn in enumerate(panels):
        parts.append(_placed(drawn.svg, WIDTH * place, 0, f'width="{WIDTH}" height="{HEIGHT}"'))
    for place, (marker, text) in enumerate(keys):
        x, y = 12 + width // 3 * (place % 3), HEIGHT + LINE * (place // 3)
        parts.append(_placed(marker, x, y, "") if marker else "")
        parts.append(
            f'<text x="{x + 32}" y="{y + 12}" fill="var(--ink)" font-size="12">{escape(text)}</text>'
        )
    alternative = escape("; ".join(drawn.alternative for drawn in panels))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{alternative}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, Roboto, Arial, DejaVu Sans, sans-serif">\n'
        + "\n".join(filter(None, parts))
        + "\n</svg>\n"
    )
    colours = declarations(len(measured.sizes))
    return re.sub(r"var\((--[\w-]+)\)", lambda match: colours[match[1]], svg)


def _placed(svg: str, x: int, y: int, size: str) -> str:
    """Return inline SVG at a place of the picture."""
    return svg.replace("<svg", f'<svg x="{x}" y="{y}" {size}', 1)
