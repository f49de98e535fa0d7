"""`raysweep language`: statistics of a language before training on it, and what can be made from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysweep.cli import language_files
from raysweep.cli.flowing import Commands
from raysweep.cli.generating import shown
from raysweep.cli.options import (
    AddressOption,
    FileArgument,
    JsonOption,
    NameArgument,
    SetOption,
    StorageOption,
    find,
    names_a_file,
    print_json,
    whole,
    whole_from,
)
from raysweep.cli.output import say
from raysweep.errors import ConfigError

if TYPE_CHECKING:
    from raysweep.sweep import Sweep

app = Commands(no_args_is_help=True, help="Show a language before training on it; generate from it.")


@app.callback()
def _group() -> None:
    """Commands about languages."""


#: The default size of labelled sets.
OF_TASKS = "100,000, or --sentences where that is less"


@app.command("show", epilog="Example: raysweep language show sweeps/scaling.yaml")
def show(
    file: NameArgument,
    set_: SetOption = None,
    sentences: Annotated[
        int, typer.Option(help="Number of sentences to measure on.", parser=whole_from(2), metavar="N")
    ] = 4096,
    entropy_sentences: Annotated[
        int | None,
        typer.Option(
            help="Number of them to compute the entropy on; 0 leaves it out.",
            show_default="all; 16 where a conditional costs seconds",
            parser=whole,
            metavar="N",
        ),
    ] = None,
    examples: Annotated[int, typer.Option(help="Number of sentences to print.", min=0)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the sentences.", min=0)] = 0,
    probe: Annotated[
        bool, typer.Option("--probe", help="Also train linear probes on the exact conditionals themselves.")
    ] = False,
    probe_train: Annotated[
        int, typer.Option(help="Sentences to train the probes on.", parser=whole_from(1), metavar="N")
    ] = 10_000,
    probe_test: Annotated[
        int, typer.Option(help="Sentences to test the probes on.", parser=whole_from(1), metavar="N")
    ] = 10_000,
    storage: StorageOption = None,
    json: JsonOption = False,
) -> None:
    """Show lengths, entropy, task label counts and a few sentences of a language.

    FILE is a sweep file, or a YAML file that holds one language (`kind: pcfg`, ...).  Of a sweep in the
    storage, the language of its first run is shown.  Nothing is trained,
    except with `--probe`: linear probes on the look-up table, the model that knows the language exactly.
    """
    from raysweep.languages.describe import as_text, describe
    from raysweep.sweep.language_file import load_language

    if names_a_file(file):
        language = load_language(file, overrides=set_ or ())
    else:
        sweep = find(file, storage, set_)
        language = sweep.language(sweep.runs[0])
    for remark in language.remarks():
        say(f"note: {remark}")
    asked = _probe(language, probe_train, probe_test) if probe else None
    facts = describe(
        language, sentences=sentences, entropy_sentences=entropy_sentences, seed=seed, examples=examples
    )
    if asked is not None:
        facts["probe"] = [metric.model_dump() for metric in asked()]
    if json:
        print_json(facts)
        return
    typer.echo(as_text(facts))
    if asked is not None:
        typer.echo(
            f"\nlinear probes on the exact conditionals ({probe_train} sentences, {probe_test} others)"
        )
        for metric in facts["probe"]:
            error = metric["standard_error"]
            spread = "" if error is None else f" ± {error:.4f}"
            typer.echo(f"  {metric['name']:<20} {metric['value']:.4f}{spread}")


def _probe(language: Any, train: int, test: int) -> Any:
    """Return a function that probes the look-up table; raises `ConfigError` if that is impossible."""
    from raysweep.algorithms import LookupTableConfig
    from raysweep.evaluation import LookupTable
    from raysweep.evaluation.probe import ProbeConfig
    from raysweep.evaluation.run import run_evaluation

    evaluation = ProbeConfig(train=train, test=test)
    obstacles = evaluation.untrained_problems(LookupTableConfig(), language)
    for _, message in obstacles + evaluation.problems(language):
        raise ConfigError(f"--probe: {message}")
    return lambda: run_evaluation(evaluation, LookupTable(language)).metrics


@app.command("generate")
def generate(
    context: typer.Context,
    file: FileArgument,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="DIR",
            help="Folder of the shards, seen by every node.",
            show_default="nothing is stored",
            file_okay=False,
        ),
    ] = None,
    set_: SetOption = None,
    what: Annotated[
        list[str] | None,
        typer.Option(
            "--what",
            metavar="WHAT",
            help="statistics, entropy, conditionals, tasks or tasks:A,B, may be repeated; or training.",
            show_default="all that the language has, except conditionals",
        ),
    ] = None,
    sentences: Annotated[int, typer.Option(help="Sentences.", parser=whole, metavar="N")] = 1_000_000,
    train: Annotated[
        int | None,
        typer.Option(
            help="Labelled sentences to train on.", parser=whole, metavar="N", show_default=OF_TASKS
        ),
    ] = None,
    test: Annotated[
        int | None,
        typer.Option(help="Labelled sentences to test on.", parser=whole, metavar="N", show_default=OF_TASKS),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the sentences.", min=0)] = 0,
    positions: Annotated[
        str | None,
        typer.Option(
            metavar="all|random",
            help="Mask all positions of a sentence, or one drawn position.",
            show_default="all; random where a conditional costs seconds",
        ),
    ] = None,
    shard_size: Annotated[
        int | None,
        typer.Option(
            help="Sentences in each shard.",
            parser=whole_from(1),
            metavar="N",
            show_default="16384, or as many as fit into 64 MiB",
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Tasks at once.", show_default="as many as there is room for", min=1)
    ] = None,
    gpus: Annotated[float, typer.Option(help="GPUs of each task.", min=0.0)] = 0.0,
    storage: StorageOption = None,
    address: AddressOption = None,
    json: JsonOption = False,
) -> None:
    """Generate entropies, exact conditionals, statistics and labelled task sets, on Ray.

    Results are stored in shards, safetensors of float32 and integers.  A generation that was stopped or
    killed makes the missing shards when it is started again.

    Examples:

        raysweep language generate sweeps/scaling.yaml --sentences 1e6

        raysweep language generate sweeps/scaling.yaml -o data --what conditionals --what tasks:A,B

        raysweep language generate sweeps/opt.yaml --what training --gpus 1
    """
    resources = {"CPU": 1.0, **({"GPU": gpus} if gpus else {})}
    if "training" in (what or ()):
        _check_alone(what or (), context)
        from raysweep.sweep import load_sweep

        _fill(load_sweep(file, overrides=set_ or (), storage=storage), workers, resources, address, json)
        return
    from raysweep.sweep.language_file import load_language_config
    from raysweep.sweep.storage import open_directory

    config = load_language_config(file, overrides=set_ or ())
    if output is not None:
        open_directory(output)
    from raysweep.engine.generate import generate as start

    again = "" if output is None else f"; finished shards are in {output}, and the same command continues"
    with shown(again, output) as view:
        found = start(
            config,
            what=what,
            sentences=sentences,
            train=min(100_000, sentences) if train is None else train,
            test=min(100_000, sentences) if test is None else test,
            seed=seed,
            positions=positions,  # type: ignore[arg-type]  # checked there
            out=output,
            shard_size=shard_size,
            workers=workers,
            resources=resources,
            address=address,
            progress=view,
        )
    if json:
        print_json(found.to_dict())
        return
    typer.echo("\n".join(found.lines()))
    if output is not None:
        typer.echo(f"shards: {output} ({found.made} made, {found.reused} there before)")


def _check_alone(what: Sequence[str], context: typer.Context) -> None:
    """Raise `ConfigError` for options that say what the sweep file says of its training sentences."""
    of_file = ("output", "sentences", "train", "test", "seed", "positions", "shard_size")
    sources = {option: context.get_parameter_source(option) for option in of_file}
    typed = [option for option, source in sources.items() if source and source.name == "COMMANDLINE"]
    given = [f"--{option.replace('_', '-')}" for option in typed]
    given += [f"--what {other}" for other in what if other != "training"]
    if given:
        raise ConfigError(
            f"--what training: stores the sentences that the runs of a sweep file train on, as many as they "
            f"need, in the folder of --storage; leave out {', '.join(given)}"
        )


def _fill(
    sweep: Sweep, workers: int | None, resources: dict[str, float], address: str | None, json: bool
) -> None:
    """Store the sentences that the runs of a sweep train on."""
    from raysweep.engine.sentences import fill

    with shown("; finished shards are stored, and the same command continues", None) as view:
        filled = fill(sweep, workers=workers, resources=resources, address=address, progress=view)
    if json:
        print_json(filled.to_dict())
    else:
        typer.echo("\n".join(filled.lines()))


app.command("text")(language_files.text)
app.command("model")(language_files.model)
