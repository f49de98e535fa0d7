"""Parts of the page that its sections share."""

from __future__ import annotations

import base64
import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from html import escape

import pandas as pd

from raysweep.report.drawing import Drawn

#: Bytes from which a table is compressed.
_LARGE = 16_000

_kept: ContextVar[dict[str, Drawn] | None] = ContextVar("kept", default=None)


def figure(drawn: Drawn, file: str, caption: str) -> str:
    """Return a figure with its caption and a link to its data."""
    kept = _kept.get()
    if kept is not None:
        kept[file.removesuffix(".csv")] = drawn
    svg = drawn.svg.replace("<svg", f'<svg role="img" aria-label="{escape(drawn.alternative)}"', 1)
    text = f"{escape(caption)} " if caption else ""
    return f"<figure>{svg}<figcaption>{text}{download(drawn.data, file)}</figcaption></figure>"


@contextmanager
def figures_kept() -> Iterator[dict[str, Drawn]]:
    """Keep the figures of the pages that are rendered meanwhile, by the names of their data's files."""
    kept: dict[str, Drawn] = {}
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def section(heading: str, body: str, *, fold: bool = True) -> str:
    """Return a section of the page, folded until a reader opens it; "" where it has no body.

    On paper it is unfolded.
    """
    if not body:
        return ""
    head = f"<h2>{escape(heading)}</h2>"
    return (
        f"<details><summary>{head}</summary>{body}</details>" if fold else f"<section>{head}{body}</section>"
    )


def folded(summary: str, body: str, *, printed: bool = True) -> str:
    """Return a part of a section that a reader may open, such as a long table; "" without a body.

    A part that is not `printed` is on paper only if the reader has opened it.
    """
    kind = "" if printed else ' class="long"'
    return f"<details{kind}><summary>{escape(summary)}</summary>{body}</details>" if body else ""


def capital(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    """Return a paragraph of small text."""
    return f'<p class="note">{escape(text)}</p>'


def download(data: pd.DataFrame, file: str) -> str:
    """Return a link that holds a table as CSV, so that the data of a figure travels with it.

    A large table is compressed, and its file ends with `.gz`; pandas reads both.
    """
    content, kind, how = data.to_csv(index=False).encode(), "text/csv", "CSV"
    if len(content) > _LARGE:
        content, kind, how = gzip.compress(content, mtime=0), "application/gzip", "CSV, gzip"
        file = f"{file}.gz"
    encoded = base64.b64encode(content).decode()
    return f'<a download="{escape(file)}" href="data:{kind};base64,{encoded}">data ({how})</a>'
