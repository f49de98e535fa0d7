"""Serving until asked to end, with small servers and with the command line itself."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from raysweep.cli.app import run
from raysweep.errors import ConfigError, StorageError
from raysweep.sweep import Sweep, load_sweep
from raysweep.tracking import Tracker, serve

PATIENCE = 60.0
FILE = """\
name: tiny
language: {kind: hmm, states: 4, vocabulary: 6, length: 4, blocks: 2, tasks: [2]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 100, batch_size: 8}
evaluate: {excess_loss: {sentences: 64}}
"""

#: A server with a process of its own, both deaf to SIGTERM where DEAF says so; it writes down who they are.
SERVER = """
import os, signal, subprocess, sys, time
if sys.argv[2] == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
with open(sys.argv[1] + ".new", "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(600)
"""
#: Serves as `raysweep ui` does.
PARENT = """
import pathlib, sys
from raysweep.tracking import server
server.GRACE = 1.0
log = pathlib.Path(sys.argv[2] + ".log")
server.serve([sys.executable, "-c", sys.argv[1], sys.argv[2], sys.argv[3]], int(sys.argv[4]), log=log)
print("ended")
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def status(pid: int) -> list[str]:
    """Return state, parent and group of a process, and more; [] where it has ended."""
    try:
        found = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [] if found[0] == "Z" else found


def gone(pid: int) -> bool:
    return not status(pid)


def processes(place: int, value: int) -> list[int]:
    """Return the processes whose parent (place 1) or group (place 2) is `value`."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]
    return [pid for pid in pids if (found := status(pid)) and found[place] == str(value)]


@pytest.mark.parametrize("manner", ["polite", "deaf"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_is_left_of_a_server_when_it_is_ended(
    number: signal.Signals, manner: str, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    command = [sys.executable, "-c", PARENT, SERVER, str(pids), manner, str(free_port())]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        wait_for(pids.exists)
        servers = [int(pid) for pid in pids.read_text().split()]
        assert not any(map(gone, servers))
        parent.send_signal(number)
        said, _ = parent.communicate(timeout=PATIENCE)
    finally:
        parent.kill()
    assert (parent.returncode, said) == (0, "ended\n")
    wait_for(lambda: all(map(gone, servers)))


def test_a_server_that_fails_and_one_that_ends(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "ui.log"
    program = "import sys; print('out', flush=True); print('error', file=sys.stderr); raise SystemExit(3)"
    with pytest.raises(StorageError, match=rf"ended with exit code 3; its messages are in {log}"):
        serve([sys.executable, "-c", program], free_port(), log=log)
    assert log.read_text() == "out\nerror\n"
    assert capfd.readouterr() == ("", "")
    before = signal.getsignal(signal.SIGTERM)
    serve([sys.executable, "-c", ""], free_port(), log=log)
    assert log.read_text() == ""
    assert signal.getsignal(signal.SIGTERM) is before
    with pytest.raises(StorageError, match=r"absent/ui.log, for the messages of MLflow, cannot be written"):
        serve([sys.executable, "-c", ""], free_port(), log=tmp_path / "absent" / "ui.log")


#: Answers one request after a while.
SLOW = """
import http.server, sys, time
time.sleep(0.5)
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.BaseHTTPRequestHandler).handle_request()
"""


def test_what_is_said_of_a_server_waits_for_its_answer(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "ui.log"
    ready: list[float] = []
    began = time.monotonic()
    command = [sys.executable, "-c", SLOW, str(port)]
    serve(command, port, log=log, on_ready=lambda: ready.append(time.monotonic()))
    [at] = ready
    assert at - began > 0.5
    serve([sys.executable, "-c", ""], free_port(), log=log, on_ready=lambda: ready.append(0.0))
    assert len(ready) == 1


def test_a_port_in_use_is_said_before_anything_starts(tmp_path: Path) -> None:
    started: list[int] = []
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"--port {port}: .*in use"):
            serve(["absent"], port, log=tmp_path / "ui.log", on_ready=lambda: started.append(1))
    assert started == []
    assert not (tmp_path / "ui.log").exists()


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "tiny.yaml").write_text(FILE)
    return load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")


def test_a_sweep_on_a_server_gets_its_link_and_nothing_is_served(
    sweep: Sweep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("raysweep.tracking.ui.locate", lambda *_: ("7", "ab12"))
    monkeypatch.setattr("raysweep.tracking.ui.children", lambda *_: ["cd34", "ef56"])
    monkeypatch.setattr("raysweep.tracking.serve", None)  # serving would be an error
    arguments = ["ui", str(sweep.path), "--storage", str(sweep.storage)]
    assert run([*arguments, "--tracking-uri", "http://mlflow.example.org"]) == 0
    links = dict(re.split(r"\s{2,}", line) for line in capsys.readouterr().out.splitlines())
    assert links["runs side by side"].startswith("http://mlflow.example.org/#/compare-runs?")
    assert "cd34" in links["runs side by side"]
    assert "ef56" in links["runs side by side"]
    assert links["charts"].startswith("http://mlflow.example.org/#/experiments/7/runs?")
    assert links["report"].startswith("http://mlflow.example.org/#/experiments/7/runs/ab12/artifacts?")
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", lambda link: bool(opened.append(link)))
    assert run([*arguments, "--tracking-uri", "http://mlflow.example.org", "--open"]) == 0
    assert opened == [links["charts"]]
    assert "there is no browser here" in capsys.readouterr().err
    assert run([*arguments, "--tracking-uri", "databricks"]) == 2
    assert "open experiment 7" in capsys.readouterr().err


def test_the_start_of_a_server_is_said_at_once(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    served: list[tuple[int, Path, str]] = []
    monkeypatch.setattr(
        "raysweep.tracking.serve",
        lambda command, port, *, log, on_ready: served.append((port, log, capsys.readouterr().err)),
    )
    monkeypatch.setattr("raysweep.tracking.comparison_links", lambda *_: {"charts": "a link"})
    assert run(["ui", str(sweep.path), "--storage", str(sweep.storage), "--port", "5077"]) == 0
    log = sweep.directory / "ui.log"
    said = f"starting MLflow on 127.0.0.1:5077, with its messages in {log}; the links come when it answers\n"
    assert served == [(5077, log, said)]


def test_a_server_that_is_away_is_said_in_a_line(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"http://127.0.0.1:{free_port()}"
    storage = ["--storage", str(sweep.storage)]
    assert run(["ui", str(sweep.path), *storage, "--tracking-uri", uri]) == 4
    error = capsys.readouterr().err
    assert error.startswith(f"raysweep: MLflow at {uri} cannot be read")
    assert len(error.splitlines()) == 1


@pytest.mark.slow
def test_ui_serves_and_leaves_nothing_behind(sweep: Sweep, tmp_path: Path) -> None:
    assert Tracker(sweep).close()
    port = free_port()
    program = "import sys; from raysweep.cli.app import run; sys.exit(run())"
    options = ["--storage", str(sweep.storage), "--port", str(port)]
    with (tmp_path / "server.log").open("w") as log:
        ui = subprocess.Popen(
            [sys.executable, "-c", program, "ui", str(sweep.path), *options],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=tmp_path,
        )
        try:
            assert ui.stdout is not None
            # The first line is printed when the server answers.
            assert ui.stdout.readline().split()[1].startswith(f"http://127.0.0.1:{port}/#/experiments/")

            def answers() -> bool:
                assert ui.poll() is None, (tmp_path / "server.log").read_text()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as page:
                        return bool(page.status == 200)
                except (urllib.error.URLError, OSError):
                    return False

            wait_for(answers)
            [group] = processes(1, ui.pid)
            assert group in processes(2, group)
            ui.terminate()
            ui.wait(PATIENCE)
        finally:
            ui.kill()
    assert ui.returncode == 0
    # Our links stand together: a terminal shows nothing of MLflow's.
    assert len((tmp_path / "server.log").read_text().splitlines()) == 1
    assert "Uvicorn running" in (sweep.directory / "ui.log").read_text()
    wait_for(lambda: not processes(2, group))
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
