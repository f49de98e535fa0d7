"""Provenance of results: recorded beside them, never part of their identity."""

from __future__ import annotations

import json
import os
import platform
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import raysweep.version
from raysweep.files import write_atomic
from raysweep.sweep.notice import shown

PACKAGES = ("raysweep", "torch", "numpy", "ray", "mlflow", "transformers", "pydantic")


def _git(*arguments: str) -> str | None:
    """Return the output of git in this package's folder, None if git fails or is absent."""
    try:
        answer = subprocess.run(
            ["git", "-C", str(Path(raysweep.version.__file__).parent), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def _checkout() -> tuple[str | None, bool | None]:
    """Return commit and dirty flag of the checkout that this package belongs to, None if unknown.

    A package that is installed inside a repository, such as in its `.venv`, does not belong to it: git must
    track the package's own files.
    """
    if _git("ls-files", "--error-unmatch", "version.py") is None:
        return None, None
    changes = _git("status", "--porcelain")
    return _git("rev-parse", "HEAD"), None if changes is None else bool(changes)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def provenance() -> dict[str, Any]:
    """Return commit and dirty flag of raysweep's checkout (None without one), versions, command and machine.

    `time` is in unix seconds.
    """
    commit, dirty = _checkout()
    return {
        "time": time.time(),
        "argv": _argv(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "processor": processor(),
        "git_commit": commit,
        "git_dirty": dirty,
        "versions": {package: _version(package) for package in PACKAGES},
    }


def _argv() -> list[str]:
    """Return the command line, of webhooks their host alone."""
    words = list(sys.argv)
    for k, word in enumerate(words):
        if k and words[k - 1] == "--notify":
            words[k] = shown(word)
        elif word.startswith("--notify="):
            words[k] = f"--notify={shown(word.removeprefix('--notify='))}"
    return words


def processor() -> str:
    """Return the name that the system gives to the processor's model, with its family where it is known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    # The lines of the first processor come first.
    facts = {
        key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))
    }
    name = facts.get("model name") or platform.processor() or platform.machine()
    if "cpu family" not in facts or "model" not in facts:
        return name
    return f"{name} (family {facts['cpu family']}, model {facts['model']})"


def save_launch(directory: Path, facts: Mapping[str, Any]) -> None:
    """Keep the provenance of one launch in the sweep's folder."""
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(facts['time']))}-{facts['pid']}.json"
    write_atomic(directory / "launches" / name, (json.dumps(facts, indent=1) + "\n").encode())


def add_phases(directory: Path, phases: Sequence[Mapping[str, Any]]) -> None:
    """Add phases (`raysweep.sweep.spent`) to the record of the latest launch if it is of this process."""
    facts = last_launch(directory)
    if facts is not None and (facts["pid"], facts["host"]) == (os.getpid(), socket.gethostname()):
        save_launch(directory, {**facts, "phases": [*facts.get("phases", []), *phases]})


def last_launch(directory: Path) -> dict[str, Any] | None:
    """Return the provenance of the latest launch, None if there was none."""
    return next(iter(reversed(all_launches(directory))), None)


def all_launches(directory: Path) -> list[dict[str, Any]]:
    """Return the provenance of all launches of a sweep, the oldest first."""
    return [json.loads(path.read_bytes()) for path in sorted((directory / "launches").glob("*.json"))]
