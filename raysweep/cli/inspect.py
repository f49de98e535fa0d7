"""`raysweep plan`, `validate`: the work that is left, and the errors of a sweep file."""

from __future__ import annotations

from typing import Annotated

import typer

from raysweep.cli.options import (
    FileArgument,
    JsonOption,
    OnlyOption,
    RetryOption,
    SetOption,
    StorageOption,
    find,
    print_json,
)
from raysweep.cli.output import say
from raysweep.errors import RaysweepError
from raysweep.remote import listed
from raysweep.sweep.units import count


def plan(
    file: FileArgument,
    set_: SetOption = None,
    only: OnlyOption = None,
    retry_failed: RetryOption = False,
    price: Annotated[
        float | None,
        typer.Option(
            min=0, metavar="PER_HOUR", help="Price of a GPU-hour; of a CPU-hour where a sweep has no GPUs."
        ),
    ] = None,
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Print the runs of a sweep, done, to resume or new, and why; with time and storage.  Starts nothing.

    For a sweep on GPUs it prints the GPU-hours of training, as far as such models were measured.
    """
    from raysweep.bench.gpu import prices
    from raysweep.sweep import make_plan
    from raysweep.sweep.stored import select

    chosen = select(find(str(file), storage, set_), only)
    with listed(chosen.directory):
        found = make_plan(chosen, retry_failed=retry_failed, timed=True)
    costs = prices(chosen, found)
    if json:
        print_json(found.to_dict() | costs.encode(price))
    else:
        typer.echo("\n".join([*found.lines(), *(f"  {line}" for line in costs.lines(price))]))


def validate(file: FileArgument, set_: SetOption = None, json: JsonOption = False) -> None:
    """Check a sweep file and print every error, with file, line and column."""
    try:
        sweep = find(str(file), None, set_)
    except RaysweepError as error:
        if not json:
            raise
        print_json({"ok": False, "errors": str(error).splitlines()})
        raise typer.Exit(error.exit_code) from None
    from raysweep.sweep.room import absent

    milestones = sum(len(run.milestones) for run in sweep.runs)
    notes = [*sweep.notes, *absent(sweep.resources)]
    if json:
        facts = {"name": sweep.name, "runs": len(sweep.runs), "milestones": milestones}
        print_json({"ok": True, **facts, "notes": notes})
    else:
        for note in notes:
            say(f"note: {note}")
        typer.echo(f"{file}: ok, {count(len(sweep.runs), 'run')} with {count(milestones, 'milestone')}")
