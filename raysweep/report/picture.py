"""Figures as pictures: SVG that stands alone, for a README, a slide or MLflow.

A picture is made of figures as a page shows them, so it costs no further drawing: their variables become the
colours of the light scheme, on white, and a legend stands below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import pandas as pd

from raysweep.errors import DataError
from raysweep.files import write_atomic
from raysweep.report.data import Measurements, measurements
from raysweep.report.drawing import Drawn, marker_svg
from raysweep.report.figures import scatter
from raysweep.report.format import count
from raysweep.report.panels import reference_keys
from raysweep.report.style import declarations

#: Units of the drawing: width and height of a panel, and height of a line of the legend.
WIDTH, HEIGHT, LINE = 460, 320, 22

#: A marker or line as inline SVG, "" for none, and what it means.
Key = tuple[str, str]


def picture(frame: pd.DataFrame, *, tolerance: float) -> str:
    """Return the first accuracy against every loss and measure of flatness, side by side, with a legend.

    `frame` is a tidy table; checkpoints of at most `tolerance` nats above the least loss count as saturated.
    Colours are those of the light scheme on white.  Raises `DataError` where there is nothing to draw.
    """
    measured = measurements(frame).shortly().drawn
    panels = [
        drawn
        for accuracy in measured.shown("accuracy")[:1]
        for x in measured.shown("loss", "flatness")
        if (drawn := scatter(measured, x.name, accuracy.name, tolerance=tolerance, name=x.name)) is not None
    ]
    if not panels:
        raise DataError("there is nothing to draw: a picture needs accuracies and a loss or flatness")
    return composed(panels, _keys(measured, panels), len(measured.sizes), HEIGHT)


def save_pictures(kept: Mapping[str, Drawn], frame: pd.DataFrame, folder: Path) -> None:
    """Write the figures of a page of the tidy table `frame`, by name, as a picture each.

    Raises `OSError` where one cannot be written.
    """
    measured = measurements(frame).shortly().drawn
    for name, drawn in kept.items():
        svg = composed([drawn], _keys(measured, [drawn]), len(measured.sizes))
        write_atomic(folder / f"{name.replace('/', '-')}.svg", svg.encode())


def _keys(measured: Measurements, panels: Sequence[Drawn]) -> list[Key]:
    """Return what the marks of figures mean, as far as they occur."""
    drawn = "".join(panel.svg for panel in panels)
    parameters = measured.checkpoints.groupby("model")["parameters"].first()
    keys = [
        (marker_svg(index), f"{size} ({count(parameters[size])} parameters)")
        for index, size in enumerate(measured.sizes)
        if f"var(--series-{index})" in drawn
    ]
    if keys and len(measured.variants) > 1:
        keys += [(marker_svg(None, dash=dash), variant) for dash, variant in enumerate(measured.variants)]
    keys += reference_keys(panel.figure for panel in panels)
    return [*keys, *[("", panel.filled) for panel in panels if panel.filled][:1]]


def composed(panels: Sequence[Drawn], keys: Sequence[Key], sizes: int, height: int | None = None) -> str:
    """Return figures side by side and a legend below; their height is that of the highest one by default."""
    height = height or max(round(WIDTH * _aspect(drawn.svg)) for drawn in panels)
    width, columns = WIDTH * len(panels), 3 if len(panels) > 1 else 2
    marked, texts = [key for key in keys if key[0]], [text for marker, text in keys if not marker]
    lines = -(-len(marked) // columns)
    whole = height + LINE * (lines + len(texts))
    parts = [f'<rect width="{width}" height="{whole}" fill="var(--surface)"/>']
    for place, drawn in enumerate(panels):
        parts.append(_placed(drawn.svg, WIDTH * place, 0, f'width="{WIDTH}" height="{height}"'))
    for place, (marker, text) in enumerate(marked):
        x, y = 12 + width // columns * (place % columns), height + LINE * (place // columns)
        parts += [_placed(marker, x, y, ""), _text(x + 32, y, text)]
    parts += [_text(12, height + LINE * (lines + place), text) for place, text in enumerate(texts)]
    alternative = escape("; ".join(drawn.alternative for drawn in panels))
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" role="img" '
        f'aria-label="{alternative}" viewBox="0 0 {width} {whole}" '
        'font-family="system-ui, Roboto, Arial, DejaVu Sans, sans-serif">\n'
        + "\n".join(filter(None, parts))
        + "\n</svg>\n"
    )
    colours = declarations(sizes)
    return re.sub(r"var\((--[\w-]+)\)", lambda match: colours[match[1]], svg)


def _text(x: int, y: int, text: str) -> str:
    return f'<text x="{x}" y="{y + 12}" fill="var(--ink)" font-size="12">{escape(text)}</text>'


def _aspect(svg: str) -> float:
    """Return height over width of inline SVG."""
    [box] = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[:1]
    return float(box[1]) / float(box[0])


def _placed(svg: str, x: int, y: int, size: str) -> str:
    """Return inline SVG at a place of the picture."""
    return svg.replace("<svg", f'<svg x="{x}" y="{y}" {size}', 1)
