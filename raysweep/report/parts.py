"""Parts of the page that its sections share."""

from __future__ import annotations

import base64
from html import escape

import pandas as pd

from raysweep.report.figures import Drawn


def figure(drawn: Drawn, file: str, caption: str) -> str:
    """Return a figure with its caption and a link to its data."""
    svg = drawn.svg.replace("<svg", f'<svg role="img" aria-label="{escape(drawn.alternative)}"', 1)
    text = f"{escape(caption)} " if caption else ""
    return f"<figure>{svg}<figcaption>{text}{download(drawn.data, file)}</figcaption></figure>"


def capital(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[:1].upper() + text[1:]


def small(text: str) -> str:
    """Return a paragraph of small text."""
    return f'<p class="note">{escape(text)}</p>'


def download(data: pd.DataFrame, file: str) -> str:
    """Return a link that holds a table as CSV, so that the data of a figure travels with it."""
    encoded = base64.b64encode(data.to_csv(index=False).encode()).decode()
    return f'<a download="{escape(file)}" href="data:text/csv;base64,{encoded}">data (CSV)</a>'
