"""`raysweep export-model`: a trained model as a folder for Hugging Face's transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raysweep.cli import complete
from raysweep.cli.options import StorageOption, writing
from raysweep.errors import ConfigError


def export_model(
    checkpoint: Annotated[
        str,
        typer.Argument(
            metavar="RUN@STEP",
            help="A run, by any name that means it alone, also SWEEP/RUN, and a step; without one the last.",
            show_default=False,
            autocompletion=complete.runs,
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="Folder to write; new or empty.")
    ],
    storage: StorageOption = None,
) -> None:
    """Write a trained encoder as a folder that AutoModelForMaskedLM opens, with a tokenizer of its words.

    The folder does not hold the language: to measure it again, name the file of its sweep.

    Examples:

        raysweep export-model 'scaling/64/4/2/256 lr 0.003 seed 0@2000' -o my-model

        raysweep evaluate my-model --language sweeps/scaling.yaml -e probe -e finetune.train=512
    """
    from raysweep.models.huggingface import to_huggingface, word_names
    from raysweep.sweep.checkpoints import find_checkpoint
    from raysweep.sweep.storage import storage_root
    from raysweep.training import load_model

    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"--output {output}: already exists; name a new folder")
    found = find_checkpoint(storage_root(storage), checkpoint)
    language = found.sweep.language(found.run)
    model = load_model(found.directory, found.run.model, language)
    words = word_names(language)
    with writing(output):
        to_huggingface(model, output, words=words)
    first = language.vocabulary_size
    without = (
        ""
        if words is not None
        else (
            ", without a tokenizer, because its words are not texts between spaces: word ids are those of "
            f"the language, padding is {first}, the mask {first + 1}"
        )
    )
    typer.echo(f"{output}: {found.name}{without}")
