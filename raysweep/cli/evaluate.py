"""`raysweep evaluate`: the evaluations of a milestone, for any checkpoint or model folder."""

from __future__ import annotations

import json as json_format
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from raysweep.cli import complete
from raysweep.cli.options import JsonOption, StorageOption, check_output, print_json, writing
from raysweep.cli.output import Lines, console, say
from raysweep.errors import ConfigError
from raysweep.sweep.units import duration

if TYPE_CHECKING:
    from raysweep.evaluation.base import Evaluation
    from raysweep.evaluation.metric import Metric
    from raysweep.evaluation.run import Measured


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER|RUN@STEP",
            help="Folder of a checkpoint, of a run (its last checkpoint) or of a Hugging Face model; or a "
            "run of the storage and a step: its name in tables, its id or its beginning, or a pattern (* and "
            "?), also behind SWEEP/.",
            show_default=False,
            autocompletion=complete.models,
        ),
    ],
    evaluate_: Annotated[
        list[str] | None,
        typer.Option(
            "--evaluate",
            "-e",
            metavar="KIND[.FIELD=VALUE]",
            help="Evaluation to make, with its settings; may be repeated.",
            show_default="the evaluations of the run's sweep or of --language; else loss, trace and probe",
            autocompletion=complete.evaluations,
        ),
    ] = None,
    language: Annotated[
        Path | None,
        typer.Option(
            "--language",
            metavar="FILE",
            help="Sweep file, or a file with one language, to evaluate on.  A Hugging Face model is measured "
            "with the evaluations of the sweep file.",
            show_default="the run's own",
            dir_okay=False,
        ),
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Override a field of that file; may be repeated."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="JSON file to write.", show_default="none"),
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or cuda:1.")] = "cpu",
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Measure a checkpoint of raysweep or a Hugging Face folder: loss, trace, Hessian, probe and so on.

    The work is done in this process, without Ray.

    Examples:

        raysweep evaluate results/scaling/runs/64-1-2-256-.../checkpoints/step-00002000

        raysweep evaluate '64/4/2/256 lr 0.003 seed 0@2000' -e hessian.inputs=4096 -e sharpness

        raysweep evaluate '64-*-s0-*@2000' -e probe.train=512 -e finetune.train=512

        raysweep evaluate my-model --language sweeps/scaling.yaml -e trace -e probe -o measured.json
    """
    from raysweep.evaluation import ModelSubject
    from raysweep.evaluation.notes import remarks
    from raysweep.sweep.opened import choose_evaluations, open_model
    from raysweep.sweep.provenance import provenance
    from raysweep.sweep.storage import storage_root

    if output is not None:
        check_output(output)
    _check_device(device)
    opened = open_model(model, storage=storage_root(storage), language=language, overrides=set_ or ())
    evaluations, notes = choose_evaluations(evaluate_ or (), opened)
    for note in notes:
        say(f"note: {note}")
    subject = ModelSubject(opened.language.to(device), opened.load().to(device), training=opened.training)
    measured = list(_measure(evaluations, subject, console(stderr=True)))
    facts = {
        "model": opened.name,
        "language": opened.language.fingerprint,
        "evaluations": [
            {
                "kind": evaluation.key,
                "config": evaluation.encode(),
                "seconds": seconds,
                "metrics": [metric.model_dump() for metric in found.metrics],
                "notes": found.notes,
            }
            for evaluation, found, seconds in measured
        ],
        "provenance": provenance(),
    }
    if output is not None:
        with writing(output):
            output.write_text(json_format.dumps(facts, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if json:
        print_json(facts)
        return
    typer.echo(opened.name)
    # In a pipe, the columns must not be cut off.
    console(pipe_width=160).print(_table([metric for _, found, _ in measured for metric in found.metrics]))
    for evaluation, found, _ in measured:
        for text in remarks(evaluation.key, found.notes):
            typer.echo(f"note: {text}")
    if output is not None:
        typer.echo(f"{output}: written")


def _measure(
    evaluations: Mapping[str, Evaluation], subject: Any, errors: Console
) -> Iterator[tuple[Evaluation, Measured, float]]:
    """Yield every evaluation with its results and its seconds; show the progress on `errors`."""
    from raysweep.evaluation.run import run_evaluation

    for kind, evaluation in evaluations.items():
        start = time.monotonic()
        with _progress(kind, errors) as progress:
            found = run_evaluation(evaluation, subject, progress=progress)
        yield evaluation, found, time.monotonic() - start


@contextmanager
def _progress(kind: str, errors: Console) -> Iterator[Any]:
    """Show a bar on a terminal until the evaluation is done; in a pipe, lines at its beginning and end."""
    if not errors.is_terminal:
        lines, start = Lines(errors), time.monotonic()
        lines.say(f"{kind}: measuring")
        yield lambda done, total: lines.say(f"{kind}: {done} of {total} shards") if lines.silent else None
        lines.say(f"{kind}: measured in {duration(time.monotonic() - start)}")
        return
    bar = Progress(
        TextColumn(kind),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=errors,
        transient=True,
    )
    with bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _table(metrics: list[Metric]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("metric", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("standard error", justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    table.add_column("unit")
    for metric in metrics:
        error = "" if metric.standard_error is None else f"{metric.standard_error:.2g}"
        table.add_row(metric.name, f"{metric.value:.5g}", error, f"{metric.n}", metric.unit)
    return table


def _check_device(name: str) -> None:
    """Raise `ConfigError` for a device that this machine does not have."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        raise ConfigError(f"--device {name}: no such device; use cpu, cuda or cuda:1") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {name}: {torch.cuda.device_count()} GPUs are here; use cpu")
