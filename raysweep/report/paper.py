"""Figures as files for a paper: PDF, SVG or PNG on white, in colours of their own, each with its legend."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.legend_handler import HandlerLine2D
from matplotlib.lines import Line2D

from raysweep.files import write_atomic
from raysweep.report.data import Measurements, measurements
from raysweep.report.drawing import HOVER, RC, Drawn
from raysweep.report.format import count
from raysweep.report.panels import REFERENCES, references_of
from raysweep.report.style import DASHES, INK, INNER, MARKERS, OTHERS, real_colour, series

#: Kinds of files, and dots per inch of a PNG.
FORMATS, _DPI = ("pdf", "svg", "png"), 300

#: Inches of a line of the legend.
_LINE = 0.2

#: Properties of matplotlib's artists that hold a colour.
_COLOURED = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def save_figures(kept: Mapping[str, Drawn], frame: pd.DataFrame, folder: Path, kind: str) -> list[Path]:
    """Write the figures of a page as files of a kind in `FORMATS`, and return their paths.

    `kept` are those that a page of the tidy table `frame` showed, by name (see `figures_kept`); they can be
    written once.  Raises `OSError` where one cannot be written.
    """
    measured, paths = measurements(frame).shortly().drawn, []
    for name, drawn in kept.items():
        path = folder / f"{name.replace('/', '-')}.{kind}"
        write_atomic(path, _file(alone(drawn, measured), kind))
        paths.append(path)
    return paths


def alone(drawn: Drawn, measured: Measurements) -> Figure:
    """Return a figure that has been on a page as it stands alone: on white, with the legend of the page.

    Its colours become real ones; it can be made once.
    """
    figure = drawn.figure
    with matplotlib.rc_context(RC):
        for artist in list(figure.findobj()):
            if artist.get_gid() == HOVER:
                artist.remove()
        _legend(figure, measured)
        # Ticks have colours too; drawing the page has made them.
        for artist in figure.findobj():
            _recolour(artist, len(measured.sizes))
    figure.set_facecolor("white")
    return figure


def _file(figure: Figure, kind: str) -> bytes:
    """Return a figure that stands alone as a file."""
    buffer = io.BytesIO()
    # No times: equal figures are equal files.
    stamp: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    with matplotlib.rc_context(RC):
        figure.savefig(buffer, format=kind, dpi=_DPI, metadata=stamp[kind])
    return buffer.getvalue()


def _legend(figure: Figure, measured: Measurements) -> None:
    """Add the sizes, variants and references that a figure shows, which a page says once for many figures."""
    used = {colour for artist in figure.findobj() for _, colour in _colours(artist)}
    handles: list[Line2D] = []
    marks: dict[Any, HandlerLine2D] = {}
    parameters = measured.checkpoints.groupby("model")["parameters"].first()
    for index, size in enumerate(measured.sizes):
        if series(index) in used:
            label = f"{size} ({count(parameters[size])})"
            marker = MARKERS[index % len(MARKERS)]
            handles.append(Line2D([], [], color=series(index), marker=marker, linestyle="none", label=label))
    if handles and len(measured.variants) > 1:
        for dash, variant in enumerate(measured.variants):
            look: dict[str, Any] = {"linestyle": DASHES[dash % len(DASHES)], "label": variant or OTHERS}
            handles.append(Line2D([], [], color=INK, **look))
            marks[handles[-1]] = _Marked(dash)
    for name in references_of([figure]):
        colour, style = REFERENCES[name]
        handles.append(Line2D([], [], color=colour, linestyle=style, label=name))
    if handles:
        # The panels keep their height.
        figure.set_figheight(figure.get_figheight() + _LINE * math.ceil(len(handles) / 2))
        figure.legend(
            handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=8, labelcolor=INK,
            handler_map=marks,
        )  # fmt: skip


class _Marked(HandlerLine2D):
    """Draws the dash of a variant in the legend, and a dot with the mark that its dots have inside."""

    def __init__(self, variant: int) -> None:
        super().__init__()
        self._variant = variant

    def create_artists(
        self,
        legend: Any,
        orig_handle: Any,
        xdescent: float,
        ydescent: float,
        width: float,
        height: float,
        fontsize: float,
        trans: Any,
    ) -> Any:
        """Return the dash, the dot and its mark."""
        whole = super().create_artists(
            legend, orig_handle, xdescent, ydescent, width, height, fontsize, trans
        )
        middle = [width / 2 - xdescent], [height / 2 - ydescent]
        looks = [("o", 6.0, INK), (INNER[self._variant % len(INNER)], 7.3, "white")]
        dots = [
            Line2D(*middle, marker=marker, markersize=size, color=colour, linestyle="none", transform=trans)
            for marker, size, colour in looks
            if marker
        ]
        for dot in dots[1:]:
            dot.set_markeredgewidth(0.9)
        return [*whole, *dots]


def _colours(artist: Artist) -> Iterator[tuple[str, str]]:
    """Yield the properties of an artist that have one colour, and that colour in hexadecimal."""
    for name in _COLOURED:
        get = getattr(artist, f"get_{name}", None)
        value = get() if get is not None else None
        if value is None or (isinstance(value, str) and value in ("none", "auto")):
            continue
        if not isinstance(value, str) and getattr(value, "ndim", 1) == 2:
            if len(value) != 1:
                continue
            value = value[0]
        yield name, to_hex(value)


def _recolour(artist: Artist, sizes: int) -> None:
    """Give an artist the real colours that its stand-ins stand for, those of the light scheme."""
    for name, colour in list(_colours(artist)):
        real = real_colour(colour, sizes)
        if real is not None:
            artist.set(**{name: real})
