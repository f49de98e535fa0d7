"""The headline as a picture that stands alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from raysweep.errors import DataError
from raysweep.report import write_report
from raysweep.report.picture import picture
from raysweep.sweep import load_sweep

COMMITTED = Path(__file__).parents[2] / "sweeps" / "scaling.svg"


def check(svg: str) -> ElementTree.Element:
    root = ElementTree.fromstring(svg)
    # Nothing of a page that is not there, and nothing that a browser would fetch.
    assert "var(--" not in svg
    assert not re.search(r'(?:href="|url\()(?!#)', svg)
    names = re.findall(r'\bid="([^"]+)"', svg)
    assert len(names) == len(set(names))
    return root


def test_both_panels_and_the_legend(table: Callable[..., pd.DataFrame]) -> None:
    svg = picture(table(), tolerance=0.02)
    root = check(svg)
    panels = [part for part in root if part.tag.endswith("svg") and part.get("width") == "460"]
    assert [panel.get("x") for panel in panels] == ["0", "460"]
    for expected in ("64/1/2/256 (52k parameters)", "look-up table", "at most 0.02 nats", "task A"):
        assert expected in svg
    assert "24 checkpoints" in str(root.get("aria-label"))
    # One panel where there is no trace.
    assert check(picture(table(trace=False, lookup=False), tolerance=0.02)).get("viewBox") == "0 0 460 342"


def test_nothing_is_drawn_of_nothing(table: Callable[..., pd.DataFrame]) -> None:
    with pytest.raises(DataError, match="there is nothing to draw"):
        picture(table(tasks=(), lookup=False), tolerance=0.02)


def test_a_report_that_ends_in_svg_is_the_picture(table: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    sweep = load_sweep(COMMITTED.with_suffix(".yaml"), storage=tmp_path)
    path = write_report(sweep, table(), tmp_path / "headline.svg")
    assert path.read_text() == picture(table(), tolerance=sweep.questions.tolerance)


def test_the_picture_of_readme_is_whole() -> None:
    assert "look-up table" in COMMITTED.read_text()
    check(COMMITTED.read_text())
