"""The headline as a picture that stands alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pandas as pd
import pytest

from raysweep.errors import DataError
from raysweep.report import Content, render, write_report
from raysweep.report.parts import figures_kept
from raysweep.report.picture import picture, save_pictures
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
    # One panel where there is no trace: two sizes in a line, and a line on filled dots.
    assert check(picture(table(trace=False, lookup=False), tolerance=0.02)).get("viewBox") == "0 0 460 364"


def test_variants_are_told_apart(table: Callable[..., pd.DataFrame]) -> None:
    one, two = (picture(table(rates=rates), tolerance=0.02) for rates in ((0.001,), (0.001, 0.01)))
    assert "lr 0.01" in two
    assert "lr 0.001" not in one
    # A line is in the dots of the second variant alone.
    assert one.count("stroke: #ffffff") == 0
    assert two.count("stroke: #ffffff") > 12


def test_each_figure_of_a_page_is_a_picture(table: Callable[..., pd.DataFrame], tmp_path: Path) -> None:
    frame = table(rates=(0.001, 0.01), tasks=("A/b",))
    with figures_kept() as kept:
        render(Content(name="demo", frame=frame))
    save_pictures(kept, frame, tmp_path)
    files = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert {"demo-A-b-excess_loss", "demo-A-b-trace", "steps", "sizes", "demo-trace-runs"} <= files.keys()
    for svg in files.values():
        check(svg)
    scatter = files["demo-A-b-excess_loss"]
    for said in ("64/1/2/256 (52k parameters)", "lr 0.01", "look-up table", "at most 0.02 nats"):
        assert said in scatter
    assert "look-up table" not in files["demo-trace-runs"]
    assert "at most" not in files["demo-trace-runs"]


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
