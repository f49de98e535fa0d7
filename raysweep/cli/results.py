"""`raysweep report`, `export`, `ui`: the results of a sweep."""

from __future__ import annotations

import shlex
import sys
import webbrowser
from collections.abc import Sequence
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from raysweep.cli import complete
from raysweep.cli.options import (
    FolderOption,
    NameArgument,
    StorageOption,
    TrackingOption,
    check_output,
    find,
    results_of,
    writing,
)
from raysweep.cli.output import console, say
from raysweep.errors import ConfigError
from raysweep.remote import local_place
from raysweep.sweep.storage import open_directory, storage_flag, storage_root

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.report import Verdict
    from raysweep.report.best import Best
    from raysweep.sweep import Sweep
    from raysweep.sweep.snapshot import Snapshot


#: Columns that a narrow terminal leaves out.
_SPARED = ("parameters", "seeds", "step")
#: Characters between two columns.
_BETWEEN = 2


def make_report(
    sweep: Sweep,
    frame: pd.DataFrame,
    path: Path | None = None,
    *,
    tolerance: float | None = None,
    figures: Path | None = None,
    verdicts: Sequence[Verdict] | None = None,
    snapshot: Snapshot | None = None,
) -> Path:
    """Write the report of a sweep, with files of its figures in a folder if one is named; return its path.

    `verdicts` are those of the sweep, and `snapshot` has its records, where they are known already.
    """
    from raysweep.report import write_report

    page = path or sweep.directory / "report.html"
    return write_report(
        sweep, frame, page, tolerance=tolerance, figures=figures, verdicts=verdicts, snapshot=snapshot
    )


def print_summary(sweep: Sweep, frame: pd.DataFrame, page: Path, verdicts: Sequence[Verdict]) -> None:
    """Print the small table at the end of a launch and the verdicts, and where the rest is."""
    from raysweep.report.best import best_tables
    from raysweep.report.summary import summary

    out = console(pipe_width=120)
    for searched in best_tables(sweep):
        print_best(searched)
    found = summary(frame)
    kept = [k for k, name in enumerate(found.headings) if out.width >= 100 or name not in _SPARED]
    rows = [[row[k].replace(" ± ", "±") for k in kept] for row in found.rows]
    headings = [found.headings[k] for k in kept]
    # A pipe has whole sentences in a line.
    piped = not out.is_terminal
    if rows:
        out.print(f"{found.title}:", soft_wrap=piped)
    for columns in _abreast([headings, *rows], out.width) if rows else []:
        table = Table(box=None, pad_edge=False, header_style="bold")
        for k in columns:
            table.add_column(
                headings[k],
                justify="right" if k else "left",
                no_wrap=k > 0,
                overflow="fold",
                max_width=None if k else _widest(out.width),
            )
        for row in rows:
            table.add_row(*[row[k] for k in columns])
        out.print(table)
    for verdict in verdicts:
        out.print(verdict.sentence, soft_wrap=piped)
    typer.echo(f"report: {page}")
    typer.echo(f"MLflow: raysweep ui {shlex.quote(sweep.name)}{storage_flag(sweep.storage)}")


def best_table(found: Best) -> Table:
    """Return the table of the best samples of a search."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for k, heading in enumerate(found.headings):
        table.add_column(heading, justify="left" if k + 1 == len(found.headings) else "right", no_wrap=True)
    for row in found.rows:
        table.add_row(*[cell.replace(" ± ", "±") for cell in row])
    return table


def print_best(found: Best) -> None:
    """Print the best samples of a search."""
    typer.echo(f"{found.title}:")
    console(pipe_width=120).print(best_table(found))


def _widest(width: int) -> int:
    """Return the most columns of the terminal that the names of models take; longer ones are wrapped."""
    return max(20, width // 2)


def _abreast(rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Return the columns of each of the tables, one below the other, that a table of these `rows` makes.

    Each begins with the first column and is at most `width` wide, if two columns are not wider already.
    """
    sizes = [max(map(len, column)) + _BETWEEN for column in zip(*rows, strict=True)]
    sizes[0] = min(sizes[0], _widest(width) + _BETWEEN)
    tables: list[list[int]] = []
    for k in range(1, len(sizes)):
        if not tables or sum(sizes[j] for j in [*tables[-1], k]) - _BETWEEN > width:
            tables.append([0])
        tables[-1].append(k)
    return tables


def check_format(output: Path, known: Sequence[str]) -> None:
    """Raise `ConfigError` unless a file to write has one of the `known` endings."""
    if output.suffix not in known:
        choice = " or ".join(filter(None, [", ".join(known[:-1]), known[-1]]))
        raise ConfigError(f"--output {output}: '{output.suffix}' is no known format; use {choice}")


class Format(StrEnum):
    """Kinds of files for figures."""

    PDF = "pdf"
    SVG = "svg"
    PNG = "png"


def report(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME|FILE...",
            help="As for other commands; several are compared.",
            autocompletion=complete.sweeps,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            help="HTML file, or .svg for its headline alone; a folder with --format.",
            show_default="report.html in the sweep's folder",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Excess loss in nats up to which a checkpoint counts as saturated.",
            show_default="that of the sweep file",
        ),
    ] = None,
    format_: Annotated[
        Format | None, typer.Option("--format", help="Write each figure as a file for a paper.")
    ] = None,
    suite: Annotated[
        bool,
        typer.Option("--suite", help="All figures of the paper on one page, as `raysweep paper` lists them."),
    ] = False,
    folder: FolderOption = None,
    storage: StorageOption = None,
) -> None:
    """Write the report: one HTML file that needs no network.  The sweep may still be running.

    Examples:

        raysweep report scaling -o report.html

        raysweep report scaling --format pdf

        raysweep report scaling scaling_hmm

        raysweep report --suite -o paper.html
    """
    from raysweep.sweep.snapshot import Snapshot
    from raysweep.sweep.tidy import tidy

    if suite:
        refused = (
            ["NAME"] * bool(names)
            + ["--format"] * (format_ is not None)
            + ["--tolerance"] * (tolerance is not None)
        )
        if refused:
            raise ConfigError(f"--suite: is the page of all files, without {' and '.join(refused)}")
        _suite(output, folder, storage)
        return
    if folder is not None:
        raise ConfigError("--folder: names the folder of a suite; add --suite")
    if not names:
        raise ConfigError("NAME: missing; name a sweep, or --suite for all of the paper's")
    sweeps = [results_of(name, storage) for name in names]
    if format_ is not None:
        for sweep in sweeps:
            _figures(sweep, output, format_, tolerance, several=len(sweeps) > 1)
        return
    if len(sweeps) > 1:
        _several(sweeps, output, tolerance)
        return
    [sweep] = sweeps
    if output is not None:
        check_format(output, (".html", ".svg"))
        check_output(output)
    snapshot = Snapshot.of(sweep)
    frame = tidy(sweep.ledger(), sweep, snapshot)
    with writing(output) if output is not None else nullcontext():
        typer.echo(make_report(sweep, frame, output, tolerance=tolerance, snapshot=snapshot))


def _figures(
    sweep: Sweep, output: Path | None, kind: Format, tolerance: float | None, *, several: bool
) -> None:
    """Write the figures of a sweep into a folder, its own where there are several sweeps."""
    from raysweep.report import write_figures
    from raysweep.sweep.tidy import tidy

    folder = sweep.directory / "figures" if output is None else output / sweep.name if several else output
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"--output {folder}: is a file; with --format, name a folder")
    with writing(folder):
        found = write_figures(sweep, tidy(sweep.ledger(), sweep), folder, kind, tolerance=tolerance)
    typer.echo("\n".join(map(str, found)) if found else f"{sweep.name}: there is nothing to draw yet")


def _several(sweeps: Sequence[Sweep], output: Path | None, tolerance: float | None) -> None:
    """Write one page that compares sweeps."""
    from raysweep.report import write_several
    from raysweep.sweep.tidy import tidy

    path = output or sweeps[0].storage / f"{'-'.join(sweep.name for sweep in sweeps)}.html"
    check_format(path, (".html",))
    check_output(path)
    frames = [tidy(sweep.ledger(), sweep) for sweep in sweeps]
    with writing(path):
        typer.echo(write_several(sweeps, frames, path, tolerance=tolerance))


def _suite(output: Path | None, folder: Path | None, storage: Path | None) -> None:
    """Write the page of a suite."""
    from raysweep.report.suite import newest, write_suite
    from raysweep.sweep.suite import suite

    root = storage_root(storage)
    path = output or root / "paper.html"
    check_format(path, (".html",))
    if output is not None:
        check_output(output)
    entries = newest(suite(folder), root)
    with writing(path):
        typer.echo(write_suite(entries, path))


def export(
    name: NameArgument,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="File to write: .parquet, .csv or .json.",
            show_default="CSV on standard output",
        ),
    ] = Path("-"),
    storage: StorageOption = None,
) -> None:
    """Write the tidy table: one row per run x milestone x metric; without a file, as CSV.

    Examples:

        raysweep export scaling > cells.csv

        raysweep export scaling -o cells.parquet
    """
    from raysweep.sweep.tidy import tidy

    if output != Path("-"):
        check_format(output, (".parquet", ".csv", ".json"))
        check_output(output)
    sweep = results_of(name, storage)
    frame = tidy(sweep.ledger(), sweep)
    if output == Path("-"):
        typer.echo(frame.to_csv(index=False), nl=False)
        return
    with writing(output):
        match output.suffix:
            case ".parquet":
                frame.to_parquet(output, index=False)
            case ".csv":
                frame.to_csv(output, index=False)
            case _:
                frame.to_json(output, orient="records", indent=2)
    typer.echo(f"{output}: {len(frame)} rows")


def ui(
    name: NameArgument,
    port: Annotated[int, typer.Option(help="Port on 127.0.0.1.", min=1, max=65535)] = 5000,
    open_: Annotated[bool, typer.Option("--open", help="Open the charts in a browser.")] = False,
    storage: StorageOption = None,
    tracking_uri: TrackingOption = None,
) -> None:
    """Serve MLflow on 127.0.0.1 and print links to this sweep's charts and comparison; Ctrl-C ends it.

    The links are printed when the server answers; its own messages go to ui.log in the sweep's folder.  If a
    server tracks the sweep, there is nothing to serve, and only the links are printed.
    """
    from raysweep.tracking import comparison_links, serve, serve_command, served

    sweep = find(name, storage, tracking=tracking_uri)
    links = comparison_links(sweep, f"http://127.0.0.1:{port}")

    def show() -> None:
        width = max(map(len, links))
        # A pipe is not to wait for what a server that goes on has said.
        typer.echo("\n".join(f"{what:<{width}}  {link}" for what, link in links.items()))
        sys.stdout.flush()
        if open_ and not webbrowser.open(links["charts"]):
            say("--open: there is no browser here; open the link of the charts")

    if served(sweep):
        show()
        return
    local = local_place(sweep.directory)
    open_directory(local)
    log = local / "ui.log"
    say(f"starting MLflow on 127.0.0.1:{port}, with its messages in {log}; the links come when it answers")
    serve(serve_command(sweep, port), port, log=log, on_ready=show)
