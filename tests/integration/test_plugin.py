"""The cost of a new kind, by doing it: a plug-in of one file and one entry point a kind is swept for real.

Nothing of raysweep knows the kinds of `helpers.my_kinds`.  They are installed as a package would be: a folder
on the path with its metadata.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from helpers import my_kinds
from helpers.real_sweeps import table, write

pytestmark = pytest.mark.ray

SWEEP = {
    "name": "plugged",
    "language": {"kind": "dice", "sides": 4, "length": 4},
    "model": {"kind": "bag", "width": 12},
    "algorithm": {"kind": "sign", "warmup_steps": 5},
    "pretrain": {"steps": 40, "batch_size": 16, "milestones": [20, 40]},
    "evaluate": {"excess_loss": {"sentences": 64}, "sharpest": {"sentences": 64}},
    "axes": {"algorithm.lr": [1e-3, 3e-3]},
}


@pytest.fixture
def installed(tmp_path: Path) -> dict[str, str]:
    """The environment of a process in which the plug-in is installed."""
    site = tmp_path / "site"
    shutil.copytree(Path(my_kinds.__file__).parent, site / "my_kinds")
    metadata = site / "my_kinds-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-kinds\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(my_kinds.ENTRY_POINTS)
    return {"PYTHONPATH": os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}


@pytest.mark.slow
def test_a_kind_is_one_file_and_one_line(
    raysweep: Callable[..., tuple[int, str, str]], installed: dict[str, str], tmp_path: Path
) -> None:
    storage, file = tmp_path / "results", write(tmp_path / "plugged.yaml", SWEEP)
    code, out, err = raysweep("launch", file, "--storage", storage, env=installed)
    assert code == 0, out + err

    # The live view has a column for the metric; in a pipe that is its heading before the number.
    lines = [line for line in (out + err).splitlines() if "step 40/40" in line]
    assert lines, out + err
    assert all("p_max 0." in line for line in lines[-1:]), lines

    def installed_raysweep(*arguments: str | Path) -> tuple[int, str, str]:
        return raysweep(*arguments, env=installed)

    frame = table(installed_raysweep, file, storage)
    rows = frame[frame.metric == "sharpest"]
    assert len(rows) == 4
    # A model also gives some probability to tokens that are no words, so 1/4 is no lower bound.
    assert rows.value.between(0, 1, inclusive="neither").all()
    assert (rows.standard_error >= 0).all()

    with sqlite3.connect(storage / "plugged" / "mlflow.db") as store:
        points = pd.read_sql_query("select value, step from metrics where key = 'sharpest'", store)
    assert sorted(points[points.step > 0].value) == sorted(rows.value)

    assert "largest probability" in (storage / "plugged" / "report.html").read_text()
