"""The driver's side of the fork server (`raysweep.engine.forkserver`): it starts one and ends it.

While Ray is started, a stub stands in the place of Python and asks the server for each worker.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from raysweep.engine import forkclient, forkserver

if TYPE_CHECKING:
    from raysweep.sweep import Sweep

log = logging.getLogger("raysweep.launch")

_STUB = """#!/bin/sh
exec {python} -I -S {client} {socket} {python} "$@"
"""


_PREFIX = "raysweep-forks-"
#: Seconds for which a folder may be without its lock, because its driver has just made it.
_NEW = 60.0


class ForkServer:
    """The fork server of this process, which ends with it."""

    def __init__(self) -> None:
        _remove_left()
        #: The folder of the server's socket and log, and of files of its forks; it is removed at the end.
        self.folder = Path(tempfile.mkdtemp(prefix=_PREFIX))
        # The system drops the lock when this process dies.
        self._lock = os.open(self.folder, os.O_RDONLY)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._python, self._stub = sys.executable, self.folder / "python"
        address = self.folder / "socket"
        names = {"python": self._python, "client": forkclient.__file__, "socket": str(address)}
        stub = _STUB.format(**{name: shlex.quote(value) for name, value in names.items()})
        self._stub.write_text(stub, encoding="utf-8")
        self._stub.chmod(0o700)
        path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
        variables = {
            "PYTHONPATH": path,
            # One thread for libraries that start their threads when they are imported.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        with (self.folder / "log").open("wb") as output, forkserver.packets() as listener:
            # Clients that come before the server is ready wait for it.
            listener.bind(str(address))
            listener.listen(64)
            self._process = subprocess.Popen(
                (self._python, "-P", "-m", forkserver.__name__, str(listener.fileno()), str(self.folder)),
                env=os.environ | variables,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                pass_fds=[listener.fileno()],
                start_new_session=True,  # Ctrl-C in the terminal is for the driver alone
            )

    @contextmanager
    def in_place_of_python(self) -> Iterator[None]:
        """Let a Ray that is started inside start its workers here.

        A folder of temporary files may forbid programs; Ray then starts its workers itself.
        """
        if os.access(self._stub, os.X_OK):
            sys.executable = str(self._stub)
        try:
            yield
        finally:
            sys.executable = self._python

    def fork(self, module: str, *arguments: str) -> None:
        """Let the server run a module in a fork without Ray, and do not wait for it.

        `close` ends the fork at the latest, and where memory is short, the system ends it first.
        """
        request = json.dumps([["-m", module, *arguments], str(Path.cwd()), None, "1000"]).encode()
        with forkserver.packets() as client, open(os.devnull, "r+b") as nothing:
            client.connect(str(self.folder / "socket"))
            socket.send_fds(client, [request], [nothing.fileno()] * 3)

    def close(self) -> None:
        """End the server and all that it has forked."""
        self._process.kill()
        self._process.communicate()
        while left := forkserver.members(self._process.pid):
            forkserver.kill(left)
            time.sleep(0.05)
        if said := (self.folder / "log").read_text(errors="replace").strip():
            log.warning("the fork server said: %s", said)
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)

    @property
    def alive(self) -> bool:
        """Whether the server runs."""
        return self._process.poll() is None


def _remove_left() -> None:
    """Remove this user's folders of drivers that were killed together with their servers."""
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            facts = left.stat()
            if facts.st_uid != os.getuid() or time.time() - facts.st_mtime < _NEW:
                continue
            lock = os.open(left, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(lock)


_SERVERS: list[ForkServer] = []
_warned = False


def fork_server() -> ForkServer | None:
    """Return the fork server of this process; start it if there is none.

    Return None where the system has no means for it, such as macOS; Ray then starts its workers itself.
    """
    if _SERVERS and not _SERVERS[0].alive:
        close_fork_server()
    if not _SERVERS and sys.platform == "linux":
        try:
            _SERVERS.append(ForkServer())
        except OSError as error:
            # Such as a folder of temporary files with a name that is too long for a socket.
            global _warned
            if not _warned:
                log.warning("no fork server, so Ray starts its workers itself: %s", error)
            _warned = True
    return _SERVERS[0] if _SERVERS else None


def begin_early(arguments: Sequence[str]) -> None:
    """Start the fork server before the program itself is imported, so that both import at once.

    `arguments` are those of `raysweep launch`.  This is a guess: a launch that finds nothing to do ends it.
    """
    elsewhere = ("--address", "--dry-run", "-n", "--help")
    given = {argument.partition("=")[0] for argument in arguments}
    if not (given & set(elsewhere) or os.environ.get("RAY_ADDRESS")):
        fork_server()


def compile_ahead(sweep: Sweep) -> None:
    """Let forks compile what the evaluations of a stored sweep need, beside a caller that compiles, too.

    Nothing is begun without a fork server, or with one processor.
    """
    spare = len(os.sched_getaffinity(0)) - 1 if _SERVERS else 0
    if spare < 1:
        return
    # The caller, which trains to take times, has imported torch by then.
    from raysweep.engine.compiling import examples

    [server], wanted = _SERVERS, examples(sweep)
    for part in range(min(spare, len(wanted))):
        files = server.folder / str(part)
        try:
            files.mkdir()
            server.fork("raysweep.engine.compiling", str(sweep.directory), str(files), *wanted[part::spare])
        except OSError as error:
            log.warning("nothing is compiled ahead, because the fork server does not answer: %s", error)
            return


def close_fork_server() -> None:
    """End the fork server of this process, if there is one."""
    while _SERVERS:
        _SERVERS.pop().close()
