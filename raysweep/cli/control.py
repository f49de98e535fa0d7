"""`raysweep cancel`, `retry`: launches that are at work, and runs that are left alone, from elsewhere."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysweep.cli.elsewhere import ElsewhereOption, elsewhere
from raysweep.cli.options import JsonOption, NameArgument, OnlyOption, StorageOption, find, print_json
from raysweep.cli.output import say
from raysweep.errors import ConfigError, StorageError
from raysweep.sweep.lock import held
from raysweep.sweep.units import count

if TYPE_CHECKING:
    from raysweep.sweep import Sweep
    from raysweep.sweep.lock import Holder

#: Seconds between two looks at the lock of a launch that is to stop.
_PERIOD = 0.5


def cancel(
    context: typer.Context,
    name: NameArgument,
    only: OnlyOption = None,
    wait: Annotated[
        float,
        typer.Option(
            "--wait", metavar="SECONDS", min=0, help="Most time to wait until the launch has stopped."
        ),
    ] = 90.0,
    storage: StorageOption = None,
    address: ElsewhereOption = None,
    json: JsonOption = False,
) -> None:
    """Stop a launch that is at work, on this machine or another one that sees the storage.

    It stops as on Ctrl-C: workers write a checkpoint, the launch exits with 130, and the same command
    continues.  A Tuner of Python (rs.tuner) stops too, and its fit() returns what there is.  This waits until
    it has stopped.

    With --only, the launch goes on without the runs that are named: they are cancelled, and left alone by
    this launch and later ones until `raysweep retry`.  They count as failed runs in exit codes.

    Examples:

        raysweep cancel scaling

        raysweep cancel scaling --only '64/1/2/256 seed 0'
    """
    if address is not None:
        elsewhere(context, address)
    from raysweep.sweep.cancel import request

    sweep = find(name, storage)
    at_work = held(sweep.directory)
    if at_work is None:
        raise ConfigError(f"{name}: no launch of it is at work in {sweep.storage}, so there is none to stop")
    if only:
        _cancel_runs(sweep, only, json=json)
        return
    request(sweep.directory, at_work)
    if not json:
        say(f"asked {at_work} to stop")
    stopped = _stopped(sweep.directory, at_work, wait)
    if json:
        print_json({"sweep": sweep.name, "launched_by": str(at_work), "stopped": stopped})
    elif stopped:
        typer.echo(f"{sweep.name}: stopped; the same launch or program continues")
    if wait and not stopped:
        raise StorageError(
            f"{name}: {at_work} has not stopped within {wait:g} s; does it see the same storage?"
        )


def _cancel_runs(sweep: Sweep, only: list[str], *, json: bool) -> None:
    from raysweep.sweep.cancel import cancel_runs
    from raysweep.sweep.stored import meant

    chosen = meant(sweep, only)
    cancelled = cancel_runs(sweep, chosen)
    if json:
        print_json({"sweep": sweep.name, "cancelled": cancelled})
        return
    for run_id in cancelled:
        typer.echo(f"cancelled: {run_id}")
    over = len(chosen) - len(cancelled)
    if over:
        say(f"{count(over, 'run')} of these had ended already")


def _stopped(directory: Path, launch: Holder, wait: float) -> bool:
    """Wait until a launch has given its lock up; return whether it has."""
    end = time.monotonic() + wait
    while (now := held(directory)) is not None and now.started == launch.started:
        if time.monotonic() >= end:
            return False
        time.sleep(_PERIOD)
    return True


def retry(
    name: NameArgument, only: OnlyOption = None, storage: StorageOption = None, json: JsonOption = False
) -> None:
    """Let failed and cancelled runs be tried again.

    This starts nothing.  A launch that is at work tries them again after its other runs, and otherwise the
    next launch does, as one with --retry-failed would; the command for it is printed.

    Examples:

        raysweep retry scaling

        raysweep retry scaling --only '64/1/2/256 seed *'
    """
    from raysweep.sweep.command import relaunch_command
    from raysweep.sweep.stored import meant

    sweep = find(name, storage)
    chosen = meant(sweep, only)
    ledger = sweep.ledger()
    found = [spec.run_id for spec in chosen if ledger.open(spec.run_id).retry()]
    at_work = held(sweep.directory)
    command = relaunch_command(sweep)
    if json:
        launched_by = None if at_work is None else str(at_work)
        print_json({"sweep": sweep.name, "retried": found, "launched_by": launched_by, "command": command})
        return
    if not found:
        typer.echo(f"{sweep.name}: none of {count(len(chosen), 'run')} has failed or is cancelled")
        return
    for run_id in found:
        typer.echo(f"to be tried again: {run_id}")
    if at_work is None:
        typer.echo(f"to do so now: {command}")
    else:
        typer.echo(f"{at_work} tries them again after its other runs")
