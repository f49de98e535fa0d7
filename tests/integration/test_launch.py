"""The main job, for real: Ray, Tune, Train, tasks and MLflow on a tiny sweep."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from helpers.processes import descendants
from helpers.real_sweeps import TINY, changed, points, table, write
from raysweep.sweep.run_state import run_states
from raysweep.sweep.stored import load_stored

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]


def test_first_launch_relaunch_and_growth(raysweep: Run, tmp_path: Path) -> None:
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", changed(include=[{"algorithm": {"kind": "lookup_table"}}]))

    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    assert "report.html" in out
    assert "raysweep ui tiny" in out
    frame = table(raysweep, file, storage)
    trained = frame[frame.algorithm != "lookup_table"]
    assert sorted(trained.seed.unique()) == [0, 1]
    assert sorted(trained.step.unique()) == [20, 60]
    for metric in ("excess_loss", "trace", "probe/1", "probe/3"):
        assert len(trained[trained.metric == metric]) == 4
    lookup = frame[frame.algorithm == "lookup_table"]
    assert lookup[lookup.metric == "excess_loss"].value.tolist() == [0.0]
    assert {"probe/1", "probe/3"} <= set(lookup.metric)
    assert not lookup.metric.str.startswith("trace").any()

    page = (storage / "tiny" / "report.html").read_text()
    assert "<svg" in page
    assert 'src="http' not in page

    before = points(storage)
    assert not before.duplicated(["run_id", "key", "step"]).any()
    measured = before[(before.key == "excess_loss") & (before.step > 0)]
    assert len(measured) == 4
    joined = measured.merge(
        trained[trained.metric == "excess_loss"], on=["run_id", "step"], suffixes=("", "_ledger")
    )
    assert (joined.value == joined.value_ledger).all()
    # The speed of training is in the records, in the store and in the status of its runs.
    speeds = before[before.key == "train/tokens_per_second"]
    assert speeds.step.tolist() == [50, 50]
    shown = {row.tokens_per_second for row in run_states(load_stored(storage / "tiny"))} - {None}
    assert sorted(shown) == pytest.approx(sorted(speeds.value))

    # Again: nothing is trained, and it says so.
    code, out, err = raysweep("launch", file, "--storage", storage, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert answer["worked_on"] == []
    assert "nothing to do" in err
    pd.testing.assert_frame_equal(table(raysweep, file, storage), frame)
    pd.testing.assert_frame_equal(points(storage), before)

    # One more axis value: only the new run is computed, and the rest stays as it was.
    grown = changed(include=[{"algorithm": {"kind": "lookup_table"}}], axes={"seed": [0, 1, 2]})
    write(file, grown)
    code, out, err = raysweep("launch", file, "--storage", storage, "--json")
    assert code == 0, err
    answer = json.loads(out)
    assert len(answer["worked_on"]) == 1
    after = table(raysweep, file, storage)
    old = after[after.run_id != answer["worked_on"][0]].reset_index(drop=True)
    pd.testing.assert_frame_equal(old, frame)

    # More steps extend the runs: what was trained is the beginning of what is trained now.
    longer = changed(axes={"seed": [0]}, pretrain={"steps": 80, "milestones": [20, 60, 80]})
    write(file, longer)
    code, out, err = raysweep("launch", file, "--storage", storage, "--json")
    assert code == 0, err
    extended = table(raysweep, file, storage)
    assert sorted(extended.step.unique()) == [20, 60, 80]
    run_id = extended.run_id.unique().item()
    kept = extended[extended.step < 80].reset_index(drop=True)
    mine = frame[frame.run_id == run_id].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept[mine.columns], mine)


@pytest.mark.slow
def test_two_workers_and_a_diverging_run(raysweep: Run, tmp_path: Path) -> None:
    """A run whose loss is not finite is named and does not stop the rest; two workers train each run."""
    storage = tmp_path / "results"
    data = changed(
        resources={"workers": 2, "per_worker": {"CPU": 0.5}, "evaluate": {"CPU": 0.5}},
        axes={"algorithm.lr": [1e-3, 1e30]},
    )
    file = write(tmp_path / "tiny.yaml", data)
    code, out, err = raysweep("launch", file, "--storage", storage, "--json")
    assert code == 3, out + err
    assert out, err
    answer = json.loads(out)
    assert len(answer["failures"]) == 1
    [message] = answer["failures"].values()
    assert "step 2: the training loss is nan" in message
    assert "algorithm.lr" in message
    frame = table(raysweep, file, storage)
    good = frame[(frame.metric == "excess_loss") & (frame["algorithm.lr"] == 1e-3)]
    assert sorted(good.step) == [20, 60]

    # A failed run is not tried again unless asked for.
    code, out, _ = raysweep("launch", file, "--storage", storage, "--json")
    assert code == 3
    assert json.loads(out)["worked_on"] == []

    # Asked for, with nothing changed, it fails again; nothing else is worked on.
    code, out, _ = raysweep("launch", file, "--storage", storage, "--json", "--retry-failed")
    assert code == 3
    answer = json.loads(out)
    assert answer["worked_on"] == list(answer["failures"])
    assert len(answer["failures"]) == 1


def test_dry_run_starts_nothing(raysweep: Run, tmp_path: Path) -> None:
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", TINY)
    code, out, err = raysweep("launch", file, "--storage", storage, "--dry-run")
    assert code == 0, err
    assert "new" in out
    assert not storage.exists()


@pytest.mark.slow
def test_a_second_launch_is_refused(command: Callable, raysweep: Run, tmp_path: Path) -> None:
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", TINY)
    first = command("launch", file, "--storage", storage)
    while first.poll() is None and not (storage / "tiny" / "sweep.json").exists():
        time.sleep(0.05)
    code, _, err = raysweep("launch", file, "--storage", storage)
    assert code == 2
    # The launch runs in a child of the process that guards it.
    holder = re.search(r"process (\d+)", err)
    assert holder is not None, err
    assert int(holder[1]) in descendants(first.pid)
    assert first.wait(timeout=900) == 0
