"""A sweep as a job of a cluster that this process reaches by its dashboard alone, and by a token."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd
import pytest
import requests

from helpers.real_sweeps import LONG, table, write

pytestmark = [pytest.mark.ray, pytest.mark.slow]

Run = Callable[..., tuple[int, str, str]]
PROGRAMS = Path(sys.executable).parent
TOKEN = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4}


def free_ports(count: int) -> list[str]:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [str(server.getsockname()[1]) for server in servers]
    for server in servers:
        server.close()
    return ports


@pytest.fixture
def dashboard() -> Iterator[str]:
    """The dashboard of a head of its own, started as `ray start` does; it asks for a token."""
    names = ("port", "dashboard-port", "dashboard-agent-listen-port", "dashboard-agent-grpc-port")
    names += ("metrics-export-port", "ray-client-server-port")
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    options = [word for name, port in ports.items() for word in (f"--{name}", port)]
    environment = {**os.environ, **TOKEN, "RAY_USAGE_STATS_ENABLED": "0"}
    environment["PATH"] = f"{PROGRAMS}:{environment['PATH']}"
    environment.pop("RAY_ADDRESS", None)
    address = f"http://127.0.0.1:{ports['dashboard-port']}"
    # Ray's sockets must have short paths.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        head = subprocess.Popen(
            [
                *(PROGRAMS / "ray", "start", "--head", "--block", "--temp-dir", folder, "--num-cpus", "2"),
                *("--dashboard-host", "127.0.0.1", *options),
            ],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            headers = {"Authorization": f"Bearer {TOKEN['RAY_AUTH_TOKEN']}"}
            deadline = time.monotonic() + 300
            while True:
                assert head.poll() is None
                assert time.monotonic() < deadline
                try:
                    # Jobs are taken once the head has an agent.
                    if requests.get(f"{address}/api/jobs/", headers=headers, timeout=10).ok:
                        break
                except requests.RequestException:
                    pass
                time.sleep(1)
            yield address
        finally:
            head.send_signal(signal.SIGTERM)
            head.wait(120)


def test_a_sweep_is_submitted_followed_cancelled_and_resumed(
    dashboard: str,
    command: Callable[..., subprocess.Popen[str]],
    raysweep: Run,
    expected: pd.DataFrame,
    tmp_path: Path,
) -> None:
    base = write(tmp_path / "base" / "long.yaml", LONG)
    file = tmp_path / "mine.yaml"
    file.write_text("extends: base/long.yaml\n")
    storage = tmp_path / "results"
    where = ("--address", dashboard, "--storage", storage)

    code, out, err = raysweep("submit", file, *where)
    assert (code, out) == (4, "")
    assert "RAY_AUTH_MODE=token" in err

    # Long enough to be there when it is cancelled.
    longer = ("--set", "pretrain.steps=1000000", "--set", "pretrain.milestones=[300, 3000, 1000000]")
    code, out, err = raysweep("submit", file, *where, *longer, "--json", env=TOKEN)
    assert code == 0, out + err
    assert json.loads(out)["sweep"] == "tiny"
    assert "the launch is at work" in err
    # The job needs nothing of this folder.
    base.unlink()

    followed = command("logs", "tiny", "-f", *where, env=TOKEN)
    write(base, LONG)
    code, out, err = raysweep("submit", file, *where, *longer, env=TOKEN)
    assert code == 2, out + err
    assert "is in use by process" in err

    deadline = time.monotonic() + 600
    while not list((storage / "tiny" / "runs").glob("*/records/*.json")):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    code, out, err = raysweep("cancel", "tiny", *where, env=TOKEN)
    assert code == 0, out + err
    assert "tiny: stopped" in out
    out, err = followed.communicate(timeout=300)
    assert followed.returncode == 0, out + err
    assert "asked to stop by" in out
    assert "nobody is at work on it" in err

    code, out, err = raysweep("status", file, "--json", *where, env=TOKEN)
    assert code == 0, out + err
    assert "unfinished" in {run["state"] for run in json.loads(out)["runs"]}

    code, out, err = raysweep("submit", file, *where, env=TOKEN)
    assert code == 0, out + err
    code, out, err = raysweep("status", "tiny", "--watch", "--every", "1", *where, env=TOKEN)
    assert code == 0, out + err
    pd.testing.assert_frame_equal(table(raysweep, file, storage), expected)
