"""`raysweep language text` and `model`: files made of a language, for other sweeps to read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysweep.cli.generating import shown
from raysweep.cli.options import FileArgument, SetOption, whole, writing


def text(
    file: FileArgument,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", metavar="DIR", help="Folder of the files.", file_okay=False),
    ],
    set_: SetOption = None,
    sentences: Annotated[int, typer.Option(help="Lines of the text.", parser=whole, metavar="N")] = 40_000,
    train: Annotated[
        int, typer.Option(help="Rows of each task to train on.", parser=whole, metavar="N")
    ] = 4096,
    test: Annotated[
        int, typer.Option(help="Rows of each task to test on.", parser=whole, metavar="N")
    ] = 2048,
    seed: Annotated[int, typer.Option(help="Seed of the sentences.", min=0)] = 0,
) -> None:
    """Write a language as text, and its tasks as tables of labelled texts, for a corpus to read.

    DIR gets text.txt, a sentence a line, and a folder for each task with train.jsonl and validation.jsonl, in
    the columns of GLUE: sentence, label, idx.  Words without a name of letters get a made-up one.

    Example:

        raysweep language text sweeps/transfer/grammar.yaml -o sweeps/transfer
    """
    from raysweep.languages.spelled import write_text
    from raysweep.sweep.language_file import load_language
    from raysweep.sweep.storage import open_directory

    language = load_language(file, overrides=set_ or ())
    open_directory(output)
    for path in write_text(language, output, sentences=sentences, train=train, test=test, seed=seed):
        typer.echo(path)


def model(
    file: FileArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write; new or empty.")
    ],
    set_: SetOption = None,
    sentences: Annotated[
        int, typer.Option(help="Sentences to train on, each once.", parser=whole, metavar="N")
    ] = 400_000,
    width: Annotated[int, typer.Option(help="Width of the model, a multiple of 16.", min=16)] = 32,
    layers: Annotated[int, typer.Option(help="Layers of the model.", min=1)] = 2,
    seed: Annotated[int, typer.Option(help="Seed of weights and sentences.", min=0)] = 0,
) -> None:
    """Train a small OPT on sentences of a language, for a `causal_lm` to read.

    DIR gets weights and a tokenizer of whole words, named as `raysweep language text` names them, as
    `save_pretrained` of transformers writes them.  One processor gives the same bytes for the same command.

    Example:

        raysweep language model sweeps/paper/fig1-small.yaml -o sweeps/paper/opt-small
    """
    from raysweep.languages.causal_lm.small import train_small
    from raysweep.sweep.language_file import load_language

    language = load_language(file, overrides=set_ or ())
    with shown("; nothing was written", None) as view, writing(output):
        learnt = train_small(
            language, output, sentences=sentences, width=width, layers=layers, seed=seed, progress=view
        )
    loss, excess = learnt.loss, learnt.excess
    said = f"{output}: {learnt.parameters:,} parameters, {loss.value:.4f} nats a word on new sentences"
    if excess is not None:
        said += f", {excess.value:.4f} ± {excess.standard_error:.4f} above the least possible"
    typer.echo(said)
