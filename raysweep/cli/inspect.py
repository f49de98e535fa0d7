"""`raysweep plan`, `validate`, `status`: the work that is left, and the state of every run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from raysweep.cli.live import runs_table
from raysweep.cli.options import (
    FileArgument,
    JsonOption,
    NameArgument,
    OnlyOption,
    RetryOption,
    SetOption,
    StorageOption,
    find,
    print_json,
    results_of,
)
from raysweep.cli.output import console, say
from raysweep.cli.results import print_best
from raysweep.errors import RaysweepError
from raysweep.sweep.units import count

if TYPE_CHECKING:
    from raysweep.sweep import Sweep


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
    milestones = sum(len(run.milestones) for run in sweep.runs)
    notes = [*sweep.notes, *_absent(sweep)]
    if json:
        facts = {"name": sweep.name, "runs": len(sweep.runs), "milestones": milestones}
        print_json({"ok": True, **facts, "notes": notes})
    else:
        for note in notes:
            say(f"note: {note}")
        typer.echo(f"{file}: ok, {count(len(sweep.runs), 'run')} with {count(milestones, 'milestone')}")


def _absent(sweep: Sweep) -> list[str]:
    """Return a note on each process that wants GPUs which this machine lacks, if no cluster is named."""
    import torch

    if os.environ.get("RAY_ADDRESS") or torch.cuda.device_count():
        return []
    wants = {name: getattr(sweep.resources, name).get("GPU", 0) for name in ("per_worker", "evaluate")}
    return [
        f"resources.{name}: {{GPU: {count:g}}}, but this machine has no GPU; launch with --address HOST:PORT"
        for name, count in wants.items()
        if count > 0
    ]


def status(name: NameArgument, storage: StorageOption = None, json: JsonOption = False) -> None:
    """Print the state of every run of a sweep, from its records; the sweep may still be running."""
    from raysweep.evaluation.metric import numbers
    from raysweep.report.best import best_tables
    from raysweep.sweep.changes import Changes, stray_lines
    from raysweep.sweep.lock import holder
    from raysweep.sweep.remarks import remarks
    from raysweep.sweep.run_state import run_states
    from raysweep.sweep.samples import trials
    from raysweep.sweep.starts import failures

    sweep = results_of(name, storage)
    states = run_states(sweep)
    at_work = holder(sweep.directory)
    failed = failures(sweep)
    strays = Changes(sweep.ledger(), sweep).strays()
    if json:
        print_json(
            {
                "name": sweep.name,
                "directory": str(sweep.directory),
                "launched_by": at_work,
                "runs": [
                    {
                        "run_id": state.run_id,
                        "name": state.label,
                        "state": state.state,
                        "step": state.step,
                        "steps": state.steps,
                        "tokens_per_second": state.tokens_per_second,
                        "mfu": state.mfu,
                        "evaluated": state.evaluated,
                        "metrics": numbers(state.metrics),
                        "failure": failed[state.run_id].message if state.run_id in failed else None,
                    }
                    for state in states
                ],
                "samples": [trial.to_dict() for trial in trials(sweep)],
                "notes": remarks(sweep),
                "no_longer_in_file": [stray.to_dict() for stray in strays],
            }
        )
        return
    if at_work is not None:
        typer.echo(f"being launched by {at_work}")
    out = console()
    out.print(runs_table(states, width=out.width, ids=True))
    for found in best_tables(sweep):
        print_best(found)
    for run_id, failure in failed.items():
        typer.echo(f"failed: {run_id}: {failure.message}")
    for line in remarks(sweep):
        typer.echo(f"note: {line}")
    for line in stray_lines(strays, limit=40):
        typer.echo(line)
