"""Figures as files for a paper: PDF, SVG or PNG on white, in colours of their own, each with its legend."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.artist import Artist
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from raysweep.files import write_atomic
from raysweep.report.data import Measurements, measurements
from raysweep.report.drawing import HOVER, RC, Drawn
from raysweep.report.format import count
from raysweep.report.page import Content, render
from raysweep.report.parts import figures_kept
from raysweep.report.style import DASHES, INK, MARKERS, real_colour, series

#: Kinds of files, and dots per inch of a PNG.
FORMATS, _DPI = ("pdf", "svg", "png"), 300

#: Properties of matplotlib's artists that hold a colour.
_COLOURED = ("color", "facecolor", "edgecolor", "markerfacecolor", "markeredgecolor")


def save_figures(content: Content, folder: Path, kind: str) -> list[Path]:
    """Write every figure of a page as a file of a kind in `FORMATS`, and return their paths.

    They are named as the tables of their data.  Raises `OSError` where they cannot be written.
    """
    with figures_kept() as kept:
        render(content)
    measured = measurements(content.frame)
    paths = []
    for name, drawn in kept.items():
        path = folder / f"{name.replace('/', '-')}.{kind}"
        write_atomic(path, _file(drawn, measured, kind))
        paths.append(path)
    return paths


def _file(drawn: Drawn, measured: Measurements, kind: str) -> bytes:
    """Return a figure as a file; it is changed, and no figure of a page any more."""
    buffer = io.BytesIO()
    # No times: equal figures are equal files.
    stamp: dict[str, Any] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    with matplotlib.rc_context(RC):
        drawn.figure.draw_without_rendering()  # makes the ticks, which have colours too
        for artist in list(drawn.figure.findobj()):
            if artist.get_gid() == HOVER:
                artist.remove()
        _legend(drawn.figure, measured)
        for artist in drawn.figure.findobj():
            _recolour(artist, len(measured.sizes))
        drawn.figure.savefig(buffer, format=kind, facecolor="white", dpi=_DPI, metadata=stamp[kind])
    return buffer.getvalue()


def _legend(figure: Figure, measured: Measurements) -> None:
    """Add the sizes and variants that a figure shows, which a page says once for all figures."""
    used = {colour for artist in figure.findobj() for _, colour in _colours(artist)}
    handles: list[Line2D] = []
    parameters = measured.checkpoints.groupby("model")["parameters"].first()
    for index, size in enumerate(measured.sizes):
        if series(index) in used:
            label = f"{size} ({count(parameters[size])})"
            marker = MARKERS[index % len(MARKERS)]
            handles.append(Line2D([], [], color=series(index), marker=marker, linestyle="none", label=label))
    if handles and len(measured.variants) > 1:
        for dash, variant in enumerate(measured.variants):
            look: dict[str, Any] = {"linestyle": DASHES[dash % len(DASHES)], "label": variant}
            handles.append(Line2D([], [], color=INK, **look))
    if handles:
        figure.legend(
            handles=handles, loc="outside lower left", ncols=2, frameon=False, fontsize=8, labelcolor=INK
        )


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
