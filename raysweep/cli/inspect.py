"""`raysweep plan`, `validate`, `status`: what would happen, and what has."""

from __future__ import annotations

import os
from dataclasses import replace

import typer
from rich.console import Console

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
)
from raysweep.sweep import Plan, Sweep
from raysweep.sweep.lock import holder
from raysweep.sweep.remarks import remarks
from raysweep.sweep.run_state import run_states
from raysweep.sweep.stored import select
from raysweep.sweep.timing import measure


def make_plan(sweep: Sweep, *, retry_failed: bool = False) -> Plan:
    """Return the plan with times: from the sweep's own history, else from a few timed steps a model.

    Where the cluster is to say how many runs are trained at once, the time is that of this machine, and a
    note says so.
    """
    at_once = _at_once(sweep)
    plan = sweep.plan(retry_failed=retry_failed, step_seconds=measure(sweep), concurrency=at_once)
    if at_once is None or plan.finished or plan.wall_seconds is None:
        return plan
    runs = f"{at_once} run{'s' if at_once > 1 else ''} at once"
    note = f"the time is for this machine, with {os.cpu_count()} CPUs and {runs}"
    return replace(plan, notes=(*plan.notes, note))


def _at_once(sweep: Sweep) -> int | None:
    """Return how many runs this machine trains at once; None where the sweep itself says how many.

    None, too, for runs on GPUs: which machine has them is not known here.
    """
    resources = sweep.resources
    if resources.max_concurrent != "auto" or resources.per_worker.get("GPU", 0) > 0:
        return None
    cpus = resources.per_worker.get("CPU", 0) * resources.workers
    return max(1, int((os.cpu_count() or 1) / cpus)) if cpus > 0 else None


def plan(
    file: FileArgument,
    set_: SetOption = None,
    only: OnlyOption = None,
    retry_failed: RetryOption = False,
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Print the runs of a sweep: done, to resume, new and why; with time and storage.  Starts nothing."""
    found = make_plan(select(find(str(file), storage, set_), only), retry_failed=retry_failed)
    if json:
        print_json(found.to_dict())
    else:
        typer.echo("\n".join(found.lines()))


def validate(file: FileArgument, set_: SetOption = None, json: JsonOption = False) -> None:
    """Check a sweep file: every error at once, with file, line and column."""
    sweep = find(str(file), None, set_)
    milestones = sum(len(run.milestones) for run in sweep.runs)
    if json:
        print_json({"name": sweep.name, "runs": len(sweep.runs), "milestones": milestones})
    else:
        typer.echo(f"{file}: ok, {len(sweep.runs)} runs with {milestones} milestones")


def status(name: NameArgument, storage: StorageOption = None, json: JsonOption = False) -> None:
    """Print where every run of a sweep stands, from its records; also while it runs."""
    sweep = find(name, storage)
    states = run_states(sweep)
    at_work = holder(sweep.directory)
    ledger = sweep.ledger()
    failures = {r.run_id: found[-1] for r in sweep.runs if (found := ledger.open(r.run_id).failures())}
    if json:
        print_json(
            {
                "name": sweep.name,
                "directory": str(sweep.directory),
                "launched_by": at_work,
                "runs": [
                    {
                        "run_id": state.run_id,
                        "state": state.state,
                        "step": state.step,
                        "steps": state.steps,
                        "tokens_per_second": state.tokens_per_second,
                        "mfu": state.mfu,
                        "metrics": state.metrics,
                        "failure": failures[state.run_id].message if state.run_id in failures else None,
                    }
                    for state in states
                ],
                "notes": remarks(sweep),
            }
        )
        return
    console = Console()
    if at_work is not None:
        console.print(f"being launched by {at_work}", markup=False, highlight=False)
    console.print(runs_table(states, width=console.width))
    for run_id, failure in failures.items():
        console.print(f"failed: {run_id}: {failure.message}", markup=False)
    for line in remarks(sweep):
        console.print(f"note: {line}", markup=False, highlight=False)
