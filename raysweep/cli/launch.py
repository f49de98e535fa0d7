"""`raysweep launch`."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from functools import partial
from typing import Annotated, Any

import typer
from rich.console import Console

from raysweep.cli.live import LineView, LiveView
from raysweep.cli.options import (
    AddressOption,
    FileArgument,
    JsonOption,
    OnlyOption,
    RetryOption,
    SetOption,
    StorageOption,
    TrackingOption,
    find,
    print_json,
    records,
)
from raysweep.cli.results import make_report, print_summary
from raysweep.sweep import Sweep
from raysweep.sweep.storage import open_directory, storage_flag
from raysweep.sweep.stored import select
from raysweep.sweep.timing import measure
from raysweep.tracking import tracking_uri as tracked_at

#: Runs above which a person at a terminal is asked first.
MANY = 100


def launch(
    file: FileArgument,
    set_: SetOption = None,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Print the plan and stop.")] = False,
    address: AddressOption = None,
    only: OnlyOption = None,
    retry_failed: RetryOption = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before a large sweep.")] = False,
    storage: StorageOption = None,
    tracking_uri: TrackingOption = None,
    json: JsonOption = False,
) -> None:
    """Train and evaluate what is missing of a sweep.

    What is done is not done again; a launch that was stopped, killed or failed in part goes on when it is
    launched again.

    Examples:

        raysweep launch sweeps/scaling.yaml

        raysweep launch sweeps/scaling.yaml --set 'axes.seed=[0]' --dry-run

        raysweep launch sweeps/scaling.yaml --address 10.0.0.1:6379 --storage /shared/sweeps
    """
    sweep = find(str(file), storage, set_, tracking_uri)
    chosen = select(sweep, only)
    if dry_run:
        plan = chosen.plan(retry_failed=retry_failed, timed=True)
        if json:
            print_json(plan.to_dict())
        else:
            typer.echo("\n".join(plan.lines()))
        return
    if len(chosen.runs) > MANY and sys.stdin.isatty() and not yes:
        typer.confirm(f"{len(chosen.runs)} runs: go on?", abort=True)
    # The command that launches this sweep once more, as it is now, from this folder.
    words = ["raysweep", "launch", str(file)]
    for text in set_ or ():
        words += ["--set", text]
    if address is not None:
        words += ["--address", address]
    if tracking_uri is not None and tracking_uri != os.environ.get("MLFLOW_TRACKING_URI"):
        words += ["--tracking-uri", tracking_uri]
    again = shlex.join(words) + storage_flag(sweep.storage)
    raise typer.Exit(_launch(sweep, only, address, retry_failed, json, again))


def _launch(
    sweep: Sweep, only: Sequence[str] | None, address: str | None, retry: bool, json: bool, again: str
) -> int:
    """Launch and show; `again` is the command that launches this sweep once more."""
    from raysweep.engine import launch as start

    chosen = select(sweep, only)
    plan = chosen.plan(retry_failed=retry, verify=False)
    if not plan.finished:
        # What takes long is done before a live view covers what is said about it.
        chosen.prepare()
    console = Console(stderr=True)
    say = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    footer = [
        f"records and logs: {sweep.directory}",
        f"MLflow: {tracked_at(sweep)}",
        "Ctrl-C stops after a checkpoint; the same command goes on from there",
    ]
    view = LiveView(console, footer) if console.is_terminal else LineView(console)

    def started(plan: Any, cluster: Any) -> None:
        for line in plan.lines(limit=12):
            say(line)
        if cluster is not None:
            where = "Ray on this machine" if cluster.embedded else f"Ray cluster {cluster.address}"
            cpus, gpus = cluster.resources.get("CPU", 0), cluster.resources.get("GPU", 0)
            say(f"{where}: {len(cluster.nodes)} node(s), {cpus:g} CPU, {gpus:g} GPU")
            for line in footer if not console.is_terminal else ():
                say(line)

    open_directory(sweep.directory)
    chatter = sweep.directory / "ray.log"
    try:
        # Ray prints remarks of its own to standard output, which belongs to our results.
        with view, chatter.open("a") as log, redirect_stdout(log):
            results = start(
                sweep,
                address=address,
                only=only,
                step_seconds=measure(chosen, (run.spec for run in plan.runs if run.state == "new")),
                retry_failed=retry,
                observer=view,
                on_start=started,
            )
    except KeyboardInterrupt:
        say(
            f"interrupted; everything up to the last checkpoint is in {sweep.directory}, "
            "and the same command goes on from there"
        )
        return 130
    frame = results.to_frame()
    page = make_report(sweep, frame)
    failures = {run_id: failure.message for run_id, failure in results.failures.items()}
    if json:
        print_json(
            {
                "sweep": sweep.name,
                "directory": str(sweep.directory),
                "report": str(page),
                "tracking_uri": tracked_at(sweep),
                "worked_on": list(results.worked_on),
                "failures": failures,
                "unfinished": list(results.unfinished),
                "metrics": records(frame),
            }
        )
    else:
        print_summary(sweep, frame, page)
    for run_id, message in failures.items():
        say(f"failed: {run_id}: {message}")
    if failures:
        say(f"to try them again: {again} --retry-failed")
    if not results.tracked:
        say(f"MLflow at {tracked_at(sweep)} could not be reached; nothing is lost: launch again to fill it")
    for run_id in results.unfinished:
        logs = sweep.ledger().open(run_id).logs
        say(f"not finished: {run_id}: launch again to go on; logs in {logs}")
    if failures:
        return 3
    return 4 if results.unfinished else 0
