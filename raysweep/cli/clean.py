"""`raysweep clean`: the checkpoints of a sweep that may go."""

from __future__ import annotations

from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from raysweep.cli.options import JsonOption, NameArgument, StorageOption, find, print_json
from raysweep.sweep.units import count, size

if TYPE_CHECKING:
    from raysweep.sweep import Sweep
    from raysweep.sweep.keeping import Keep, Kept

#: Most runs that are listed.
_LISTED = 40


class What(StrEnum):
    """The checkpoints that stay."""

    LAST = "last"
    NONE = "none"


def clean(
    name: NameArgument,
    keep: Annotated[
        What, typer.Option("--keep", help="Keep the newest checkpoint of each run, or none of finished runs.")
    ] = What.LAST,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Delete them; without it nothing is.")] = False,
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Print which checkpoints of a sweep may go, with their sizes, and delete them with --yes.

    A checkpoint stays if a missing evaluation, a training that resumes, or another run that starts from it
    needs it.  All measurements stay.  What asks for a checkpoint that is gone has no model (`evaluate`,
    `export-model`, `init_from` of new runs) or trains it again (a launch with new evaluations); without the
    newest one, a run with more steps begins anew.

    `keep: last` or `keep: none` in a sweep file lets its launches do this as they go.

    Examples:

        raysweep clean scaling

        raysweep clean scaling --keep none --yes
    """
    from raysweep.sweep.lock import SweepLock

    sweep = find(name, storage)
    if not yes:
        _print(sweep, _standing(sweep, keep), keep, deleted=False, json=json)
        return
    with SweepLock(sweep.directory):
        from raysweep.sweep.keeping import discard

        # What is seen under the lock is what is deleted.
        found = _standing(sweep, keep)
        for run_id, kept in found.items():
            discard(sweep.ledger().open(run_id), kept)
    _print(sweep, found, keep, deleted=True, json=json)


def _standing(sweep: Sweep, keep: What) -> dict[str, list[Kept]]:
    """Return the checkpoints of each run that has some."""
    from raysweep.sweep.keeping import Needs, standing

    needs, ledger = Needs(sweep), sweep.ledger()
    wanted: Keep = "last" if keep is What.LAST else "none"
    found = {
        spec.run_id: standing(ledger.open(spec.run_id), spec, wanted, needs.of(spec.run_id))
        for spec in sweep.runs
        if spec.trains
    }
    return {run_id: kept for run_id, kept in found.items() if kept}


def _print(sweep: Sweep, found: dict[str, list[Kept]], keep: What, *, deleted: bool, json: bool) -> None:
    every = [kept for of_run in found.values() for kept in of_run]
    going = [kept for kept in every if not kept.why]
    if json:
        print_json(
            {
                "sweep": sweep.name,
                "keep": keep.value,
                "deleted": deleted,
                "bytes": sum(kept.bytes for kept in going),
                "checkpoints": [kept.to_dict() for kept in every],
            }
        )
        return
    total = f"{count(len(every), 'checkpoint')}, {size(sum(kept.bytes for kept in every))}"
    share = f"{len(going):,}, {size(sum(kept.bytes for kept in going))}"
    typer.echo(f"{sweep.name}: {total}; {'deleted' if deleted else 'may go'}: {share}")
    leaving = {run_id: [k for k in kept if not k.why] for run_id, kept in found.items()}
    listed = [(run_id, kept) for run_id, kept in leaving.items() if kept]
    for run_id, kept in listed[:_LISTED]:
        steps = ", ".join(str(k.step) for k in kept)
        typer.echo(f"  {run_id}  {size(sum(k.bytes for k in kept))}: {_steps(len(kept))} {steps}")
    if len(listed) > _LISTED:
        typer.echo(f"  ... and {count(len(listed) - _LISTED, 'more run')}")
    reasons = Counter(kept.why for kept in every if kept.why)
    for why, number in reasons.most_common(_LISTED):
        typer.echo(f"  {'stays' if number == 1 else 'stay'}: {number:,}, {why}")
    if going and not deleted:
        typer.echo(
            "without them: `evaluate`, `export-model` and `init_from` find no model of these steps, and a "
            "launch with new evaluations trains them again; to delete them: --yes"
        )


def _steps(number: int) -> str:
    return "step" if number == 1 else "steps"
