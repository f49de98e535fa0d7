"""Serves a store until somebody ends it, and leaves no process behind.

MLflow's server is a process with child processes.  They form a group, so that all of them end together when
this process is asked to end, by Ctrl-C, SIGTERM or a terminal that closes.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from raysweep.errors import ConfigError, StorageError

#: Seconds that a server gets to end when asked.
GRACE = 10.0
#: Seconds to wait for an answer of a server that starts, ten times those between two looks.
_LOOK = 2.0


def serve(
    command: Sequence[str], port: int, *, log: Path, on_ready: Callable[[], object] | None = None
) -> None:
    """Run a server on a port of 127.0.0.1 until Ctrl-C, SIGTERM or SIGHUP, then end all of it and return.

    What the server says goes to the file `log`, in place of what one before it said.  `on_ready` is called
    once, when the server answers; it is not called if it never does.  Raises `ConfigError` if the port is in
    use, and `StorageError` if the server ends with an error or the log cannot be written.
    """
    _check_free(port)
    server: subprocess.Popen[bytes] | None = None
    code = 0
    with _ends_as_interrupt(), _opened(log) as said:
        try:
            server = subprocess.Popen(command, start_new_session=True, stdout=said, stderr=said)
            if on_ready is not None and _answers(server, port):
                on_ready()
            code = server.wait()
        except KeyboardInterrupt:
            pass
        finally:
            if server is not None:
                _end(server)
    if code:
        raise StorageError(f"the MLflow server ended with exit code {code}; its messages are in {log}")


def _opened(log: Path) -> IO[bytes]:
    try:
        return log.open("wb")
    except OSError as error:
        raise StorageError(
            f"{log}, for the messages of MLflow, cannot be written: {error.strerror or error}"
        ) from error


def _answers(server: subprocess.Popen[bytes], port: int) -> bool:
    """Wait until a server takes connections and answers; False if it ends before."""
    while server.poll() is None:
        # An answer of any kind will do.
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_LOOK)
            connection.request("GET", "/health")
            connection.getresponse()
            return True
        time.sleep(_LOOK / 10)
    return False


def _check_free(port: int) -> None:
    with socket.socket() as probe:
        # As for servers: a port is free although its last connections are still closing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ConfigError(
                f"--port {port}: cannot be used on 127.0.0.1 ({error.strerror}); choose another, "
                f"e.g. --port {port % 65535 + 1}"
            ) from error


@contextmanager
def _ends_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise `KeyboardInterrupt`, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end(server: subprocess.Popen[bytes]) -> None:
    """End a server and all its processes: first by SIGTERM, after `GRACE` seconds by SIGKILL."""
    try:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            server.wait(GRACE)
    finally:
        # This also runs on a second Ctrl-C: child processes may outlive the server, and the group exists as
        # long as one of them does.
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
