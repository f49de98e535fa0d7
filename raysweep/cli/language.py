"""`raysweep language`: looking at a language before training on it."""

from __future__ import annotations

from typing import Annotated

import typer

from raysweep.cli.options import FileArgument, JsonOption, SetOption, print_json

app = typer.Typer(no_args_is_help=True, help="Look at a language before training on it.")


@app.callback()
def _group() -> None:
    """Commands about languages."""


@app.command("show", epilog="Example: raysweep language show sweeps/scaling.yaml")
def show(
    file: FileArgument,
    set_: SetOption = None,
    sentences: Annotated[int, typer.Option(help="How many sentences to measure on.", min=2)] = 4096,
    examples: Annotated[int, typer.Option(help="How many sentences to print.", min=0)] = 3,
    seed: Annotated[int, typer.Option(help="Seed of the sentences.")] = 0,
    json: JsonOption = False,
) -> None:
    """Show lengths, entropy, task label counts and a few sentences of a language.

    FILE is a sweep file, or a YAML file that holds one language (`kind: pcfg`, ...).
    """
    from raysweep.languages.describe import as_text, describe
    from raysweep.sweep.language_file import load_language

    language = load_language(file, overrides=set_ or ())
    facts = describe(language, sentences=sentences, seed=seed, examples=examples)
    if json:
        print_json(facts)
    else:
        typer.echo(as_text(facts))
