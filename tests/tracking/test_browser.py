"""MLflow's own pages in a real browser, opened by the links that `raysweep ui` prints."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.metric import Metric
from raysweep.evaluation.probe_metrics import MAJORITY, PROBE
from raysweep.sweep import EvaluationRecord
from raysweep.tracking import MLflowWriter, SweepView, deep_link, default_tracking_uri, run_view
from raysweep.tracking.store import locate
from raysweep.tracking.ui import server_command
from raysweep.training import CheckpointRecord

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PATIENCE = 180.0

pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]


def submit(writer: MLflowWriter, seed: int) -> None:
    metrics: list[Metric] = [
        EXCESS_LOSS.number(0.01 * (1 + seed), standard_error=0.001, n=64),
        PROBE.number(0.9 - 0.1 * seed, standard_error=0.001, n=5, of={"task": "A"}),
        MAJORITY.number(0.3, n=5, of={"task": "A"}),
    ]
    checkpoint = CheckpointRecord(step=100, milestone=True, files={}, curve=(), time=1.7e9, train_seconds=1.0)
    evaluation = EvaluationRecord(
        kind="all", step=100, config={}, identity="0" * 64, metrics=tuple(metrics), time=1.7e9, seconds=1.0
    )
    writer.submit(
        run_view(
            run_id=f"r{seed}",
            identity="x",
            name=f"64/1/2/256 · seed {seed}",
            params={"seed": seed},
            config={},
            checkpoints=[checkpoint],
            evaluations=[evaluation],
            status="FINISHED",
        )
    )


@pytest.fixture
def port(folder: Path) -> Iterator[int]:
    """A server of a sweep with two runs."""
    writer = MLflowWriter(SweepView(name="tiny"), directory=folder)
    writer.open()
    submit(writer, 0)
    submit(writer, 1)
    assert writer.close("FINISHED", timeout=60)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free = int(probe.getsockname()[1])
    log = (folder / "server.log").open("w")
    server = subprocess.Popen(
        server_command(default_tracking_uri(folder), free),
        stdout=log,
        stderr=log,
        cwd=folder,
        start_new_session=True,
    )
    try:
        yield free
    finally:
        server.terminate()
        server.wait(30)
        # Its children end with it, or here.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)


def words(address: str, expected: str) -> str:
    """Return the text of a page once it shows what is expected, or as it is when patience ends."""
    deadline, text = time.monotonic() + PATIENCE, ""
    while expected not in text and time.monotonic() < deadline:
        done = subprocess.run(
            [
                *(str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1600,6000"),
                *("--virtual-time-budget=40000", "--dump-dom", address),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        page = re.sub(r"<(script|style).*?</\1>", "", done.stdout, flags=re.DOTALL)
        text = re.sub(r"\s*<[^>]+>\s*", "|", page)
    return text


def test_the_link_opens_charts_of_accuracy_against_loss_with_all_runs(folder: Path, port: int) -> None:
    found = locate("tiny", default_tracking_uri(folder))
    assert found is not None
    text = words(deep_link(f"http://127.0.0.1:{port}", *found), "excess_loss vs. probe/A")
    assert "excess_loss vs. probe/A" in text
    # Both runs by their names, none folded, in the order of their losses, and not the sweep's own.
    assert text.index("64/1/2/256 · seed 0") < text.index("64/1/2/256 · seed 1")
    assert "|2|" in text[: text.index("matching runs")]
    # Its sections come last, and are closed.
    assert text.index("Accuracy against loss and flatness") < text.index("Model metrics")
    assert text.index("Model metrics") < text.index("uncertainty")
    assert "majority.A" not in text
    address = f"http://127.0.0.1:{port}/#/experiments/{found[0]}/models?workflowType=machine_learning"
    models = words(address, "Ready")
    assert "64-1-2-256 · seed 0 · step 100" in models
