"""Ray workers by fork: they start in a fraction of a second, with torch, Ray and raysweep imported.

Ray starts each worker as a new Python process, which then imports all that its task or actor needs: seconds
of CPU time and some hundred MB, for each of a dozen workers of a launch.  A fork takes milliseconds and
shares the memory.

    raylet --starts--> stub --asks--> server (torch) --forks--> template (Ray) --forks--> worker
                     launch --asks--> server (torch) --forks--> what compiles (`raysweep.engine.compiling`)

The stub stands where Ray expects Python.  The server imports all that does not import Ray.  Ray reads the
environment when it is imported, so each environment has a template of its own, which imports Ray and forks
the workers with that environment.  A worker that cannot be forked starts as Ray intends.  What needs no Ray
has no environment of its own, and is forked from the server itself.

A process that forks must have no threads of its own.  Those that numpy, scipy and pyarrow start survive a
fork.  CUDA does not, so a server that finds a GPU open serves nobody.

This is for a Ray that is started on this machine.  The workers of a cluster start as Ray intends.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import re
import resource
import runpy
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

#: Modules that workers import at once or when they compute, and those that Ray imports; none imports Ray.
SCIENCE = (
    "fsspec",
    "numba",
    "pandas",
    "pyarrow.fs",
    "pyarrow.parquet",
    "requests",
    "rich.console",
    "scipy.linalg",
    "scipy.special",
    "torch.distributed",
    "torch.fx.experimental.symbolic_shapes",
    "raysweep.evaluation.excess_loss",
    "raysweep.evaluation.probe",
    "raysweep.evaluation.run",
    "raysweep.evaluation.trace",
    "raysweep.models.fused.step",
    "raysweep.models.subject",
    "raysweep.sweep",
    "raysweep.training",
)
RAY = (
    "pyarrow.json",
    "pydantic.v1",
    "ray.train.torch",
    "ray.tune",
    "raysweep.engine.generate",
    "raysweep.engine.trial",
)

#: Seconds that workers get to end when their driver has.
GRACE = 10.0

#: Most bytes of a message; Linux allows about 200 kB.
_MOST = 1 << 20


def main(descriptor: int, folder: Path) -> None:
    """Serve until standard input ends, and remove the folder; in a fork, run its worker."""
    here = os.getpid()
    _more_files()
    with packets(descriptor) as listener:
        _preload(SCIENCE)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the forks
        command = None
        if _gpu_is_open():
            _refuse(listener)
        else:
            command = _serve(listener)
    if command is not None:
        _run(command)
    elif os.getpid() == here:
        shutil.rmtree(folder, ignore_errors=True)
        _see_off(here)


def members(leader: int) -> list[int]:
    """Return the living processes of the session that a process leads, all but the leader."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and entry.name != str(leader):
            # A process may end at any moment.
            with suppress(OSError):
                state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == leader and state not in "ZX":
                    found.append(int(entry.name))
    return found


def kill(processes: list[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _see_off(leader: int) -> None:
    """Wait until all forks have ended, as they do when their Ray does, and kill those that hang in it."""
    deadline = time.monotonic() + GRACE
    while (left := members(leader)) and time.monotonic() < deadline:
        time.sleep(0.2)
    kill(left)


def packets(descriptor: int | None = None) -> socket.socket:
    """Return a new socket, or that of a descriptor, which passes whole messages."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, fileno=descriptor)


def _preload(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(module)
    # The garbage collector does not touch what is frozen, so it stays shared.
    gc.collect()
    gc.freeze()


def _more_files() -> None:
    """Raise the limit of open files as far as `ray.init` raises that of the workers it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < min(hard, 65536):
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))


def _gpu_is_open() -> bool:
    names = (link.resolve().name for link in Path("/proc/self/fd").iterdir())
    return any(re.fullmatch(r"nvidia\d+", name) for name in names)


def _refuse(listener: socket.socket) -> None:
    """Let all clients start their workers themselves, and wait for the end."""
    print("an import has opened a GPU, so nothing can be forked", file=sys.stderr, flush=True)
    listener.close()
    sys.stdin.read()


def _serve(listener: socket.socket) -> list[str] | None:
    """Pass requests on to templates; return None at the end, and the command of the worker in a fork."""
    templates: dict[str, socket.socket] = {}
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            return None
        connection, _ = listener.accept()
        message, streams, _, _ = socket.recv_fds(connection, _MOST, 3)
        if not message:  # the client is dead, or its environment does not fit into a message
            connection.close()
            continue
        environment = json.loads(message)[2]
        if environment is None:
            # Nobody waits for it, so where the system has no room for it there is none.
            with suppress(OSError):
                if os.fork() == 0:
                    for end in (listener, connection, *templates.values()):
                        end.close()
                    return _taken(message, streams)
            connection.close()
            _close(streams)
            continue
        key = json.dumps(environment, sort_keys=True)
        if key not in templates:
            templates[key], requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            if os.fork() == 0:
                for end in (listener, connection, *templates.values()):
                    end.close()
                _close(streams)
                return _fork_workers(requests, environment)
            requests.close()
        try:
            socket.send_fds(templates[key], [message], [*streams, connection.fileno()])
        except OSError as error:
            # The client finds its connection closed and starts the worker itself.
            print(f"a template is gone: {error}", file=sys.stderr, flush=True)
        connection.close()
        _close(streams)


def _fork_workers(requests: socket.socket, environment: dict[str, str]) -> list[str] | None:
    """Import Ray in an environment and fork a worker for each request; return as `_serve` does."""
    os.environ.clear()
    os.environ.update(environment)
    with _ids_from_the_system():
        _preload(RAY)
    if _gpu_is_open() or len({_id_in_a_fork() for _ in range(2)}) < 2:
        print("forks would share a GPU, or the ids that Ray draws", file=sys.stderr, flush=True)
        return None
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, _MOST, 4)
        if not message:
            return None
        *streams, client = descriptors
        if os.fork() == 0:
            requests.close()
            os.close(client)
            return _taken(message, streams)
        with suppress(OSError):  # the client may be dead
            os.write(client, b"+")
        _close(descriptors)


def _taken(message: bytes, streams: list[int]) -> list[str]:
    """Take the standard streams and the folder of a request, in its fork; return its command."""
    command, folder, _, oom_score = json.loads(message)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    _close(streams)
    os.chdir(folder)
    # Ray ends a worker together with its process group, and tells the system to end it first where memory is
    # short.
    os.setpgid(0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(oom_score)
    return list(command)


@contextmanager
def _ids_from_the_system() -> Iterator[None]:
    """Keep Ray's own generator of ids unused, because forks would inherit it and draw the same ids.

    Ray draws one for each actor class that is defined.
    """
    home: Any = importlib.import_module("ray.actor")
    drawn = home.ActorClassID
    home.ActorClassID = SimpleNamespace(from_random=lambda: drawn(os.urandom(drawn.size())))
    try:
        yield
    finally:
        home.ActorClassID = drawn


def _id_in_a_fork() -> bytes:
    """Return the first id that a fork of this process would draw."""
    from ray._raylet import UniqueID

    out, into = os.pipe()
    if os.fork() == 0:
        os.write(into, UniqueID.from_random().binary())
        os._exit(0)
    os.close(into)
    with os.fdopen(out, "rb") as stream:
        return stream.read()


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _run(command: list[str]) -> None:
    """Run the script of a worker, or the module after `-m`, as Python would run it."""
    import numpy  # not above, because the driver imports this module first of all

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    numpy.random.seed()  # as in a new process, and not as in the other forks
    if command[0] == "-m":
        sys.argv = command[1:]
        runpy.run_module(command[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = command
    sys.path.insert(0, str(Path(command[0]).parent))
    runpy.run_path(command[0], run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
