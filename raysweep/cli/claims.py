"""`raysweep match`, `power`: pairs at equal loss, and the data that claims would take."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from raysweep.cli import complete
from raysweep.cli.options import JsonOption, NameArgument, StorageOption, print_json, results_of
from raysweep.cli.output import console
from raysweep.sweep.units import count, duration

if TYPE_CHECKING:
    from rich.console import Console

    from raysweep.report.match import Match
    from raysweep.report.paired import Apart
    from raysweep.report.planning import Plan

#: The least characters of a column that says what differs within a pair.
_LEAST = 32


def match(
    name: NameArgument,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tol",
            min=0,
            help="Nats that two equal losses may differ by, here alone: claims have the tolerance of the "
            "sweep file.",
        ),
    ] = 0.002,
    task: Annotated[
        str | None,
        typer.Option(metavar="TASK", help="Accuracy of this task.", show_default="all tasks"),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Pairs to show.")] = 20,
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """List pairs of checkpoints at equal loss and what differs, the most telling first.

    The sweep may still be running.  Differences are those of the second checkpoint, the flatter one, to the
    first, with 95 % intervals of measuring.  They say nothing about other seeds of training, and those of
    the most telling pairs, which are chosen by what was measured, hold less often.
    """
    from raysweep.report.claims import claim_tolerances
    from raysweep.report.data import measurements
    from raysweep.report.format import shared_ending
    from raysweep.report.match import matches
    from raysweep.sweep.tidy import tidy

    sweep = results_of(name, storage)
    measured = measurements(tidy(sweep.ledger(), sweep))
    every = matches(sweep, measured, tolerance=tolerance, task=task, shown=limit)
    found = every.shown
    if json:
        told = {"pairs": every.total, "compared": every.compared, "checkpoints": every.among}
        print_json({"sweep": sweep.name, **told, "shown": [pair.encode() for pair in found]})
        return
    some = (
        "" if every.compared == every.among else f" among {every.compared:,} of {every.among:,} checkpoints"
    )
    within = f"{count(every.total, 'pair')} within {tolerance:g} nats (--tol){some}"
    shown = f", {len(found)} of {every.total:,} shown" if len(found) < every.total else ""
    typer.echo(within + (f"{shown}, the most telling first:" if found else ""))
    if not found:
        return
    out, ending = console(pipe_width=160), shared_ending(list(measured.sizes))
    headings = [f"Δ {measured.metrics[metric].narrow}" for metric in found[0].differences]
    whats = [_what(pair, ending, _varied(found)) for pair in found]
    rows = [[_between(apart) for apart in pair.differences.values()] for pair in found]
    widths = (max(map(len, column)) for column in zip(headings, *rows, strict=True))
    if sum(2 + width for width in widths) + _LEAST > out.width:
        _print_below(out, headings, list(zip(whats, rows, strict=True)))
    else:
        table = Table(box=None, pad_edge=False, header_style="bold")
        table.add_column("first → second")
        for heading in headings:
            table.add_column(heading, justify="right", no_wrap=True)
        for what, row in zip(whats, rows, strict=True):
            table.add_row(what, *row)
        out.print(table)
    # Pairs are chosen by what was measured.
    typer.echo(
        f"the most telling pairs show more than there is; `raysweep report {sweep.name}` judges all of them"
    )
    if any(not apart.paired for pair in found for apart in pair.differences.values()):
        typer.echo("~: the draws are not stored, so the two numbers count as independent")
    claimed = sorted(claim_tolerances(sweep.questions))
    if claimed and claimed != [tolerance]:
        nats = " or ".join(f"{one:g}" for one in claimed)
        typer.echo(f"claims of this sweep count losses within {nats} nats as equal, by its file")


def _varied(pairs: list[Match]) -> set[str]:
    """Return what differs within a pair, or from one pair to another."""
    values: dict[str, set[str]] = {}
    for pair in pairs:
        for what, value in pair.same.items():
            values.setdefault(what, set()).add(repr(value))
        for what, (first, second) in pair.differs.items():
            values.setdefault(what, set()).update((repr(first), repr(second)))
    return {what for what, found in values.items() if len(found) > 1}


def _print_below(out: Console, headings: list[str], pairs: list[tuple[str, list[str]]]) -> None:
    """Print what differs within each pair, with its differences below, a line each."""
    for what, differences in pairs:
        out.print(what)
        for heading, difference in zip(headings, differences, strict=True):
            out.print(f"  {heading:<{max(map(len, headings))}}  {difference}")


def _what(pair: Match, ending: str, varied: Collection[str] = ()) -> str:
    """Return what differs within a pair, after the size, steps and seeds that it shares.

    `varied` is what differs from one pair to another; the text has that too.  `ending` ends the labels of
    all sizes.
    """
    from raysweep.sweep.tidy import SEEDS

    told = any(axis.startswith("algorithm.") and None not in pair.differs[axis] for axis in pair.differs)
    by_axes = any(axis.startswith("algorithm.") for axis in pair.same)
    shared = [
        f"{what} {_text(value, ending)}"
        for what, value in pair.same.items()
        if what in ("size", "steps", "seed", *SEEDS)
        or (what in varied and value is not None and not (by_axes and what == "algorithm"))
    ]
    apart = [
        f"{what} {_text(a, ending)} → {_text(b, ending)}"
        for what, (a, b) in pair.differs.items()
        # Two runs of a grid differ in its axes alone, so these say what the label would say again.
        if not (told and what == "algorithm")
    ]
    return ", ".join([*shared, *apart])


def _text(value: object, ending: str) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).removesuffix(ending)


def _between(apart: Apart) -> str:
    """Return a difference with its interval where that is known; `~` where its draws are not paired."""
    from raysweep.report.format import number

    low, high = apart.interval
    sign = "+" if apart.value > 0 else ""
    mark = "" if apart.paired else "~"
    interval = "" if math.isnan(low) else f" [{number(low, 2)}, {number(high, 2)}]"
    return f"{mark}{sign}{number(apart.value)}{interval}"


def power(
    name: NameArgument,
    pilot: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            autocompletion=complete.sweeps,
            help="Sweep with the errors.",
            show_default="the sweep as it stands",
        ),
    ] = None,
    effect: Annotated[
        float | None,
        typer.Option(
            min=-1.0,
            max=1.0,
            help="Effect to see: a correlation, or a difference of accuracy.",
            show_default="that of the pilot, or the least one worth mentioning",
        ),
    ] = None,
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Say how many runs each claim of a sweep would take at 80 % power, and how long they would train."""
    from raysweep.report import sweep_verdicts
    from raysweep.report.planning import plans

    sweep = results_of(name, storage)
    source = sweep if pilot is None else results_of(pilot, storage)
    verdicts = sweep_verdicts(source, questions=sweep.questions)
    found = plans(verdicts, sweep, source, effect=effect)
    if json:
        print_json({"sweep": sweep.name, "pilot": source.name, "claims": [plan.encode() for plan in found]})
        return
    if not found:
        typer.echo(
            f"no claims: {source.name} asks none, and has measured too little for the usual ones; "
            "name a finished sweep with --pilot"
        )
    for plan in found:
        typer.echo(f"{plan.claim}:")
        for line in _plan_lines(plan):
            typer.echo(f"  {line}")


def _plan_lines(plan: Plan) -> list[str]:
    """Return what is known of a claim's power."""
    from raysweep.report.verdict import ALPHA, amount

    if plan.effect is None or plan.power is None or plan.detectable is None or plan.alone is None:
        return ["not enough data in the pilot to say"]
    seen, alone = amount(abs(plan.effect), plan.unit), amount(plan.alone, plan.unit)
    among = f", at p ≤ {plan.level:.2g}, as this claim is tested among all ({alone} if it were tested alone)"
    lines = [
        f"{plan.clusters} {plan.units} see {seen} with a probability of {100 * plan.power:.0f} %, and "
        f"{amount(plan.detectable, plan.unit)} with 80 %" + ("" if plan.level == ALPHA else among)
    ]
    if plan.needed is None:
        enough = seen == amount(plan.detectable, plan.unit) or abs(plan.effect) >= plan.detectable
        return lines if enough else [*lines, f"{seen} at 80 % is not to be had by more runs alone"]
    more = max(plan.needed, plan.clusters)
    line = f"{seen} at 80 % takes {more:,} {plan.units}"
    if plan.needed <= plan.clusters:
        return [*lines, f"{line}: no more than there are"]
    if plan.runs is not None and plan.units != "runs":
        line += f", {count(plan.runs, 'run')} in all"
    if plan.seconds is not None:
        line += f": about {duration(plan.seconds)} of work more, one run after another"
    return [*lines, line]
