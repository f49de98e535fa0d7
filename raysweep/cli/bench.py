"""`raysweep bench`: raysweep beside its peers, the same work in one run on one machine."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysweep.cli.flowing import Commands
from raysweep.cli.options import JsonOption, check_output, print_json, writing
from raysweep.cli.output import console, say

if TYPE_CHECKING:
    from raysweep.bench.record import Record

app = Commands(no_args_is_help=True, help="Compare raysweep with other libraries on the same work.")

#: Help of the suites, by name.
SUITES = {
    "exact": "Measure sampling, exact conditionals, entropies and labels of the languages.\n\n"
    "The results of every peer are checked against raysweep's before anything is timed.  A peer with other "
    "results is not timed, and the exit code is 3.  A peer that is not installed is listed with the "
    "command that installs it.",
    "train": "Measure pre-training beside Hugging Face's BertForMaskedLM.\n\n"
    "Both have the same sentences, masked words, shape, vocabulary, dropout and optimizer.  Before "
    "anything is timed, their losses over several steps without dropout are checked to be equal.  A peer "
    "with other losses is not timed, and the exit code is 3.",
    "trace": "Measure the Fisher trace beside other ways to it, at equal accuracy.\n\n"
    "The figure is the cost of a trace to 1 % relative standard error.  Before anything is timed, gradient "
    "norms, or products with the Gauss-Newton matrix, are checked to be equal.  A peer with other results is "
    "not timed, and the exit code is 3.  A peer that is not installed is listed with the command that "
    "installs it.",
    "downstream": "Measure transfer to downstream tasks beside other libraries.\n\n"
    "Fine-tuning is beside Hugging Face's BertForSequenceClassification: the same weights, head, sentences, "
    "dropout and optimizer.  Before anything is timed, losses over several steps without dropout are checked "
    "to be equal.  Linear probes are beside a loop over seeds and tasks, and beside scikit-learn, whose "
    "answers or accuracies are compared.  A peer with other results is not timed, and the exit code is 3.",
    "growth": "Measure how time and memory grow with the size of the work, one size at a time.\n\n"
    "The exponent of time stands beside that of the necessary operations.  What grows faster than these "
    "misses its goal.  There are no peers.",
}

OutputOption = Annotated[
    Path | None,
    typer.Option(
        "--output",
        metavar="FILE",
        help="Write the record to FILE, as JSON; a name without an ending is a folder, and the file in it "
        "has the name of the processor.",
    ),
]


class DeviceName(StrEnum):
    """A device of a suite's cases."""

    cpu = "cpu"
    cuda = "cuda"


@app.callback()
def _group() -> None:
    """Commands about benchmarks."""


def _command(suite: str) -> Callable[..., None]:
    """Return the command of a suite."""

    def command(
        only: Annotated[
            list[str] | None,
            typer.Option("--only", metavar="CASE", help="Run this case only; may be repeated."),
        ] = None,
        quick: Annotated[
            bool, typer.Option("--quick", help="Small sizes: they show that a suite works, not how fast.")
        ] = False,
        threads: Annotated[int, typer.Option("--threads", min=1, help="Threads of every contestant.")] = 1,
        device: Annotated[
            DeviceName,
            typer.Option("--device", help="Run the cases of this device; `train` has some on cuda."),
        ] = DeviceName.cpu,
        strict: Annotated[
            bool, typer.Option("--strict", help="End with exit code 3 where a peer is absent, too.")
        ] = False,
        output: OutputOption = None,
        json: JsonOption = False,
    ) -> None:
        from raysweep.bench.suites import judge, measure

        _check(output)
        record = measure(suite, only or [], quick=quick, threads=threads, device=device.value)
        _show(record, output, json=json)
        judge(record, strict=strict)

    return command


def _check(output: Path | None) -> None:
    """Check that a record can be written, before anything is measured; raises `ConfigError`."""
    if output is None or output.is_dir():
        return
    if output.suffix:
        check_output(output)
    else:
        with writing(output):
            output.mkdir(parents=True)


def _show(record: Record, output: Path | None, *, json: bool) -> None:
    """Write a record to its file, if there is one, and print it."""
    from raysweep.bench.record import RESULTS, of_suite, save
    from raysweep.bench.table import terminal

    others = of_suite(record.suite) if (RESULTS / record.suite).is_dir() else ()

    if output is not None:
        with writing(output):
            save(record, output)
    if json:
        print_json(record.encode())
    else:
        console().print(terminal(record, others))


for _suite, _help in SUITES.items():
    _example = f"Example: raysweep bench {_suite} --output {_suite}.json"
    app.command(_suite, help=_help, epilog=_example)(_command(_suite))


@app.command("engine", epilog="Example: raysweep bench engine --output engine.json")
def engine(
    runs: Annotated[
        int | None,
        typer.Option(
            "--runs",
            min=4,
            help="Runs of the sweep.  From 100 on, of lanes alone, with the growth of time and memory.",
            show_default="8",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Launches of every engine.")] = 3,
    quick: Annotated[
        bool, typer.Option("--quick", help="A small sweep in one round: shows that it works, not how fast.")
    ] = False,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Measure the cost of short runs in a sweep, beside a bare loop of pre-training in one process.

    Every engine launches the same small sweep in turn.  Their tidy tables and weights are compared first.
    Where they differ, the exit code is 3.
    """
    from raysweep.bench.engine import measure
    from raysweep.bench.suites import judge

    _check(output)
    record = measure(runs=runs, rounds=rounds, quick=quick, say=say)
    _show(record, output, json=json)
    judge(record, strict=True)


@app.command("chaos", epilog="Example: raysweep bench chaos --kills 20 --seed 1 --output chaos.json")
def chaos(
    kills: Annotated[int, typer.Option("--kills", min=1, help="Faults to apply.")] = 20,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the faults and their moments.")] = 0,
    minutes: Annotated[
        float,
        typer.Option("--minutes", min=0, help="Apply no fault later than this; finish the sweep at hand."),
    ] = 1440.0,
    onto: Annotated[
        Path | None,
        typer.Option("--onto", metavar="FILE", help="Add the sweeps to a record of this machine."),
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Apply random faults to a small sweep, and compare its results with those of an undisturbed launch.

    The sweep is launched again after each end until it is done.  Signals hit its processes, its disk fills,
    and its files are torn.  Where the tidy table or the points of MLflow differ, the exit code is 3.
    """
    from raysweep.bench.chaos import appendable, joined, judge, measure
    from raysweep.bench.record import load

    _check(output)
    earlier = load(onto) if onto is not None else None
    if earlier is not None:
        appendable(earlier)
    record = measure(kills=kills, seed=seed, seconds=60.0 * minutes)
    if earlier is not None:
        record = joined(earlier, record)
    _show(record, output, json=json)
    judge(record)


@app.command("statistics", epilog="Example: raysweep bench statistics --output statistics.json")
def statistics(
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the simulated sweeps.")] = 0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few sweeps: shows that it works, not how well intervals hold.")
    ] = False,
    processes: Annotated[
        int | None,
        typer.Option(
            "--processes",
            min=1,
            help="Processes of one thread each; the record does not depend on them.",
            show_default="as many as there are cores",
        ),
    ] = None,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Measure coverage, level and power of the report's intervals and tests on simulated sweeps.

    It shows its progress.  `--quick` takes a minute or two.
    """
    from raysweep.bench.statistics import measure

    _check(output)
    _show(measure(quick=quick, seed=seed, processes=processes, say=say), output, json=json)


@app.command("scale", epilog="Example: raysweep bench scale --gpus 1000 --runs 10000 --price 2.5")
def scale(
    gpus: Annotated[int, typer.Option("--gpus", min=1, help="GPUs of the cluster.")] = 1000,
    runs: Annotated[int, typer.Option("--runs", min=1, help="Runs of the sweep.")] = 10_000,
    price: Annotated[
        float | None, typer.Option("--price", metavar="AMOUNT", min=0, help="Price of a GPU for an hour.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Few runs and calls: shows that it works, not what they cost.")
    ] = False,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Measure what a run costs the parts that a launch has once, and say at how many GPUs they are full.

    The costs are measured on this machine, by short runs, calls and points.  What follows for a cluster is
    arithmetic.  It takes some five minutes.
    """
    from raysweep.bench.scale import measure

    _check(output)
    _show(measure(gpus=gpus, runs=runs, price=price, quick=quick, say=say), output, json=json)


@app.command("table", epilog="Example: raysweep bench table --suite train --write")
def table(
    record: Annotated[
        Path | None,
        typer.Argument(metavar="[RECORD]", help="A record; by default those that come with raysweep."),
    ] = None,
    suite: Annotated[str, typer.Option(help="The suite of the records that come with raysweep.")] = "exact",
    write: Annotated[bool, typer.Option("--write", help="Put the table into a file instead.")] = False,
    into: Annotated[
        Path | None,
        typer.Option(
            "--into",
            metavar="FILE",
            help="The file; it holds <!-- bench:SUITE --> and <!-- /bench:SUITE -->.",
            show_default="raysweep/bench/README.md",
        ),
    ] = None,
) -> None:
    """Print the table of a record as Markdown, or put it into a file between two comments.

    Of the records that come with raysweep, that of the newest is whole, and the others stand beside it.
    """
    from raysweep.bench import table as tables
    from raysweep.bench.record import load, of_suite

    found = of_suite(suite) if record is None else [load(record)]
    if write or into is not None:
        tables.write(into or tables.README, *found)
    else:
        typer.echo(tables.markdown(*found), nl=False)
