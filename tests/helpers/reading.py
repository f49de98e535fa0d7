"""Reads a mutated sweep file as `validate` and `plan` do, and says what a user must never see."""

from __future__ import annotations

import resource
import socket
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from raysweep.errors import RaysweepError
from raysweep.sweep import load_sweep, make_plan

#: Bytes that this process may take at most.
MOST_BYTES = 1 << 30


@contextmanager
def nothing_starts() -> Iterator[list[str]]:
    """Refuse processes and connections, and list those that were tried."""
    tried: list[str] = []

    def refuse(*arguments: Any, **_: Any) -> Any:
        tried.append(repr(arguments)[:200])
        raise AssertionError(f"something was started: {arguments!r}")

    with mock.patch.object(subprocess, "Popen", refuse), mock.patch.object(socket.socket, "connect", refuse):
        yield tried


def peak() -> int:
    """Return the most bytes that this process has held so far."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def outcome(text: str, overrides: list[str], folder: Path) -> tuple[str, str]:
    """Return "accepted", "refused" or "defect" with the words for it, of a file in a folder of its own.

    A defect is an error without words of ours, another exit code than 2, a line that is no line, something
    that was started, a file that was made, or more memory than `MOST_BYTES`.
    """
    path = folder / "s.yaml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    before, held = sorted(folder.iterdir()), peak()
    with nothing_starts() as started:
        try:
            sweep = load_sweep(path, overrides, storage=folder / "results")
            said = "\n".join(make_plan(sweep).lines())
            kind = "accepted"
        except RaysweepError as error:
            kind, said = "refused", str(error)
            if error.exit_code != 2 or not said.strip():
                kind, said = "defect", f"exit code {error.exit_code}: {traceback.format_exc()}"
        except Exception:
            kind, said = "defect", traceback.format_exc()
    if started:
        return "defect", f"started: {started}"
    if sorted(folder.iterdir()) != before:
        return "defect", f"made: {sorted(folder.iterdir())}"
    if kind == "refused" and any(len(line) > 2000 for line in said.splitlines()):
        return "defect", f"a line of {max(map(len, said.splitlines()))} characters: {said[:300]}"
    # Tests before this one may have brought the process close to that.
    if peak() > max(MOST_BYTES, held + MOST_BYTES // 4):
        return "defect", f"{peak() >> 20} MiB"
    return kind, said
