"""Tells commands and webhooks how a launch has ended, in threads with a time limit."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.request import Request, urlopen

from raysweep.errors import ConfigError
from raysweep.sweep import Sweep
from raysweep.sweep.notice import is_url, notify_problem, payload, shown

log = logging.getLogger("raysweep.launch")

#: Seconds that a command or a webhook gets.
LIMIT = 10.0


@contextmanager
def noticed(sweep: Sweep, targets: Sequence[str]) -> Iterator[None]:
    """Notify targets of the end of a launch, whichever it is; raises `ConfigError` for one that cannot be."""
    for target in targets:
        wrong = notify_problem(target)
        if wrong is not None:
            raise ConfigError(f"notify: {wrong}")
    began = time.monotonic()
    event: str | None = "failed"
    error: str | None = None
    try:
        yield
        event = None
    except (KeyboardInterrupt, SystemExit):
        event = "interrupted"
        raise
    except BaseException as reason:
        error = " ".join(f"{reason}".split()) or type(reason).__name__
        raise
    finally:
        if targets:
            # A notice that cannot be made must not hide how the launch has ended.
            try:
                content = payload(sweep, event, seconds=time.monotonic() - began, error=error)
                notify(targets, content)
            except Exception as reason:
                log.warning("notify: %s: %s", type(reason).__name__, reason)


def notify(targets: Sequence[str], content: dict[str, Any]) -> None:
    """Send a notice to all targets at once, within some `LIMIT` seconds; a failure is a line in the log."""
    said: dict[str, str | None] = {}

    def send(target: str) -> None:
        try:
            said[target] = _post(target, content) if is_url(target) else _run(target, content)
        except Exception as error:
            said[target] = f"{type(error).__name__}: {error}"

    threads = [threading.Thread(target=send, args=(target,), daemon=True) for target in targets]
    deadline = time.monotonic() + LIMIT + 1.0
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for target in dict.fromkeys(targets):
        wrong = said.get(target, f"no answer within {LIMIT:g} s")
        if wrong is not None:
            log.warning("notify: %s: %s", shown(target), " ".join(wrong.split()))


def _post(url: str, content: dict[str, Any]) -> str | None:
    """Post to a webhook; return None, or raise the error."""
    request = Request(url, json.dumps(content).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=LIMIT):
        return None


def _run(command: str, content: dict[str, Any]) -> str | None:
    """Run a command in a session of its own; return what went wrong, None if nothing did."""
    told = {
        "RAYSWEEP_EVENT": content["event"],
        "RAYSWEEP_SWEEP": content["sweep"],
        "RAYSWEEP_TEXT": content["text"],
    }
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            env=os.environ | told,
            start_new_session=True,
        )
        try:
            process.communicate(json.dumps(content).encode(), timeout=LIMIT)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"ended after {LIMIT:g} s"
        if process.returncode == 0:
            return None
        errors.seek(0)
        last = errors.read().decode(errors="replace").strip().rpartition("\n")[2]
        return f"exit code {process.returncode}{': ' if last else ''}{last}"
