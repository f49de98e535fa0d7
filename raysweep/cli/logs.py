"""`raysweep logs`: what the processes of a run, or of a launch, have written."""

from __future__ import annotations

import json as json_
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysweep.cli import complete
from raysweep.cli.elsewhere import ElsewhereOption, elsewhere
from raysweep.cli.options import StorageOption, find, names_a_file
from raysweep.cli.output import say
from raysweep.sweep.format import STORED
from raysweep.sweep.lock import holder
from raysweep.sweep.storage import storage_root

if TYPE_CHECKING:
    from raysweep.sweep.ledger import RunLedger
    from raysweep.sweep.logs import Entry, Logs

#: Seconds between two looks at logs that are followed, and at what becomes of their run.
_PERIOD, _LOOK = 0.5, 2.0


def logs(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="RUN|SWEEP",
            help="A run, by any name that means it alone, also SWEEP/RUN; or a sweep, for its launches.",
            show_default=False,
            autocompletion=complete.logged,
        ),
    ],
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the run or the launch ends.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", min=0, help="Only this many of the last entries.")
    ] = None,
    storage: StorageOption = None,
    address: ElsewhereOption = None,
    json: Annotated[
        bool, typer.Option("--json", help="Print a JSON object a line: `time`, `log` and `text`.")
    ] = False,
) -> None:
    """Print the logs of a run, or of a sweep's launches.

    A run has the log of its trial, which evaluates, and one of each worker of its training.  They are in the
    storage, so any machine that sees it can print them, and each keeps about the last 2 MB.  What libraries
    write to Ray's own logs of processes is not among them.

    Examples:

        raysweep logs scaling -f

        raysweep logs '64/1/2/256 seed 0' -n 20

        raysweep logs scaling/64-1-2-256-adamw-s0-3f9a1c27be --follow --json
    """
    if address is not None:
        elsewhere(context, address)
    from raysweep.sweep.logs import launch_logs, logs_of

    root = storage_root(storage)
    if names_a_file(name) or (root / name / STORED).is_file():
        directory = find(name, storage).directory if names_a_file(name) else root / name
        _print(launch_logs(directory), name, directory, lambda: False, follow, lines, json=json)
        return
    run = _logged(root, name)
    _print(logs_of(run.logs), run.run_id, run.sweep_directory, lambda: _ended(run), follow, lines, json=json)


def _logged(root: Path, name: str) -> RunLedger:
    """Return the ledger of a run; where several sweeps have it, of the one with the newest log."""
    from raysweep.sweep.checkpoints import find_runs

    def newest(run: RunLedger) -> float:
        return max((path.stat().st_mtime for path in run.logs.glob("*.log")), default=0.0)

    return max(find_runs(root, name), key=newest)


def _ended(run: RunLedger) -> bool:
    """Return whether nothing is left to do for a run, so that nothing more will be written."""
    from dataclasses import replace

    from raysweep.sweep.starts import unfinished
    from raysweep.sweep.stored import load_stored

    sweep = load_stored(run.sweep_directory)
    mine = tuple(spec for spec in sweep.runs if spec.run_id == run.run_id)
    if not any(spec.source is not None for spec in mine):
        sweep = replace(sweep, runs=mine)
    return run.run_id not in unfinished(sweep)


def _print(
    logs: Logs,
    name: str,
    directory: Path,
    ended: Callable[[], bool],
    follow: bool,
    lines: int | None,
    *,
    json: bool,
) -> None:
    """Print logs, and with `follow` what comes until they have `ended` or no launch is at work any more."""
    width = 0

    def show(entries: Iterable[Entry]) -> None:
        nonlocal width
        for entry in entries:
            width = max(width, len(entry.log))
            if json:
                typer.echo(json_.dumps(entry.to_dict()))
            else:
                head = f"{entry.log:<{width}}  "
                typer.echo("\n".join(head + line for line in entry.text.splitlines()))

    found = logs.new()
    width = max((len(entry.log) for entry in found), default=0)
    show(found if lines is None else found[max(0, len(found) - lines) :])
    if not found:
        say(f"{name}: there is no log yet: nothing has worked on it")
    while follow:
        over = holder(directory) is None or ended()
        # What was written before the end is read after it was seen.
        show(logs.new())
        if over:
            say(f"{name}: nobody is at work on it")
            return
        seen = time.monotonic()
        while time.monotonic() - seen < _LOOK:
            time.sleep(_PERIOD)
            show(logs.new())
