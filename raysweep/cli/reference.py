"""`raysweep schema`, `kinds`: all that a sweep file may say."""

from __future__ import annotations

import json as json_
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from raysweep.cli import complete
from raysweep.cli.options import JsonOption, print_json
from raysweep.cli.output import console

if TYPE_CHECKING:
    from raysweep.sweep.kinds import FieldFacts


def schema() -> None:
    """Print the JSON Schema of sweep files, for editors; kinds of plug-ins are in it.

    An editor with a YAML language server completes and checks a sweep file whose first line is

        # yaml-language-server: $schema=raysweep.schema.json

    Example:

        raysweep schema > raysweep.schema.json
    """
    from raysweep.sweep.schema import as_text, sweep_schema

    typer.echo(as_text(sweep_schema()))


def kinds(
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="[KIND]",
            help="A kind, or pretrain, init_from, seeds or resources; FAMILY.KIND where two share a name.",
            show_default="all kinds, a line each",
            autocompletion=complete.kinds,
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print the kinds of languages, models, algorithms and evaluations; with a KIND, its fields.

    Examples:

        raysweep kinds

        raysweep kinds trace
    """
    from raysweep.sweep.kinds import kind_facts, overview

    out = console(pipe_width=120)
    if kind is None:
        found = overview()
        if json:
            print_json(found)
            return
        for family, meanings in found.items():
            out.print(family, style="bold")
            table = Table.grid(padding=(0, 2))
            for name, meaning in meanings.items():
                table.add_row(f"  {name}", meaning)
            out.print(table)
        return
    facts = kind_facts(kind)
    if json:
        print_json([one.to_dict() for one in facts])
        return
    for one in facts:
        out.print(f"{one.family} {one.kind}", style="bold")
        out.print(f"{one.meaning}\n")
        if one.fields:
            out.print(_fields(one.fields))
        for name, fields in one.parts.items():
            out.print(f"\na mapping in {name} has")
            out.print(_fields(fields))
        typer.echo(f"\nFor example:\n\n{one.example}\n")


def _fields(fields: Sequence[FieldFacts]) -> Table:
    """Return a table of fields."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("field", no_wrap=True)
    table.add_column("type", ratio=2)
    table.add_column("default", ratio=1)
    table.add_column("meaning", ratio=4)
    for field in fields:
        default = "needed" if field.needed else json_.dumps(field.default, ensure_ascii=False)
        table.add_row(field.name, field.type, default, field.meaning)
    return table
