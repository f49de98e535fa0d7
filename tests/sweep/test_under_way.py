"""The work that is under way: written now and then, read by others, gone with the launch."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysweep.remote import RemotePath
from raysweep.sweep import under_way
from raysweep.sweep.run_state import LaunchState, RunState
from raysweep.sweep.under_way import Teller, UnderWay


def row(run_id: str, state: str, step: int) -> RunState:
    return RunState(run_id=run_id, model="m", label=run_id, steps=100, state=state, step=step)  # type: ignore[arg-type]


def launch(*rows: RunState, share: float | None = 0.5) -> LaunchState:
    return LaunchState(runs=list(rows), elapsed=9.0, share=share, left=(60.0, 90.0))


def test_what_is_under_way_is_told_every_few_seconds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(under_way.time, "monotonic", lambda: now)
    assert UnderWay.read(tmp_path) == UnderWay()
    with Teller(tmp_path) as tell:
        tell(launch(row("a", "training", 7), row("b", "evaluating", 100), row("c", "queued", 0)))
        told = UnderWay({"a": ("training", 7), "b": ("evaluating", 100)}, 0.5, (60.0, 90.0))
        assert UnderWay.read(tmp_path) == told
        now += 2.9
        tell(launch(row("a", "training", 9)))
        assert UnderWay.read(tmp_path) == told
        now += 0.2
        tell(launch(row("a", "training", 11), share=None))
        assert UnderWay.read(tmp_path) == UnderWay({"a": ("training", 11)}, None, (60.0, 90.0))
    assert UnderWay.read(tmp_path) == UnderWay()
    assert list(tmp_path.iterdir()) == []


def test_that_of_a_killed_launch_goes_with_the_next(tmp_path: Path) -> None:
    Teller(tmp_path)(launch(row("a", "training", 7)))
    assert UnderWay.read(tmp_path).runs
    with Teller(tmp_path):
        assert UnderWay.read(tmp_path) == UnderWay()


def test_rows_take_what_is_newer() -> None:
    rows = [
        row("a", "unfinished", 50),
        row("b", "done", 100),
        row("c", "queued", 0),
        row("d", "unfinished", 90),
    ]
    UnderWay({"a": ("training", 77), "b": ("evaluating", 100), "d": ("starting", 0)}).put(rows)
    assert [(one.state, one.step) for one in rows] == [
        ("training", 77),
        ("done", 100),
        ("queued", 0),
        ("starting", 90),
    ]


def test_a_full_disk_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(under_way, "write_atomic", full)
    monkeypatch.setattr(under_way, "_EVERY", 0.0)
    with Teller(tmp_path) as tell:
        for step in range(3):
            tell(launch(row("a", "training", step)))
    assert caplog.text.count("No space left on device") == 1


def test_an_object_store_has_fewer_requests() -> None:
    assert Teller(RemotePath("s3://bucket/sweep"))._every == 20.0
