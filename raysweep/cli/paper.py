"""`raysweep paper`: the suite of the paper's figures and tables, its state, its launches and its results."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from raysweep.cli.flowing import Commands
from raysweep.cli.options import FolderOption, JsonOption, RetryOption, StorageOption, print_json
from raysweep.cli.output import console, say
from raysweep.engine.interrupt import INTERRUPTED
from raysweep.errors import ConfigError, RaysweepError
from raysweep.sweep.storage import storage_root

if TYPE_CHECKING:
    from raysweep.sweep.suite import Member

app = Commands(
    invoke_without_command=True,
    help="List the paper's figures and tables with their state; launch the small ones, keep their results.",
)

FilesArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="[FILE]...", help="Files of the suite, e.g. fig1-small.", show_default=False),
]
#: Exit codes of launches, the gravest first.
_GRAVEST = (1, 2, 4, 3)
#: Signals that a launch knows how to end with.
_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@app.callback()
def overview(
    context: typer.Context,
    storage: StorageOption = None,
    folder: FolderOption = None,
    json: JsonOption = False,
) -> None:
    """List the sweeps of the paper's figures and tables, with their state in the storage and their verdicts.

    Examples:

        raysweep paper

        raysweep paper run fig1-small

        raysweep paper collect
    """
    if context.invoked_subcommand is not None:
        given = [f"--{name}" for name in ("storage", "folder", "json") if _given(context, name)]
        if given:
            command = context.invoked_subcommand
            raise ConfigError(f"{', '.join(given)}: belongs after the command: raysweep paper {command} ...")
        return
    from raysweep.report.suite import newest
    from raysweep.report.suite_tables import in_short
    from raysweep.sweep.suite import suite

    entries = newest(suite(folder), storage_root(storage))
    if json:
        found = [
            {
                "file": str(entry.member.path),
                "name": entry.member.name,
                "state": entry.standing.state,
                "runs": entry.standing.runs,
                "done": entry.standing.done,
                "failed": entry.standing.failed,
                "paper": None if entry.member.paper is None else entry.member.paper.encode(),
                "committed": entry.member.results.is_dir(),
                "remarks": entry.remarks,
                "verdicts": list(entry.verdicts),
            }
            for entry in entries
        ]
        print_json({"storage": str(storage_root(storage)), "files": found})
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("file", "in the paper", "state", "verdicts"):
        table.add_column(heading, no_wrap=heading == "file")
    for entry in entries:
        paper = entry.member.paper
        said, state = [*map(in_short, entry.verdicts)], entry.standing.words
        if entry.standing.state == "not run" and entry.result is not None:
            state, said = f"{state}; committed", said + entry.remarks
        table.add_row(entry.member.stem, "" if paper is None else paper.place, state, "\n".join(said))
    console(pipe_width=160).print(table)


def _given(context: typer.Context, name: str) -> bool:
    """Return whether an option was on the command line; the environment may hold it too."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


@app.command("run", epilog="Example: raysweep paper run fig1-small fig2a-small")
def run(
    files: FilesArgument = None,
    storage: StorageOption = None,
    folder: FolderOption = None,
    retry_failed: RetryOption = False,
) -> None:
    """Launch what is missing of the small sweeps, or of those named, one after the other.

    Each is launched as `raysweep launch` does, so the same command goes on after an interruption.  A sweep
    that fails is named, and the others go on.  Exit codes are those of a launch, the gravest of all.
    """
    from raysweep.sweep.suite import chosen, opened, standing, suite

    members, root = suite(folder), storage_root(storage)
    picked = [m for m in chosen(members, files or ()) if files or m.small]
    if not picked:
        raise ConfigError(f"{members[0].path.parent}: has no small sweeps (*-small.yaml); name a file")
    codes: dict[str, int] = {}
    for k, member in enumerate(picked):
        try:
            if standing(opened(member, root)).state == "done":
                say(f"{member.stem}: nothing to do")
                continue
        except RaysweepError as error:
            say(f"{member.stem}: {error}")
            codes[member.stem] = error.exit_code
            continue
        say(f"{member.stem}: launched, {k + 1} of {len(picked)}")
        code, ended = _launched(member, root, retry_failed)
        if ended or code == INTERRUPTED:
            say("interrupted; the same command continues from there")
            raise typer.Exit(INTERRUPTED)
        if code:
            codes[member.stem] = code
    for stem, code in codes.items():
        again = "--retry-failed tries its failed runs again" if code == 3 else "the same command continues"
        say(f"{stem}: ended with exit code {code}; {again}")
    grave = [code for code in _GRAVEST if code in codes.values()]
    if codes:
        # A launch that a signal has ended is one that is not finished.
        raise typer.Exit(grave[0] if grave else 4)


def _launched(member: Member, storage: Path, retry_failed: bool) -> tuple[int, bool]:
    """Launch a file in a process of its own; return its exit code, and whether it was asked to end."""
    words = [
        sys.executable,
        "-m",
        "raysweep.cli",
        "launch",
        str(member.path),
        "--storage",
        str(storage),
        "--yes",
    ]
    child: subprocess.Popen[bytes] | None = None
    ended, early = False, list[int]()

    def pass_on(number: int, frame: FrameType | None) -> None:
        nonlocal ended
        ended = True
        if child is None:
            early.append(number)
        else:
            child.send_signal(number)

    # Before there is a child: a signal at that moment would end this process and leave the launch alone.
    before = {number: signal.signal(number, pass_on) for number in _PASSED_ON}
    try:
        # In a group of its own, the launch gets the signals of a terminal once, from here.
        child = subprocess.Popen([*words, *(["--retry-failed"] * retry_failed)], process_group=0)
        for number in early:
            child.send_signal(number)
        code = child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return code, ended


@app.command("collect", epilog="Example: raysweep paper collect")
def collect(files: FilesArgument = None, storage: StorageOption = None, folder: FolderOption = None) -> None:
    """Write the results of finished sweeps from the storage beside their files, and the tables of README.

    Each gets results/FILE/ in the folder of the suite: the tidy table (parquet), the figures of its claims
    (SVG), and result.json with verdicts and provenance.  A file that is named is written as it stands, also
    unfinished; its result says so.
    """
    from raysweep.report.committed import Software, result_of, write_result
    from raysweep.report.suite_tables import committed, write_readme
    from raysweep.sweep.provenance import provenance
    from raysweep.sweep.suite import chosen, opened, standing, suite

    members, root = suite(folder), storage_root(storage)
    # Asked before anything is written, which would change the checkout.
    software = Software.of(provenance())
    for member in chosen(members, files or ()):
        sweep = opened(member, root)
        found = standing(sweep)
        if sweep is None or (found.state != "done" and not files):
            if found.state != "not run":
                say(f"{member.stem}: {found.words}: left out; name it to keep its results as they stand")
            continue
        result = result_of(member, sweep, found, software)
        if result is not None:
            typer.echo("\n".join(map(str, write_result(result, member.results))))
    missing = [m.stem for m in chosen(members, files or ()) if files and not m.results.is_dir()]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: nothing was measured in {root}; launch it first")
    readme = members[0].path.parent / "README.md"
    if readme.is_file():
        write_readme(readme, committed(members))
        typer.echo(readme)
