"""A launch that is ended without a word leaves a guard that says so, or starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from raysweep.engine import guard

#: A program whose child runs the code that a test adds.
PROGRAM = """
import os, signal, sys, time
from raysweep.engine import guard
guard.cluster_is_back = lambda address, patience: (address, patience) == ("there", 60.0)
guard.guard()
assert "ray" not in sys.modules and "torch" not in sys.modules
"""


def start(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a guarded program."""
    command = [sys.executable, "-c", PROGRAM + code, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends(code: str, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a guarded program."""
    process = start(code, *arguments)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def wait_for_end(pid: int) -> None:
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{pid}") and "(zombie)" not in Path(f"/proc/{pid}/status").read_text():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("code", [0, 2, 3, 4, 130])
def test_a_child_that_ends_in_order_is_passed_on(code: int) -> None:
    assert ends(f"print('done'); sys.exit({code})") == (code, "done\n", "")


def test_a_defect_is_passed_on() -> None:
    assert ends("guard.tell_in_order(); sys.exit(1)") == (1, "", "")


@pytest.mark.parametrize(
    ("code", "how"), [("os._exit(1)", "exit code 1"), ("os.kill(os.getpid(), signal.SIGABRT)", "signal 6")]
)
def test_an_end_without_a_word_is_said(code: str, how: str) -> None:
    status, _, err = ends(code)
    assert status == 4
    assert err == (
        f"\nraysweep: Ray, or the system, has ended this launch ({how}); nothing is lost: "
        "launch again to continue\n"
    )


LOSE_TWICE = """
with open(sys.argv[1], "a") as file:
    file.write(os.environ.get("RAYSWEEP_YES", "-"))
tries = len(open(sys.argv[1]).read())
assert guard.tell_cluster(sys.argv[2], 60.0)
os._exit(1 if tries < 3 else 0)
"""


def test_a_lost_cluster_is_awaited_and_the_launch_started_again(tmp_path: Path) -> None:
    status, _, err = ends(LOSE_TWICE, str(tmp_path / "tries"), "there")
    assert status == 0
    assert err.count("waiting for the cluster for 1 min, then the launch goes on") == 2
    # The question before a large sweep was answered at the first start.
    assert (tmp_path / "tries").read_text() == "-11"


def test_a_cluster_that_does_not_come_back(tmp_path: Path) -> None:
    status, _, err = ends(LOSE_TWICE, str(tmp_path / "tries"), "elsewhere")
    assert status == 4
    assert err.endswith("raysweep: the cluster at elsewhere is not back; launch again to continue\n")


def test_without_a_guard_nobody_waits() -> None:
    assert not guard.tell_cluster("there", 1.0)
    guard.tell_in_order()


SLEEP = """
def handle(number, _):
    print("signal", number, flush=True)
    sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, handle)
print(os.getpid(), flush=True)
# A signal that comes just before a sleep is handled after it: none is long.
while True:
    time.sleep(0.01)
"""


def test_a_launch_that_is_lost_at_once_again_and_again_is_given_up(tmp_path: Path) -> None:
    status, _, err = ends(LOSE_TWICE.replace("tries < 3", "True"), str(tmp_path / "tries"), "there")
    assert status == 4
    assert (tmp_path / "tries").read_text() == "-11"
    assert "has ended this launch (exit code 1); nothing is lost" in err


@pytest.mark.parametrize("code", ["signal.SIGKILL", "signal.SIGSEGV"])
def test_a_launch_that_was_killed_is_not_started_again(code: str) -> None:
    status, _, err = ends(f"guard.tell_cluster('there', 60.0); os.kill(os.getpid(), {code})")
    assert status == 4
    assert "waiting" not in err


def test_a_launch_that_needs_no_cluster_any_more_is_not_started_again() -> None:
    status, _, err = ends("guard.tell_cluster('there', 60.0); guard.tell_done(); os._exit(1)")
    assert status == 4
    assert "waiting" not in err


def test_a_signal_that_ends_the_launch_at_once_is_no_loss() -> None:
    process = start("print(1, flush=True); time.sleep(60)")
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=10)
    assert (process.returncode, err) == (130, "raysweep: interrupted; the same command continues\n")


def test_a_parent_that_ignores_its_children_does_not_make_the_guard_deaf() -> None:
    command = [sys.executable, "-c", PROGRAM + "sys.exit(3)"]
    ignoring = (
        "import signal, os; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
        f"os.execv({command[0]!r}, {command!r})"
    )
    assert subprocess.run([sys.executable, "-c", ignoring], timeout=60, check=False).returncode == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_reach_the_launch(number: signal.Signals) -> None:
    process = start(SLEEP)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(number)
    assert process.stdout.read() == f"signal {int(number)}\n"
    assert process.wait(timeout=10) == 7


def test_a_launch_ends_with_its_guard() -> None:
    process = start(SLEEP)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.communicate(timeout=10)
    wait_for_end(child)


def test_who_looks_for_the_cluster_ends_with_the_guard(tmp_path: Path) -> None:
    tries = tmp_path / "python"
    tries.write_text(
        f"#!/bin/sh\necho $$ > {tmp_path}/pid\nmv {tmp_path}/pid {tmp_path}/told\nexec sleep 600\n"
    )
    tries.chmod(0o755)
    code = f"import sys; sys.executable = {str(tries)!r}\nfrom raysweep.engine import guard"
    process = subprocess.Popen([sys.executable, "-c", f"{code}\nguard.cluster_is_back('there', 600.0)"])
    deadline = time.monotonic() + 60
    while not (tmp_path / "told").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.terminate()
    process.wait(timeout=10)
    wait_for_end(int((tmp_path / "told").read_text()))
