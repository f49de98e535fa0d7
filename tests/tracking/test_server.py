"""A real MLflow server that is not there yet when the sweep begins."""

from __future__ import annotations

import logging
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from raysweep.tracking import MLflowWriter, Point, RunView, SweepView
from raysweep.tracking.sqlite import prepare
from raysweep.tracking.ui import server_command


def view(steps: int, status: str) -> RunView:
    points = tuple(Point("train/loss", s, 1_000_000 + s, 1.0 / s) for s in range(1, steps + 1))
    return RunView(
        run_id="a",
        identity="x",
        name="seed 0",
        params={"seed": "0"},
        config={},
        points=points,
        shown={},
        status=status,
        start_ms=1_000_000,
        end_ms=None if status == "RUNNING" else 2_000_000,
    )


@pytest.mark.slow
def test_a_server_that_comes_up_late_gets_everything_once(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    prepare(tmp_path / "mlflow.db", rebuild=False)  # the server would take seconds to make it
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    address = f"http://127.0.0.1:{port}"
    writer = MLflowWriter(SweepView(name="tiny"), directory=tmp_path, tracking_uri=address)
    with caplog.at_level(logging.WARNING, logger="raysweep.tracking"):
        writer.open()
        writer.submit(view(10, "RUNNING"))
        time.sleep(2)
        assert writer.location is None
        log = (tmp_path / "server.log").open("w")
        command = server_command(f"sqlite:///{tmp_path / 'mlflow.db'}", port)
        server = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
        try:
            assert writer.wait(120) is not None, (tmp_path / "server.log").read_text()
            writer.submit(view(20, "FINISHED"))
            assert writer.close("FINISHED", timeout=60)
            with urllib.request.urlopen(address) as page:
                assert page.status == 200
        finally:
            server.terminate()
            server.wait(30)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        counts = database.execute("select step, count(*) from metrics group by run_uuid, step").fetchall()
        states = database.execute("select status from runs").fetchall()
    assert counts == [(step, 1) for step in range(1, 21)]
    assert states == [("FINISHED",), ("FINISHED",)]
    messages = [record.getMessage() for record in caplog.records]
    assert ["cannot be written" in messages[0], "again" in messages[-1], len(messages)] == [True, True, 2]
    assert capfd.readouterr().out == ""
    assert sys.executable == command[0]
