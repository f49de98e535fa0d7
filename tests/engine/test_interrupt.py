"""Signals end a launch in order, each way that they come."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from raysweep.engine.interrupt import Interrupts

#: Interrupted work that takes `argv[1]` seconds to wind down.
PROGRAM = """
import signal, sys, time
from raysweep.engine.interrupt import Interrupts
# A shell ignores Ctrl-C for what it starts in the background.
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    with Interrupts() as interrupts:
        interrupts.install()
        try:
            print("ready", flush=True)
            # A signal that comes just before a sleep is handled after it: none is long.
            while True:
                time.sleep(0.01)
        finally:
            print("winding down", flush=True)
            end = time.monotonic() + float(sys.argv[1])
            while time.monotonic() < end:
                time.sleep(0.01)
            print("wound down", flush=True)
except KeyboardInterrupt:
    sys.exit(130)
sys.exit(0)
"""


@pytest.fixture(autouse=True)
def a_closed_terminal_counts() -> Iterator[None]:
    """Undo what nohup does to these tests: the processes that they start would ignore the signal too."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def start(seconds: float, *before: str, **kwargs: object) -> subprocess.Popen[str]:
    command = [*before, sys.executable, "-c", PROGRAM, str(seconds)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **kwargs}
    return subprocess.Popen(command, text=True, **streams)  # type: ignore[call-overload,no-any-return]


def wait_until_ready(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"


@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_winds_down_and_others_do_not_disturb(first: signal.Signals) -> None:
    process = start(1.0)
    wait_until_ready(process)
    process.send_signal(first)
    # Of signals that come in one moment, Python may handle some much later, and then as later ones.
    assert process.stdout is not None
    assert process.stdout.readline() == "winding down\n"
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        process.send_signal(number)
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, out) == (130, "wound down\n")


def test_a_second_ctrl_c_ends_at_once() -> None:
    process = start(25.0)
    wait_until_ready(process)
    process.send_signal(signal.SIGTERM)
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=15)
    assert (process.returncode, out) == (130, "winding down\n")


def test_nohup_stays_in_force() -> None:
    process = start(0.0, "nohup", stdin=subprocess.DEVNULL)
    wait_until_ready(process)
    process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 130


def test_a_closed_terminal_is_no_error() -> None:
    terminal, theirs = pty.openpty()
    process = start(0.5, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    # All of the line: printing the rest of it to a closed terminal would be an error of its own.
    line = b""
    while not line.endswith(b"\n"):
        line += os.read(terminal, 100)
    assert line.strip() == b"ready"
    os.close(terminal)
    # A terminal that closes sends this to its foreground group.
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 130


def test_an_end_by_the_handler_of_ray_is_an_interrupt_too() -> None:
    # Ray's handler of SIGTERM ends Python with the signal's number.
    with pytest.raises(KeyboardInterrupt), Interrupts():
        sys.exit(int(signal.SIGTERM))
    with pytest.raises(SystemExit, match="2"), Interrupts():
        sys.exit(2)
