"""The page in a real browser: nothing lies outside it, on screens of all widths and on paper."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from helpers import paper_suite
from raysweep.report import Content, render
from raysweep.report.suite import newest, render_suite
from raysweep.sweep.suite import suite

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
#: Writes down what is wider than the place that it has.
LOOK = """<script>addEventListener("load", () => {
  const wide = [...document.querySelectorAll(".fit, main, figure, p, dl, ul")]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML.slice(0, 80));
  const whole = document.documentElement;
  const found = {room: whole.clientWidth, needed: whole.scrollWidth, wide,
    tables: [...document.querySelectorAll("table")].map(t => getComputedStyle(t).display)};
  const said = document.createElement("pre"); said.id = "found";
  said.textContent = JSON.stringify(found); document.body.append(said)})</script>"""

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


def browse(*options: str) -> str:
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout


@pytest.fixture(scope="module")
def page(table: Callable[..., pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of ten tasks, whose table of runs no screen holds, with all sections open."""
    tasks = [f"task{k}" for k in range(10)]
    frame = table(tasks=tasks, steps=(400, 3200), rates=(0.001, 0.01))
    path = tmp_path_factory.mktemp("page") / "page.html"
    opened = render(Content(name="demo", frame=frame)).replace("<details>", "<details open>")
    path.write_text(opened.replace("</body>", LOOK + "</body>"))
    return path


@pytest.fixture(scope="module")
def suite_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a suite, with all sections open."""
    folder = tmp_path_factory.mktemp("suite")
    files = paper_suite.write_suite(folder / "paper")
    paper_suite.measure(files / "fig1-small.yaml", folder / "results")
    opened = render_suite(newest(suite(files), folder / "results")).replace("<details>", "<details open>")
    path = folder / "page.html"
    path.write_text(opened.replace("</body>", LOOK + "</body>"))
    return path


@pytest.mark.parametrize("width", [400, 1280])
def test_nothing_of_a_suite_is_wider_than_the_screen(suite_page: Path, width: int) -> None:
    tables = fits(suite_page, width)
    assert len(tables) >= 3
    assert ("block" in tables) == (width == 400)


@pytest.mark.parametrize("width", [400, 768, 1120, 1920])
def test_nothing_is_wider_than_the_screen(page: Path, width: int) -> None:
    assert "block" in fits(page, width)


def fits(page: Path, width: int) -> list[str]:
    """Check that nothing on a page is wider than its place; return how its tables are shown."""
    dom = browse(f"--window-size={width},1000", "--dump-dom", page.as_uri())
    found = json.loads(re.findall(r'<pre id="found">(.*?)</pre>', dom)[0].replace("&quot;", '"'))
    assert found["room"] <= max(width, 500)
    assert found["needed"] <= found["room"]
    assert found["wide"] == []
    tables: list[str] = found["tables"]
    return tables


def test_paper_has_everything_and_no_blank_page(page: Path, tmp_path: Path) -> None:
    folded = tmp_path / "folded.html"
    folded.write_text(page.read_text().replace("<details open>", "<details>"))
    browse(f"--print-to-pdf={tmp_path / 'page.pdf'}", "--no-pdf-header-footer", folded.as_uri())
    if shutil.which("pdftotext") is None:
        pytest.skip("needs pdftotext")
    text = subprocess.run(
        ["pdftotext", "-layout", str(tmp_path / "page.pdf"), "-"], capture_output=True, text=True, check=True
    ).stdout
    *pages, rest = text.split("\f")
    assert rest == ""
    assert all(len(one.strip()) > 40 for one in pages)
    for expected in ("Where this comes from", "Along training and across sizes"):
        assert expected in text
    # The last column of the widest table is there, for each run.
    assert text.count("probe accuracy task9") >= 12
