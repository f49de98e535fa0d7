"""`raysweep status`: the state of every run, once or as it changes."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from raysweep.cli import complete
from raysweep.cli.elsewhere import ElsewhereOption, elsewhere
from raysweep.cli.live import between, runs_table
from raysweep.cli.options import JsonOption, StorageOption, names_a_file, print_json, results_of
from raysweep.cli.output import HEARTBEAT, console, say
from raysweep.cli.results import best_table
from raysweep.errors import ConfigError, DataError
from raysweep.remote import forgotten
from raysweep.sweep.storage import storage_root
from raysweep.sweep.told import OVER
from raysweep.sweep.units import count, percent

if TYPE_CHECKING:
    from raysweep.sweep import FailureRecord, Sweep
    from raysweep.sweep.changes import Changes
    from raysweep.sweep.run_state import RunState
    from raysweep.sweep.under_way import UnderWay

#: Number of runs above which they are summarised.
MANY = 100
#: Characters of a line in a pipe, so that the name of a run is not broken over several.
PIPE = 160


def status(
    context: typer.Context,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME|FILE",
            help="Name of a sweep in the storage, or its file.",
            show_default="all sweeps of the storage, a line each",
            autocompletion=complete.sweeps,
        ),
    ] = None,
    all_: Annotated[
        bool, typer.Option("--all", help=f"List every run, also where there are more than {MANY}.")
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "-w", "--watch", help="Go on while a launch is at work: redraw, or in a pipe print what changes."
        ),
    ] = False,
    time_: Annotated[
        bool,
        typer.Option("--time", help="Print where the time went: training, each evaluation, and the rest."),
    ] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.1, help="Seconds between two looks.")
    ] = 5.0,
    storage: StorageOption = None,
    address: ElsewhereOption = None,
    json: JsonOption = False,
) -> None:
    """Print the state of every run of a sweep, from its records; the sweep may still be running.

    More than 100 runs are summarised: by state, by the values of each axis, failures by reason, the slowest.
    With --watch the exit code is 3 if at the end a run has failed, or is left and nobody is at work on it.

    Columns with nothing to tell, or no room, are left out; tokens/s and MFU take a width of 120 characters.

        run       values of its axes, or its model
        id        its id or the last part of it, which other commands take
        state     unfinished: begun, and nobody is at work on it
        step      steps that are trained, of all
        excess    loss above the least possible one, in nats
        loss      held-out loss, in nats
        trace     of the Fisher matrix, in nats: smaller is flatter
                  (in one space: as of one architecture for all sizes)
        probe     accuracy of linear classifiers, by task
        tuned     accuracy after fine-tuning, by task
        tokens/s  tokens a second, a mean over its training
        MFU       share of the peak of its CPUs or GPUs that these tokens use

    The view of a launch also has the pace (steps/s) and the time to the end (left).

    Examples:

        raysweep status

        raysweep status scaling

        raysweep status scaling --watch --every 10

        raysweep status scaling --time

        raysweep status scaling --json
    """
    if json and watch:
        raise ConfigError("--watch: prints no JSON; ask for --json as often as you like")
    if time_ and watch:
        raise ConfigError("--time: looks once; ask for it without --watch")
    if address is not None:
        elsewhere(context, address)
    if name is None:
        for option, asked in (("--watch", watch), ("--all", all_), ("--time", time_)):
            if asked:
                raise ConfigError(f"{option}: is for one sweep; name it")
        _list(storage, json=json)
        return
    if time_:
        _time(name, storage, json=json)
        return
    if json:
        print_json(_look(name, storage).to_dict())
        return
    out = console(pipe_width=None if "COLUMNS" in os.environ else PIPE)
    if not watch:
        out.print(_look(name, storage).shown(out.width, all_=all_), crop=False)
        return
    states = _watch(name, storage, out, every, all_=all_)
    left = sum(state.state not in OVER for state in states)
    if left:
        say(f"{name}: nobody is at work on it; runs left: {left}")
    if left or any(state.state == "failed" for state in states):
        raise typer.Exit(3)


def _list(storage: Path | None, *, json: bool) -> None:
    """Print the sweeps of a storage, a line each; one that cannot be read has its error there."""
    from raysweep.sweep.counted import counts, told
    from raysweep.sweep.lock import holder
    from raysweep.sweep.made import with_made
    from raysweep.sweep.run_state import run_states
    from raysweep.sweep.stored import load_stored, stored_names
    from raysweep.sweep.under_way import UnderWay

    root = storage_root(storage)
    found: list[dict[str, Any]] = []
    for name in stored_names(root):
        try:
            by, error = holder(root / name), None
            states = run_states(with_made(load_stored(root / name)))
            if by is not None:
                UnderWay.read(root / name).put(states)
            counted = counts(states)
        except DataError as broken:
            by, error, counted = None, str(broken), {}
        found.append({"name": name, "counts": counted, "launched_by": by, "error": error})
    if json:
        print_json({"storage": str(root), "sweeps": found})
        return
    if not found:
        typer.echo(f"no sweep has been launched into {root}; --storage names another folder")
        return
    width = max(len(one["name"]) for one in found)
    for one in found:
        by = f"; being launched by {one['launched_by']}" if one["launched_by"] else ""
        typer.echo(f"{one['name']:<{width}}  {one['error'] or told(one['counts']) + by}")


def _time(name: str, storage: Path | None, *, json: bool) -> None:
    """Print where the time of a sweep went."""
    from raysweep.sweep.spent import spent

    found = spent(results_of(name, storage).directory)
    if json:
        print_json(found.to_dict())
        return
    table = Table(show_edge=False, pad_edge=False, box=None, header_style="bold")
    table.add_column("what took time")
    for heading in ("times", "seconds", "processor s", "share"):
        table.add_column(heading, justify="right")
    whole = found.cpu_seconds
    for part in found.parts:
        share = "" if not whole or part.cpu_seconds is None else f"{part.cpu_seconds / whole:.1%}"
        table.add_row(
            part.name, f"{part.number:,}", _seconds(part.seconds), _seconds(part.cpu_seconds), share
        )
    counted, launches = found.launches
    if counted:
        table.add_row("all, from start to end", f"{counted:,}", _seconds(found.seconds), _seconds(whole), "")
    console().print(table)
    if counted < launches:
        typer.echo(f"launches that have not told their phases: {launches - counted} of {launches}")
    if found.busy is not None:
        typer.echo(f"{count(found.processors or 0, 'processor')}, busy for {found.busy:.0%} of the time")
    typer.echo("seconds of works that went on at once are added up")


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"


@dataclass(frozen=True)
class _Standing:
    """The state of a sweep at one moment."""

    sweep: Sweep
    states: list[RunState]
    launched_by: str | None
    under_way: UnderWay
    failed: dict[str, FailureRecord]
    changes: Changes
    notes: list[str]
    #: The file of the latest launch, whose runs these are; None for those of a file as it is now.
    launched: Path | None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        from raysweep.evaluation.metric import numbers
        from raysweep.sweep.counted import counts
        from raysweep.sweep.samples import trials

        return {
            "name": self.sweep.name,
            "directory": str(self.sweep.directory),
            "launched_by": self.launched_by,
            "share": self.under_way.share,
            "seconds_left": self.under_way.left,
            "counts": counts(self.states),
            "runs": [
                {
                    "run_id": state.run_id,
                    "name": state.label,
                    "state": state.state,
                    "step": state.step,
                    "steps": state.steps,
                    "tokens_per_second": state.tokens_per_second,
                    "mfu": state.mfu,
                    "seconds": state.seconds,
                    "evaluated": state.evaluated,
                    "metrics": numbers(state.metrics),
                    "failure": self.failed[state.run_id].message if state.run_id in self.failed else None,
                }
                for state in self.states
            ],
            "samples": [trial.to_dict() for trial in trials(self.sweep)],
            "notes": self.notes,
            "no_longer_in_file": [stray.to_dict() for stray in self.changes.strays()],
            "in_other_files": dict(self.changes.elsewhere),
        }

    @property
    def _progress(self) -> str:
        """The share of all work and the time left, as far as the launch has told them."""
        share = "" if self.under_way.share is None else f"; {percent(self.under_way.share)} of all work"
        return share + (f", {between(*self.under_way.left)} left" if self.under_way.left else "")

    def shown(self, width: int, *, all_: bool, limit: int | None = None) -> RenderableType:
        """Return what a person reads; more than `MANY` runs are summarised unless `all_` are wanted.

        With a `limit`, a table has so many runs at most.
        """
        from raysweep.report.best import best_tables
        from raysweep.sweep.changes import stray_lines
        from raysweep.sweep.counted import summary

        parts: list[RenderableType] = []
        if self.launched_by is not None:
            parts.append(Text(f"being launched by {self.launched_by}{self._progress}"))
        if len(self.states) > MANY and not all_:
            axes = {spec.run_id: spec.axes for spec in self.sweep.runs}
            parts += map(_line, summary(self.states, axes))
            parts.append(_line("--all lists every run"))
        else:
            parts.append(runs_table(self.states, width=width, limit=limit, ids=True))
            for run_id, failure in self.failed.items():
                how = "cancelled" if failure.cancelled else "failed"
                parts.append(_line(f"{how}: {run_id}: {failure.message}"))
        for found in best_tables(self.sweep):
            parts += [_line(f"{found.title}:"), best_table(found)]
        parts += (_line(f"note: {line}") for line in self.notes)
        strays, elsewhere = self.changes.strays(), self.changes.elsewhere
        parts += map(_line, stray_lines(strays, elsewhere, limit=40, launched=self.launched))
        return Group(*parts)


def _line(text: str) -> Text:
    """Return a line that is neither wrapped nor cut, however narrow a pipe is taken to be."""
    return Text(text, no_wrap=True, overflow="ignore")


def _look(name: str, storage: Path | None) -> _Standing:
    from raysweep.sweep.changes import Changes
    from raysweep.sweep.lock import holder
    from raysweep.sweep.remarks import remarks
    from raysweep.sweep.run_state import run_states
    from raysweep.sweep.snapshot import Snapshot
    from raysweep.sweep.starts import failures, starts
    from raysweep.sweep.under_way import UnderWay

    # Each look sees what is new.
    with forgotten():
        sweep = results_of(name, storage)
        snapshot = Snapshot.of(sweep)
        waits = starts(sweep, snapshot=snapshot)
        launched_by = holder(sweep.directory)
        under_way = UnderWay() if launched_by is None else UnderWay.read(sweep.directory)
        states = run_states(sweep, snapshot, waits)
        under_way.put(states)
        return _Standing(
            sweep=sweep,
            states=states,
            launched_by=launched_by,
            under_way=under_way,
            failed=failures(sweep, waits),
            changes=Changes(sweep.ledger(), sweep),
            notes=remarks(sweep, snapshot),
            launched=None if names_a_file(name) else _from_here(sweep.path),
        )


def _from_here(path: Path) -> Path:
    """Return a path as people write it: relative to where they are, if it is below."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _watch(name: str, storage: Path | None, out: Console, every: float, *, all_: bool) -> list[RunState]:
    """Show each change until no run is left or nobody is at work, and return the last states.

    A pipe gets changes of state, new measurements, and a sign of life once a minute.
    """
    draws = out.is_terminal and not out.is_dumb_terminal
    redrawn = Live(console=out, auto_refresh=False) if draws else None
    before: object = None
    spoke, idle = -math.inf, False
    if redrawn is not None:
        redrawn.start()
    try:
        while True:
            found = _look(name, storage)
            # A screen that is redrawn has room for so many.
            limit = None if redrawn is None else max(5, out.height - 10)
            shown = found.shown(out.width, all_=all_, limit=limit)
            if redrawn is not None:
                redrawn.update(Group(shown, Text(f"{datetime.now():%H:%M:%S}", style="dim")), refresh=True)
            else:
                # Steps go on all the time, so they are no news.
                news = (
                    found.launched_by,
                    [
                        (row.run_id, row.state, row.evaluated, len(row.metrics), row.trouble)
                        for row in found.states
                    ],
                )
                if news != before or time.monotonic() - spoke >= HEARTBEAT:
                    typer.echo(f"{'' if before is None else chr(10)}{datetime.now():%H:%M:%S}")
                    out.print(shown, crop=False)
                    before, spoke = news, time.monotonic()
            # States are read before the launch is looked for, and it may have ended in between.
            if all(state.state in OVER for state in found.states) or (idle and found.launched_by is None):
                return found.states
            idle = found.launched_by is None
            time.sleep(every)
    finally:
        if redrawn is not None:
            redrawn.stop()
