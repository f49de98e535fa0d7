"""Several sweeps on one page, and the sections that a page folds."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pandas as pd
import pytest

from raysweep.report import Content, render
from raysweep.report.several import render_several
from raysweep.report.style import style_sheet
from raysweep.report.tables import table as table_of
from raysweep.training import CurvePoint

Table = Callable[..., pd.DataFrame]


def words(page: str) -> str:
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(style|svg).*?</\1>", " ", page, flags=re.DOTALL))


def test_sweeps_share_colours_and_keep_their_numbers(table: Table) -> None:
    small = Content(name="small", frame=table(models=(("16/1/2/64", 7000), ("32/1/2/128", 14_000))))
    large = Content(name="large", description="Wider.", frame=table(tasks=("A",)))
    page = render_several([small, large])
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert page.count("<figure>") == 2 * 3
    text = words(page)
    for expected in ("Wider.", "probe accuracy, task A", "probe accuracy, task B"):
        assert expected in text
    # The smallest model of one sweep is the first of all, that of the other the second.
    legend = re.findall(r"<li><svg.*?var\(--series-(\d)\).*?</svg>([\d/]+) ", page, flags=re.DOTALL)
    assert legend == [("0", "16/1/2/64"), ("1", "32/1/2/128"), ("2", "64/1/2/256")]
    rows = re.findall(r"<tr>(.*?)</tr>", page)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows if "<td" in row]
    assert [row[:2] for row in cells] == [
        ["small", "16/1/2/64"],
        ["small", "32/1/2/128"],
        ["small", "look-up table"],
        ["large", "32/1/2/128"],
        ["large", "64/1/2/256"],
        ["large", "look-up table"],
    ]
    # What one sweep did not measure is no number of another.
    assert cells[3][-1] == "–"
    assert cells[0][-1] != "–"


def test_sweeps_without_measurements_can_be_compared(table: Table) -> None:
    nothing = Content(name="nothing", frame=table(models=(), lookup=False))
    assert "not enough data" in words(render_several([nothing, replace(nothing, name="more")])).lower()
    assert "<figure>" in render_several([nothing, Content(name="some", frame=table(seeds=(0,)))])


def test_the_headline_is_open_and_the_rest_folds(table: Table) -> None:
    frame = table()
    runs = [run for run in frame["run_id"].unique() if not run.startswith("lookup")]
    points = [CurvePoint(step=s, loss=1.0, time_ms=s) for s in (10, 20)]
    links = {runs[0]: {"logs": "runs/x/logs/", "MLflow": 'http://x/#/runs/a"b'}}
    page = render(Content(name="demo", frame=frame, curves={runs[0]: points}, links=links))
    folded = "".join(re.findall(r"<details>.*</details>", page, flags=re.DOTALL))
    for heading in ("Along training and across sizes", "Training curves", "Runs", "Where this comes from"):
        assert f"<summary><h2>{heading}</h2></summary>" in folded
    for heading in ("Excess loss, trace and accuracy", "At the last milestone"):
        assert f"<section><h2>{heading}</h2>" in page
    assert page.index('class="findings"') < page.index("<figure>") < page.index("<summary><h2>")
    assert '<a href="runs/x/logs/">logs</a> <a href="http://x/#/runs/a&quot;b">MLflow</a>' in page


@pytest.mark.parametrize(
    ("columns", "digits", "kind"), [(3, 4, "from-320"), (8, 12, "from-880"), (40, 12, "paragraphs")]
)
def test_a_table_knows_how_wide_it_is(columns: int, digits: int, kind: str) -> None:
    """Each cell carries its heading, for pages on which the table does not fit."""
    made = table_of([f"h&amp;{k}" for k in range(columns)], [["1" * digits] * columns] * 2)
    assert f'<table class="{kind}">' in made
    assert made.count('data-head="h&amp;2"') == 2
    assert f"table.{kind} {{" in style_sheet(1)
