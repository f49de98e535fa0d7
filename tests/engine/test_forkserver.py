"""Workers by fork: each like a new process, but for what is imported already."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from helpers.processes import descendants
from raysweep.engine import forks, forkserver
from raysweep.engine.forks import ForkServer

#: A script in place of Ray's worker, which tells about its process.
WORKER = """
import json, os, random, signal, sys, threading
loaded = [name for name in ("torch", "ray", "raysweep.engine.trial") if name in sys.modules]
import numpy, ray._raylet, torch
print(json.dumps({
    "arguments": sys.argv[1:], "folder": os.getcwd(), "variable": os.environ.get("VARIABLE"),
    "main": __name__, "path": sys.path[0], "loaded": loaded,
    "pid": os.getpid(), "parent": os.getppid(), "group": os.getpgid(0),
    "id": ray._raylet.UniqueID.from_random().hex(), "numpy": numpy.random.random(), "random": random.random(),
    "threads": threading.active_count(), "children": signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL,
    "sum": torch.ones(10).sum().item(), "job": os.environ.get("RAY_JOB_ID"),
    "input": sys.stdin.read(),
}))
"""


#: A statement that tells which modules its process has.
CODE = (
    "pathlib.Path({made!r}).write_text(f\"torch: {{'torch' in sys.modules}}, ray: {{'ray' in sys.modules}}\")"
)


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    """Yield a server; it takes some seconds to start."""
    started = ForkServer()
    yield started
    started.close()


def test_folders_of_killed_drivers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But neither that of a driver that runs, nor one that a driver has just made, nor anybody else's."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left, held, new, other = (tmp_path / name for name in ("a", "b", "c", "d"))
    left, held, new = (path.with_name(f"raysweep-forks-{path.name}") for path in (left, held, new))
    for folder in (left, held, new, other):
        folder.mkdir()
    lock = os.open(held, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    for folder in (left, held, other):
        os.utime(folder, (time.time() - 100,) * 2)
    try:
        server = ForkServer()
        made = set(tmp_path.iterdir()) - {left, held, new, other}
        assert not left.exists()
        assert all(folder.exists() for folder in (held, new, other))
        assert len(made) == 1
        server.close()
        assert set(tmp_path.iterdir()) == {held, new, other}
    finally:
        os.close(lock)


@pytest.mark.parametrize(
    ("arguments", "address", "begins"),
    [
        (["a.yaml", "--set", "axes.seed=[0]"], "", True),
        (["a.yaml", "--address", "10.0.0.1:6379"], "", False),
        (["a.yaml", "--address=10.0.0.1:6379"], "", False),
        (["a.yaml"], "10.0.0.1:6379", False),
        (["a.yaml", "-n"], "", False),
        (["--help"], "", False),
    ],
)
def test_a_launch_on_this_machine_begins_early(
    monkeypatch: pytest.MonkeyPatch, arguments: list[str], address: str, begins: bool
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr(forks, "_SERVERS", [])
    monkeypatch.setattr(forks, "ForkServer", lambda: SimpleNamespace(alive=True))
    forks.begin_early(arguments)
    assert len(forks._SERVERS) == begins


def script(folder: Path, text: str = WORKER) -> Path:
    """Write a script with the name of Ray's worker."""
    file = folder / "default_worker.py"
    file.write_text(text, encoding="utf-8")
    return file


def start(server: ForkServer, file: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a script as Ray would start a worker: with `sys.executable`."""
    with server.in_place_of_python():
        python = sys.executable
    return subprocess.Popen(
        (python, str(file), *arguments),
        cwd=file.parent,
        env=os.environ | {"RAY_JOB_ID": "01000000"} | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(server: ForkServer, file: Path, *arguments: str, **variables: str) -> dict[str, Any]:
    """Return what a worker tells about its process."""
    output, errors = start(server, file, *arguments, **variables).communicate("text", timeout=120)
    assert errors == ""
    found: dict[str, Any] = json.loads(output)
    return found


def runs(pid: int) -> bool:
    """Return whether a process runs; one that has ended may still wait for its parent."""
    try:
        return "(zombie)" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_a_worker_runs_its_script_as_python_would(server: ForkServer, tmp_path: Path) -> None:
    found = told(server, script(tmp_path), "--a=b", VARIABLE="x")
    assert found["arguments"] == ["--a=b"]
    assert found["main"] == "__main__"
    assert found["path"] == found["folder"] == str(tmp_path)
    assert (found["variable"], found["job"], found["input"]) == ("x", "01000000", "text")
    assert found["loaded"] == ["torch", "ray", "raysweep.engine.trial"]
    assert found["sum"] == 10
    # Ray ends a worker together with its process group.
    assert found["group"] == found["pid"]
    assert found["threads"] == 1
    assert found["children"]


def test_no_two_workers_draw_the_same_numbers(server: ForkServer, tmp_path: Path) -> None:
    """Ray names placement groups by a generator of its own; two of one name are one."""
    file = script(tmp_path)
    found = [told(server, file) for _ in range(3)]
    for drawn in ("id", "numpy", "random", "pid"):
        assert len({each[drawn] for each in found}) == 3, drawn


def test_each_environment_has_a_template_of_its_own(server: ForkServer, tmp_path: Path) -> None:
    file = script(tmp_path)
    one, same, other = (told(server, file, VARIABLE=value)["parent"] for value in ("1", "1", "2"))
    assert one == same
    assert one != other


def test_another_command_runs_without_the_server(server: ForkServer, tmp_path: Path) -> None:
    file = tmp_path / "agent.py"
    file.write_text("import os, sys; print(os.getpid(), sys.modules.get('torch'))")
    process = start(server, file)
    output, _ = process.communicate(timeout=60)
    assert output == f"{process.pid} None\n"


def test_a_module_runs_in_a_fork_without_ray(server: ForkServer, tmp_path: Path) -> None:
    """As Python would run it, with its arguments; whoever asks does not wait for the server."""
    made = tmp_path / "made"
    os.kill(server._process.pid, signal.SIGSTOP)
    try:
        server.fork("timeit", "-n1", "-r1", "-s", "import sys, pathlib", CODE.format(made=str(made)))
        assert not made.exists()
    finally:
        os.kill(server._process.pid, signal.SIGCONT)
    deadline = time.monotonic() + 60
    while not (made.exists() and made.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert made.read_text() == "torch: True, ray: False"
    # The server goes on.
    assert told(server, script(tmp_path))["loaded"]


def test_a_client_that_says_nothing_does_not_disturb(server: ForkServer, tmp_path: Path) -> None:
    with forkserver.packets() as client:
        client.connect(str(server.folder / "socket"))
    assert told(server, script(tmp_path))["loaded"]


def test_a_folder_that_forbids_programs_leaves_python_as_it_is(server: ForkServer) -> None:
    python, mode = sys.executable, server._stub.stat().st_mode
    server._stub.chmod(0o600)
    try:
        with server.in_place_of_python():
            assert sys.executable == python
    finally:
        server._stub.chmod(mode)


def test_a_socket_with_too_long_a_name_means_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    assert forks.fork_server() is None


def test_paths_are_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / 'a "b$c'
    odd.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(odd))
    server = ForkServer()
    try:
        assert told(server, script(odd))["loaded"]
    finally:
        server.close()


def test_a_template_that_died_is_no_loss(server: ForkServer, tmp_path: Path) -> None:
    file = script(tmp_path)
    template = told(server, file, VARIABLE="dying")["parent"]
    os.kill(template, 9)
    process = start(server, file, VARIABLE="dying")
    output, errors = process.communicate("text", timeout=120)
    assert "no fork server answers" in errors
    assert json.loads(output)["pid"] == process.pid


def test_the_server_ends_with_its_process(tmp_path: Path) -> None:
    code = (
        "import sys, time; from raysweep.engine.forks import fork_server; fork_server(); "
        "print('started', flush=True); time.sleep(600)"
    )
    driver = subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}
    )
    assert driver.stdout is not None
    driver.stdout.readline()
    (below,) = descendants(driver.pid)
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + 60
    while runs(below) or any(tmp_path.glob("raysweep-*")):
        assert time.monotonic() < deadline, "the server or its folder is left"
        time.sleep(0.1)


STUCK = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def stuck(server: ForkServer, folder: Path, name: str = "default_worker.py") -> int:
    """Return a worker, or another program of Ray, that does not end when its Ray does."""
    file = folder / name
    file.write_text(STUCK, encoding="utf-8")
    process = start(server, file)
    assert process.stdout is not None
    return int(process.stdout.readline())


def test_a_closed_server_ends_its_workers(tmp_path: Path) -> None:
    server = ForkServer()
    try:
        worker = stuck(server, tmp_path)
        assert runs(worker)
    finally:
        server.close()
    deadline = time.monotonic() + 10
    while runs(worker):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.1)


@pytest.mark.parametrize("name", ["default_worker.py", "agent.py"])
def test_workers_and_agents_end_with_the_driver(name: str, tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; sys.path.insert(0, sys.argv[2]); "
        "from engine.test_forkserver import *; server = forks.fork_server(); "
        f"print(stuck(server, Path(sys.argv[1]), {name!r}), flush=True); time.sleep(600)"
    )
    tests = str(Path(__file__).parents[1])
    driver = subprocess.Popen(
        (sys.executable, "-c", code, str(tmp_path), tests), stdout=subprocess.PIPE, text=True
    )
    assert driver.stdout is not None
    worker = int(driver.stdout.readline())
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + forkserver.GRACE + 10
    while runs(worker):
        assert time.monotonic() < deadline, "a worker is left"
        time.sleep(0.1)


def test_a_closed_server_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    forks.fork_server()
    assert forks.fork_server() is forks.fork_server()
    forks.close_fork_server()
    forks.close_fork_server()
    assert list(tmp_path.glob("raysweep-*")) == []


def test_python_is_itself_again(server: ForkServer) -> None:
    python = sys.executable
    with server.in_place_of_python():
        assert sys.executable != python
    assert sys.executable == python


def test_an_open_gpu_is_seen(tmp_path: Path) -> None:
    assert not forkserver._gpu_is_open()
    with (tmp_path / "nvidia0").open("w"):
        assert forkserver._gpu_is_open()
