"""The guard of a launch: a small parent process that is still there when Ray ends the launch without a word.

Ray's C++ code ends its process at once where it needs the raylet of its node and finds it gone: exit code 1,
or an abort, and no Python code runs any more.  So the program does its launch in a child.  If the child ends
in order, the guard passes its exit code on.  If not, the guard says so in one sentence and ends with 4, or
waits for the cluster and starts the child again, which continues from the ledger.

This module imports neither Ray nor torch: the guard takes some ten MB, and forks before anything is imported.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

from raysweep.engine.forkclient import end_with_parent
from raysweep.engine.interrupt import INTERRUPTED
from raysweep.errors import StorageError

#: Signals that are for the launch; those of a terminal reach it without the guard.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: `si_code` of a signal that the terminal sends to all processes in its foreground (Linux, asm/siginfo.h).
_OF_THE_TERMINAL = 0x80
_PERIOD = 1.0

#: Starts in a row that each last less than `_SHORT` seconds before a launch is given up.
_STARTS, _SHORT = 3, 60.0

#: The exit code of a process that Ray has ended.
LOST = 1

#: What the child may tell: that exit code 1 is its own, and the cluster to wait for.
_IN_ORDER = b"in order"
_tell: int | None = None


def tell_in_order() -> None:
    """Tell the guard, if there is one, that exit code 1 has been explained."""
    _say(_IN_ORDER)


def tell_cluster(address: str, patience: float) -> bool:
    """Tell the guard to wait `patience` seconds for a cluster that is lost; return False without a guard."""
    return _say(json.dumps([address, patience]).encode())


def tell_done() -> None:
    """Tell the guard, if there is one, that this process no longer needs a cluster."""
    _say(json.dumps(None).encode())


def _say(message: bytes) -> bool:
    if _tell is not None:
        os.write(_tell, message + b"\n")
    return _tell is not None


def guard() -> None:
    """Go on in a child; the parent never returns, and ends with the exit code of the child."""
    global _tell
    if not hasattr(signal, "sigwaitinfo"):
        return  # macOS has none, so nothing guards a launch there
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may have ignored it
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    short = 0
    while True:
        began = time.monotonic()
        told, into = os.pipe()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            os.close(told)
            _tell = into
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_PASSED_ON, signal.SIGCHLD})
            return
        os.close(into)
        status, passed_on = _wait(child)
        with os.fdopen(told, "rb") as stream:
            messages = stream.read().splitlines()
        if _in_order(status, messages):
            sys.exit(status)
        if -status in (signal.SIGINT, *passed_on):
            # The child had not taken its signals yet, or no longer.
            _print("raysweep: interrupted; the same command continues")
            sys.exit(INTERRUPTED)
        short = short + 1 if time.monotonic() - began < _SHORT else 0
        again = status in (LOST, -signal.SIGABRT) and not passed_on and short < _STARTS
        _wait_for_the_cluster(status, messages if again else [])
        os.environ["RAYSWEEP_YES"] = "1"  # the question was answered at the first start
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})


def _end_with(parent: int) -> None:
    """Let the system kill this process when its parent ends, also if it has ended already."""
    end_with_parent()
    if os.getppid() != parent:
        os._exit(1)


def _wait(child: int) -> tuple[int, set[int]]:
    """Wait for a child and pass signals on to it; return its exit code, negative for a signal, and those."""
    passed_on: set[int] = set()
    while True:
        found = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if found.si_signo != signal.SIGCHLD:
            passed_on.add(found.si_signo)
            if found.si_code != _OF_THE_TERMINAL:
                os.kill(child, found.si_signo)
        # As the first process of a container, the guard is the parent of all orphans.
        while (ended := _ended())[0]:
            if ended[0] == child:
                return os.waitstatus_to_exitcode(ended[1]), passed_on


def _ended() -> tuple[int, int]:
    """Return a child that has ended and its status; 0 for none."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return 0, 0


def _in_order(status: int, messages: list[bytes]) -> bool:
    return status >= 0 and (status != LOST or _IN_ORDER in messages)


def _print(words: str) -> None:
    # The terminal may be closed, or the disk of the log full.
    with suppress(OSError):
        print(words, file=sys.stderr)


def _wait_for_the_cluster(status: int, messages: list[bytes]) -> None:
    """Say that a launch has ended, and return once its cluster takes drivers again, or end this process."""
    how = f"exit code {status}" if status > 0 else f"signal {-status}"
    clusters = [json.loads(message) for message in messages if message != _IN_ORDER]
    if not clusters or clusters[-1] is None:
        _print(
            f"\nraysweep: Ray, or the system, has ended this launch ({how}); nothing is lost: "
            "launch again to continue"
        )
        sys.exit(StorageError.exit_code)
    address, patience = clusters[-1]
    _print(
        f"\nraysweep: Ray has ended this launch ({how}); waiting for the cluster for {patience / 60:g} min, "
        "then the launch goes on"
    )
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_PASSED_ON, signal.SIGCHLD})
        if cluster_is_back(address, patience):
            return
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    _print(f"raysweep: the cluster at {address} is not back; launch again to continue")
    sys.exit(StorageError.exit_code)


def cluster_is_back(address: str, patience: float) -> bool:
    """Wait `patience` seconds until a new process can connect to a cluster; return whether one can.

    A head answers before its node is ready, so the process connects in earnest.
    """
    program = f"import ray; ray.init(address={address!r}, logging_level='ERROR', log_to_driver=False)"
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        tried = subprocess.run(
            [sys.executable, "-c", program],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
            preexec_fn=end_with_parent,  # it tries for minutes, and a guard may be killed meanwhile
        )
        if tried.returncode == 0:
            return True
        time.sleep(_PERIOD)
    return False
