"""The suite of a paper, launched for real: what is missing, one after the other, and kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.real_sweeps import changed, write

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]


def test_the_suite_is_launched_resumed_and_collected(raysweep: Run, tmp_path: Path) -> None:
    folder, storage = tmp_path / "paper", tmp_path / "results"
    paper = {"place": "Figure 1", "question": "Which?", "finding": "the flatter one"}
    # A rate at which the loss is no number.
    lost = changed(name="lost", algorithm={"lr": 1e30, "warmup_steps": 0}, axes={"seed": [0]})
    write(folder / "fig1-small.yaml", lost | {"paper": paper})
    write(folder / "fig2-small.yaml", changed(claims=[{"longer": {"task": "1"}}]))
    where = ("--folder", folder, "--storage", storage)

    code, out, err = raysweep("paper", "run", *where)
    assert code == 3, out + err
    assert "fig1-small: ended with exit code 3; --retry-failed" in err
    assert "fig2-small: launched, 2 of 2" in err
    code, out, err = raysweep("paper", "--json", *where)
    assert code == 0, err
    assert [file["state"] for file in json.loads(out)["files"]] == ["failed", "done"]

    records = {path: path.stat().st_mtime_ns for path in storage.glob("tiny/runs/*/records/*")}
    code, out, err = raysweep("paper", "run", "fig2-small", *where)
    assert code == 0, err
    assert "fig2-small: nothing to do" in err
    assert {path: path.stat().st_mtime_ns for path in storage.glob("tiny/runs/*/records/*")} == records

    code, out, err = raysweep("paper", "collect", *where)
    assert code == 0, err
    result = json.loads((folder / "results" / "fig2-small" / "result.json").read_text())
    assert result["verdicts"][0]["claim"].startswith("Task 1: at equal loss, longer training")
    origin = result["provenance"]
    [software] = origin["measured_with"]
    assert origin["launches"] == 1
    assert software["torch"] is not None
    assert software["processor"]
    assert 0 < origin["wall_seconds"] < 600
    assert not (folder / "results" / "fig1-small").exists()

    code, out, err = raysweep("report", "--suite", *where, "-o", tmp_path / "page.html")
    assert code == 0, err
    page = (tmp_path / "page.html").read_text()
    assert "failed (1 of 1 runs)" in page
    assert "the flatter one" in page
