"""`raysweep diff`."""

from __future__ import annotations

from typing import Annotated

import typer

from raysweep.cli import complete
from raysweep.cli.options import JsonOption, StorageOption, names_a_file, print_json
from raysweep.cli.output import console
from raysweep.sweep.storage import storage_root

_HELP = "A sweep file, the name of a sweep in the storage, or a run by any of its names."


def diff(
    first: Annotated[
        str,
        typer.Argument(metavar="A", help=_HELP, show_default=False, autocompletion=complete.configurations),
    ],
    second: Annotated[
        str,
        typer.Argument(metavar="B", help=_HELP, show_default=False, autocompletion=complete.configurations),
    ],
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Print the fields in which two sweeps differ, or two runs.

    Sweeps are compared as their files say it, runs with all defaults.

    Examples:

        raysweep diff scaling sweeps/scaling.yaml

        raysweep diff 'scaling/64/4/2/256 lr 0.003 seed 0' 'scaling/64/4/2/256 lr 0.008 seed 0'
    """
    from raysweep.sweep.difference import difference, side

    root = storage_root(storage)
    a, b = (side(name, root, is_file=names_a_file(name)) for name in (first, second))
    found = difference(a, b)
    if json:
        print_json(found.to_dict())
        return
    out = console()
    for line in found.lines():
        out.print(line, soft_wrap=True)
