"""`raysweep launch`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
from raysweep.cli.output import console, remarks_of_ray, say
from raysweep.cli.results import make_report, print_summary
from raysweep.remote import local_place
from raysweep.sweep.notice import check_notify
from raysweep.sweep.storage import open_directory

if TYPE_CHECKING:
    from raysweep.engine import Cluster, Results
    from raysweep.sweep import Plan, Sweep

#: Number of runs above which a person at a terminal is asked first.
MANY = 100


def launch(
    file: FileArgument,
    set_: SetOption = None,
    dry_run: Annotated[bool, typer.Option("-n", "--dry-run", help="Print the plan and stop.")] = False,
    address: AddressOption = None,
    only: OnlyOption = None,
    retry_failed: RetryOption = False,
    reconnect: Annotated[
        float,
        typer.Option(
            "--reconnect",
            metavar="MINUTES",
            min=0,
            help="Wait for a cluster whose head has died, and go on when it is back.",
        ),
    ] = 10.0,
    notify: Annotated[
        list[str] | None,
        typer.Option(
            "--notify",
            metavar="COMMAND|URL",
            help="Run a shell command, or post to a webhook, when the launch is done, has failed runs or an "
            "error, or is interrupted; both get JSON (`event`, `sweep`, `runs`, `failures`, `text`). May be "
            "repeated.",
        ),
    ] = None,
    yes: Annotated[
        bool, typer.Option("-y", "--yes", envvar="RAYSWEEP_YES", help="Do not ask before a large sweep.")
    ] = False,
    storage: StorageOption = None,
    tracking_uri: TrackingOption = None,
    json: JsonOption = False,
) -> None:
    """Train and evaluate the missing part of a sweep.

    Finished work is not repeated.  A launch that was stopped or killed, or that failed in part, continues
    when the sweep is launched again.

    Examples:

        raysweep launch sweeps/scaling.yaml

        raysweep launch sweeps/scaling.yaml --set 'axes.seed=[0]' --dry-run

        raysweep launch sweeps/scaling.yaml --address 10.0.0.1:6379 --storage /shared/sweeps

        raysweep launch sweeps/scaling.yaml --notify 'mail -s "$RAYSWEEP_EVENT" me@example.org'
    """
    from raysweep.sweep import make_plan
    from raysweep.sweep.command import launch_command
    from raysweep.sweep.stored import select

    sweep = find(str(file), storage, set_, tracking_uri)
    chosen = select(sweep, only)
    if dry_run:
        plan = make_plan(chosen, retry_failed=retry_failed, timed=True)
        if json:
            print_json(plan.to_dict())
        else:
            typer.echo("\n".join(plan.lines()))
        return
    runs = len(chosen.runs) + chosen.to_choose
    if runs > MANY and sys.stdin.isatty() and not yes:
        typer.confirm(f"{runs} runs: go on?", abort=True)
    check_notify(notify or ())
    again = launch_command(sweep, file=str(file), overrides=set_ or (), address=address)
    try:
        results, loaded = _launch(
            sweep,
            address=address,
            only=only,
            retry_failed=retry_failed,
            reconnect=60 * reconnect,
            notify=notify or (),
        )
    except KeyboardInterrupt:
        say(
            f"interrupted; everything up to the last checkpoint is in {sweep.directory}, "
            "and the same command continues from there"
        )
        raise typer.Exit(130) from None
    _show(results, again, loaded, json=json)
    if results.failures:
        raise typer.Exit(3)
    if results.unfinished:
        raise typer.Exit(4)


def _launch(
    sweep: Sweep,
    *,
    address: str | None,
    only: list[str] | None,
    retry_failed: bool,
    reconnect: float,
    notify: Sequence[str],
) -> tuple[Results, dict[str, Any]]:
    """Launch with a view on standard error; return the results and the phase before the launch."""
    from raysweep.engine import launch as start
    from raysweep.engine.phases import loading
    from raysweep.tracking import tracking_uri as tracked_at

    footer = [
        f"records and logs: {sweep.directory}",
        f"MLflow: {tracked_at(sweep)}",
        "Ctrl-C stops after a checkpoint; the same command continues from there",
    ]
    errors = console(stderr=True)
    view = LiveView(errors, footer, remarks=False) if errors.is_terminal else LineView(errors)
    local = local_place(sweep.directory)
    open_directory(local)
    # The view ends first: it puts standard output back to what it found.
    with remarks_of_ray(local / "ray.log"), ExitStack() as stack:

        def started(plan: Plan, cluster: Cluster | None) -> None:
            for line in plan.lines(limit=12):
                say(line)
            if cluster is not None:
                say(str(cluster))
                for line in footer if not errors.is_terminal else ():
                    say(line)
                # From here on the view owns the terminal.
                stack.enter_context(view)

        cluster = address or os.environ.get("RAY_ADDRESS")
        where = f"connecting to the Ray cluster at {cluster}" if cluster else "starting Ray on this machine"
        loaded = loading()
        results = start(
            sweep,
            address=address,
            only=only,
            retry_failed=retry_failed,
            observer=view,
            on_work=lambda: say(where),
            on_start=started,
            reconnect=reconnect,
            notify=notify,
        )
    return results, loaded


def _show(results: Results, again: str, loaded: dict[str, Any], *, json: bool) -> None:
    """Print the results, and the runs that failed or are not finished.

    `again` is the command, and `loaded` the phase before the launch.
    """
    from raysweep.report import sweep_verdicts
    from raysweep.sweep.provenance import add_phases
    from raysweep.sweep.spent import phase
    from raysweep.tracking import keep_files
    from raysweep.tracking import tracking_uri as tracked_at

    sweep = results.sweep
    started, cpu = time.monotonic(), time.process_time()
    if results.worked_on:
        say("writing the report")
    frame = results.to_frame()
    verdicts = sweep_verdicts(sweep, frame)
    with TemporaryDirectory() as folder:
        figures = Path(folder) / "figures"
        page = make_report(sweep, frame, figures=figures if results.tracked else None, verdicts=verdicts)
        if results.tracked:
            keep_files(sweep, {page: "", **({figures: "figures"} if figures.is_dir() else {})})
    if results.worked_on:
        took, used = time.monotonic() - started, time.process_time() - cpu
        add_phases(sweep.directory, [loaded, phase("report", took, used)])
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
                "unfinished": results.unfinished,
                "verdicts": [verdict.encode() for verdict in verdicts],
                "metrics": records(frame),
            }
        )
    else:
        print_summary(sweep, frame, page, verdicts)
    for run_id, failure in results.failures.items():
        say(f"{'cancelled' if failure.cancelled else 'failed'}: {run_id}: {failure.message}")
    if failures:
        say(f"to try them again: {again} --retry-failed")
    if not results.tracked:
        say(f"MLflow at {tracked_at(sweep)} could not be reached; nothing is lost: launch again to fill it")
    for run_id, trouble in results.unfinished.items():
        logs = sweep.ledger().open(run_id).logs
        because = f" ({trouble})" if trouble else ""
        say(f"not finished: {run_id}{because}: launch again to continue; logs in {logs}")
