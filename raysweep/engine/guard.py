"""The guard of a launch: a small parent process that is still there when Ray ends the launch without a word.

Ray's C++ code ends its process at once where it needs the raylet of its node and finds it gone: exit code 1,
or an abort, and no Python code runs any more.  So the program does its launch in a child.  If the child ends
in order, the guard passes its exit code on.  If not, the guard says so in one sentence and ends with 4, or
waits for the cluster and starts the child again, which continues from the ledger.

This module imports neither Ray nor torch: the guard takes some ten MB, and forks before anything is imported.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time

from raysweep.engine.interrupt import INTERRUPTED
from raysweep.errors import StorageError

#: Signals that are for the launch; those of a terminal reach it without the guard.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PERIOD = 1.0

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


def _say(message: bytes) -> bool:
    if _tell is not None:
        os.write(_tell, message + b"\n")
    return _tell is not None


def guard() -> None:
    """Go on in a child; the parent never returns, and ends with the exit code of the child."""
    global _tell
    if not hasattr(signal, "sigwaitinfo"):
        return  # on macOS, Ray's word is the last
    signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})
    while True:
        told, into = os.pipe()
        parent, child = os.getpid(), os.fork()
        if child == 0:
            os.close(told)
            _tell = into
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_PASSED_ON, signal.SIGCHLD})
            return
        os.close(into)
        status = _wait(child)
        with os.fdopen(told, "rb") as stream:
            messages = stream.read().splitlines()
        if _in_order(status, messages):
            sys.exit(status)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*_PASSED_ON, signal.SIGCHLD})
        _wait_for_the_cluster(status, messages)
        os.environ["RAYSWEEP_YES"] = "1"  # the question was answered at the first start
        signal.pthread_sigmask(signal.SIG_BLOCK, {*_PASSED_ON, signal.SIGCHLD})


def _end_with(parent: int) -> None:
    """Let the system kill this process when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _wait(child: int) -> int:
    """Wait for a child and pass signals on to it; return its exit code, negative for a signal."""
    while True:
        found = signal.sigwaitinfo({*_PASSED_ON, signal.SIGCHLD})
        if found.si_signo == signal.SIGCHLD:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
        elif found.si_pid:  # sent by a process, and not by the terminal
            os.kill(child, found.si_signo)


def _in_order(status: int, messages: list[bytes]) -> bool:
    return status >= 0 and (status != LOST or _IN_ORDER in messages)


def _wait_for_the_cluster(status: int, messages: list[bytes]) -> None:
    """Say that a launch has ended, and return once its cluster takes drivers again, or end this process."""
    how = f"exit code {status}" if status > 0 else f"signal {-status}"
    clusters = [json.loads(message) for message in messages if message != _IN_ORDER]
    if not clusters:
        print(
            f"\nraysweep: Ray, or the system, has ended this launch ({how}); nothing is lost: "
            "launch again to continue",
            file=sys.stderr,
        )
        sys.exit(StorageError.exit_code)
    address, patience = clusters[-1]
    print(
        f"\nraysweep: Ray has ended this launch ({how}); waiting for the cluster for {patience / 60:g} min, "
        "then the launch goes on",
        file=sys.stderr,
    )
    try:
        if cluster_is_back(address, patience):
            return
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    print(f"raysweep: the cluster at {address} is not back; launch again to continue", file=sys.stderr)
    sys.exit(StorageError.exit_code)


def cluster_is_back(address: str, patience: float) -> bool:
    """Wait `patience` seconds until a new process can connect to a cluster; return whether one can.

    A head answers before its node is ready, so the process connects in earnest.
    """
    program = f"import ray; ray.init(address={address!r}, logging_level='ERROR', log_to_driver=False)"
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        tried = subprocess.run(
            [sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
        )
        if tried.returncode == 0:
            return True
        time.sleep(_PERIOD)
    return False
