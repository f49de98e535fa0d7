"""The commands that a fork server may run, and those that start as Ray intends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from raysweep.engine import forkclient

PYTHON = "/usr/bin/python3"
WORKER = ["/ray/default_worker.py", "--node-ip-address=127.0.0.1", "--worker-id=ab"]


def with_context(context: dict[str, Any], language: str = "PYTHON") -> list[str]:
    """Return a worker's command as Ray gives it for an environment of its own."""
    options = [f"--serialized-runtime-env-context={json.dumps(context)}", f"--language={language}"]
    return ["/ray/setup_worker.py", *WORKER, *options, "--runtime-env-hash=5"]


def test_a_plain_worker_is_served_as_it_is() -> None:
    assert forkclient.worker(PYTHON, WORKER) == (WORKER, {})


@pytest.mark.parametrize("python", [{}, {"py_executable": PYTHON}])
def test_a_worker_with_variables_of_its_own_is_served(python: dict[str, str]) -> None:
    context = {"env_vars": {"A": "1"}, "command_prefix": [], "java_jars": [], **python}
    assert forkclient.worker(PYTHON, with_context(context)) == ([*WORKER, "--runtime-env-hash=5"], {"A": "1"})


@pytest.mark.parametrize(
    "context",
    [
        {"env_vars": {"PATH": "/opt:${PATH}"}},
        {"command_prefix": ["cd", "/tmp", "&&"]},
        {"py_executable": "/other/python"},
        {"override_worker_entrypoint": "/in/container.py"},
        {"a_later_version_of_ray_has_more": 1},
    ],
)
def test_a_worker_that_wants_more_starts_as_ray_intends(context: dict[str, Any]) -> None:
    assert forkclient.worker(PYTHON, with_context(context)) is None


def test_another_language_starts_as_ray_intends() -> None:
    assert forkclient.worker(PYTHON, with_context({}, language="JAVA")) is None


def test_a_context_that_is_missing_or_there_twice_starts_as_ray_intends() -> None:
    assert forkclient.worker(PYTHON, ["/ray/setup_worker.py", *WORKER, "--language=PYTHON"]) is None
    twice = with_context({}) + with_context({})[-3:-2]
    assert forkclient.worker(PYTHON, twice) is None


def test_without_a_server_the_client_becomes_the_worker(tmp_path: Path) -> None:
    script = tmp_path / "default_worker.py"
    script.write_text("import os, sys; print(os.getpid(), sys.argv[1:])")
    command = (sys.executable, "-I", "-S", forkclient.__file__, str(tmp_path / "socket"), sys.executable)
    client = subprocess.Popen(
        (*command, str(script), "--a=b"), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    output, errors = client.communicate(timeout=60)
    assert output == f"{client.pid} ['--a=b']\n"
    assert f"no fork server answers at {tmp_path / 'socket'}" in errors
    assert client.returncode == 0
