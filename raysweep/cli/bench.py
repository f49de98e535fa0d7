"""`raysweep bench`: raysweep beside its peers, the same work in one run on one machine."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from raysweep.cli.options import JsonOption, check_output, print_json, writing
from raysweep.errors import RunFailedError

app = typer.Typer(no_args_is_help=True, help="Measure raysweep beside its peers: same work, one run, ratios.")

OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="CASE", help="Run this case only; can be repeated.")
]
QuickOption = Annotated[bool, typer.Option("--quick", help="Small sizes: shows that it works, not how fast.")]
ThreadsOption = Annotated[int, typer.Option("--threads", min=1, help="Threads of every contestant.")]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="FILE", help="Write the record there, as JSON.")
]


class TrainingDevice(StrEnum):
    """Where `bench train` trains."""

    cpu = "cpu"
    cuda = "cuda"


@app.callback()
def _group() -> None:
    """Commands about benchmarks."""


@app.command("exact", epilog="Example: raysweep bench exact --output exact.json")
def exact(
    only: OnlyOption = None,
    quick: QuickOption = False,
    threads: ThreadsOption = 1,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Measure sampling, exact conditionals, entropies and labels of the languages.

    Peers' results are checked against raysweep's before anything is timed; one that is not equal is not
    timed, and the exit code is 3.  Peers come with `pip install 'raysweep[bench]'`.
    """
    _measure("exact", only or [], quick=quick, threads=threads, output=output, json=json)


@app.command("train", epilog="Example: raysweep bench train --output train.json")
def train(
    only: OnlyOption = None,
    quick: QuickOption = False,
    threads: ThreadsOption = 1,
    device: Annotated[
        TrainingDevice, typer.Option("--device", help="Where to train; each has its own cases.")
    ] = TrainingDevice.cpu,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Measure pre-training beside Hugging Face's BertForMaskedLM.

    Same sentences, masked words, shape, vocabulary, dropout and optimizer.  The losses of both are checked
    to be equal over several steps without dropout before anything is timed; a peer whose losses are not is
    not timed, and the exit code is 3.
    """
    _measure("train", only or [], quick=quick, threads=threads, output=output, json=json, device=device.value)


@app.command("trace", epilog="Example: raysweep bench trace --output trace.json")
def trace(
    only: OnlyOption = None,
    quick: QuickOption = False,
    threads: ThreadsOption = 1,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the Fisher trace beside other ways to it, at equal accuracy.

    What is compared is the cost of a trace to 1 % relative standard error.  Gradient norms, or products with
    the Gauss-Newton matrix, are checked to be equal before anything is timed; a peer whose are not is not
    timed, and the exit code is 3.  Peers come with `pip install 'raysweep[bench]'`.
    """
    _measure("trace", only or [], quick=quick, threads=threads, output=output, json=json)


@app.command("table", epilog="Example: raysweep bench table --write README.md")
def table(
    record: Annotated[
        Path | None,
        typer.Argument(metavar="[RECORD]", help="A record; by default the one that comes with raysweep."),
    ] = None,
    suite: Annotated[str, typer.Option(help="Which of the records that come with raysweep.")] = "exact",
    write: Annotated[
        Path | None,
        typer.Option(
            "--write",
            metavar="FILE",
            help="Put it into FILE between <!-- bench:SUITE --> and <!-- /bench:SUITE -->.",
        ),
    ] = None,
) -> None:
    """Print the table of a record as Markdown, or put it into a file."""
    from raysweep.bench import table as tables
    from raysweep.bench.record import RESULTS, load

    found = load(record or RESULTS / f"{suite}.json")
    if write is None:
        typer.echo(tables.markdown(found), nl=False)
    else:
        tables.write(write, found)


def _measure(
    suite: str,
    only: list[str],
    *,
    quick: bool,
    threads: int,
    output: Path | None,
    json: bool,
    device: Literal["cpu", "cuda"] = "cpu",
) -> None:
    from rich.console import Console

    from raysweep.bench.record import save
    from raysweep.bench.suites import measure
    from raysweep.bench.table import terminal

    if output is not None:
        check_output(output)
    record = measure(suite, only, quick=quick, threads=threads, device=device)
    if output is not None:
        with writing(output):
            save(record, output)
    if json:
        print_json(record.encode())
    else:
        Console().print(terminal(record))
    if record.failures:
        raise RunFailedError(f"bench {suite}: not equal to raysweep: {'; '.join(record.failures)}")
