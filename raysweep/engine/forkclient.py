"""Ask a fork server (`raysweep.engine.forkserver`) for a Ray worker; stands in for Python.

`python -I -S forkclient.py SOCKET PYTHON ARGUMENT...` hands its arguments, environment, folder and standard
streams to the server, whose child carries on as the worker, and ends.  Where no server answers, this process
becomes PYTHON with the same arguments.  So it does for another program than a worker, such as Ray's agents,
which then end with their parent.  It imports little, because it delays the start of each worker.
"""

import json
import os
import signal
import socket
import sys

#: The script of a worker.  Ray starts one that wants an environment of its own by way of the second script,
#: with a context in JSON.
_WORKER = "default_worker.py"
_SETUP = "setup_worker.py"
_CONTEXT = "--serialized-runtime-env-context="
_LANGUAGE = "--language=PYTHON"


def worker(python: str, arguments: list[str]) -> tuple[list[str], dict[str, str]] | None:
    """Return script and arguments of a worker, and its own environment variables; None for another command.

    A worker that wants more than variables, such as a container, is another command.
    """
    script, *rest = arguments or [""]
    if os.path.basename(script) == _WORKER:
        return arguments, {}
    if os.path.basename(script) != _SETUP:
        return None
    contexts = [word.removeprefix(_CONTEXT) for word in rest if word.startswith(_CONTEXT)]
    if len(contexts) != 1 or _LANGUAGE not in rest:
        return None
    context = json.loads(contexts[0])
    variables = context.pop("env_vars", {})
    other_python = context.pop("py_executable", python) != python
    # Ray expands "$" as a shell does.
    if other_python or any(context.values()) or any("$" in value for value in variables.values()):
        return None
    return [word for word in rest if not word.startswith(_CONTEXT) and word != _LANGUAGE], variables


def ask(path: str, request: bytes) -> bool:
    """Send a request with the standard streams to the server; return whether it has forked a worker."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.connect(path)
            socket.send_fds(server, [request], [0, 1, 2])
            return bool(server.recv(1))
        except OSError:
            return False


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def main() -> None:
    """Hand this process's command over, or run it."""
    path, python, *arguments = sys.argv[1:]
    found = worker(python, arguments)
    if found is not None:
        command, variables = found
        with open("/proc/self/oom_score_adj") as file:
            score = file.read()
        request = json.dumps([command, os.getcwd(), {**os.environ, **variables}, score]).encode()
        if ask(path, request):
            return
        print(f"raysweep: no fork server answers at {path}; the worker starts anew", file=sys.stderr)
    else:
        # Without their raylet, agents would wait a minute for a control store that is gone.
        end_with_parent()
    os.execv(python, [python, *arguments])


if __name__ == "__main__":
    main()
