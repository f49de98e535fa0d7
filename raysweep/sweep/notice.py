"""Notices of the end of a launch: who gets them, and what they say.

    notify: https://hooks.example.org/T0/B0/XX     # a webhook: POST of JSON
    notify: "mail -s $RAYSWEEP_EVENT me@example.org"   # a shell command: JSON on its standard input
    notify: [several, of them]

The JSON has these fields:

    event      "done"; "failed": runs have failed or are not finished, or an error ended the launch;
               "interrupted": Ctrl-C, SIGTERM, SIGHUP or `raysweep cancel`
    sweep, directory, host, pid
    seconds    of the launch
    runs       number of the launch's runs by state: done, failed, cancelled, unfinished
    failures   message by run id, of at most 20 runs
    error      the error that ended the launch, else null
    text       all of it in a line, which chat programs show
"""

from __future__ import annotations

import os
import socket
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from raysweep.errors import ConfigError
from raysweep.sweep.units import duration

if TYPE_CHECKING:
    from raysweep.sweep.config import Sweep

#: Most failures that a notice tells.
_TOLD = 20


def is_url(target: str) -> bool:
    """Return whether a target is a webhook, and not a command."""
    return target.startswith(("http://", "https://"))


def notify_problem(target: object) -> str | None:
    """Return what is wrong with a target of notices, None if nothing is."""
    from raysweep.sweep.explain import show

    if not isinstance(target, str) or not target.strip():
        return f"{show(target)} is neither a command nor an address such as https://hooks.example.org/..."
    if is_url(target):
        try:
            if urlsplit(target).hostname:
                return None
        except ValueError:
            pass
        return f"'{target}' is no address; write https://HOST/PATH"
    if target.partition(" ")[0].partition("://")[1]:
        return f"'{target}' is neither a command nor an address that begins with http:// or https://"
    return None


def check_notify(targets: Iterable[str]) -> None:
    """Raise `ConfigError` unless all targets of `--notify` can be notified."""
    for target in targets:
        wrong = notify_problem(target)
        if wrong is not None:
            raise ConfigError(f"--notify: {wrong}")


def shown(target: str) -> str:
    """Return a target for a line of text; the path of a webhook is often a secret.

    >>> shown("https://hooks.example.org/T0/B0/XX"), shown("notify-send done")
    ('https://hooks.example.org', 'notify-send done')
    """
    if not is_url(target):
        return target
    parts = urlsplit(target)
    return f"{parts.scheme}://{parts.hostname}{'' if parts.port is None else f':{parts.port}'}"


def payload(sweep: Sweep, event: str | None, *, seconds: float, error: str | None) -> dict[str, Any]:
    """Return the JSON of a notice; without an `event`, the ledger says whether all is done."""
    from raysweep.sweep.starts import failures, starts, unfinished

    waits = starts(sweep)
    failed, left = failures(sweep, waits), unfinished(sweep, waits)
    how = Counter("cancelled" if failure.cancelled else "failed" for failure in failed.values())
    runs = {
        "done": len(sweep.runs) - len(failed) - len(left),
        "failed": how["failed"],
        "cancelled": how["cancelled"],
        "unfinished": len(left),
    }
    event = event or ("failed" if failed or left else "done")
    counted = ", ".join(f"{number:,} {state}" for state, number in runs.items() if number)
    because = "" if error is None else f" ({error})"
    return {
        "event": event,
        "sweep": sweep.name,
        "directory": str(sweep.directory),
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "seconds": round(seconds, 1),
        "runs": runs,
        "failures": {run_id: failed[run_id].message for run_id in list(failed)[:_TOLD]},
        "error": error,
        "text": f"raysweep: {sweep.name} {event} after {duration(seconds)}: {counted}{because}",
    }
