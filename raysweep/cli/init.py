"""`raysweep init`: a first sweep file, by flags or by questions."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from raysweep.cli import complete
from raysweep.cli.options import whole
from raysweep.cli.output import say
from raysweep.errors import ConfigError

if TYPE_CHECKING:
    from raysweep.sweep.starter import Wishes

_SCHEMA = "raysweep.schema.json"
#: Field of a sweep file -> the option that sets it.
_OPTIONS = {
    "name": "--name",
    "language": "--source",
    "model.shape": "--sizes",
    "axes.model.shape": "--sizes",
    "algorithm.lr": "--lr",
    "axes.algorithm.lr": "--lr",
    "pretrain": "--steps",
    "axes.seed": "--seeds",
}
_PROBLEM = re.compile(r":\d+:\d+: (?P<field>[\w.\[\]-]+): (?P<message>.*)")


@dataclass(frozen=True)
class _Options:
    """The options of the command; None where nobody gave one."""

    language: str | None
    source: str | None
    sizes: str | None
    lr: str | None
    steps: int | None
    seeds: int | None
    gpu: bool | None


def init(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Sweep file to write (YAML).", dir_okay=False)
    ] = Path("my-sweep.yaml"),
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the sweep.", show_default="that of FILE")
    ] = None,
    language: Annotated[
        str | None,
        typer.Option(
            "-l",
            "--language",
            metavar="KIND",
            help="Language: pcfg, hmm, dyck, causal_lm, or corpus for text of your own.",
            show_default="pcfg",
            autocompletion=complete.languages,
        ),
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="PATH|HUB",
            help="Text of a corpus (file, folder, 'pattern' or data set on the Hugging Face hub), model of a "
            "causal_lm (folder or hub), or file of rules of a pcfg.",
        ),
    ] = None,
    sizes: Annotated[
        str | None,
        typer.Option(metavar="SHAPE,…", help="Sizes of models: width/heads/layers/intermediate, …"),
    ] = None,
    lr: Annotated[str | None, typer.Option(metavar="RATE,…", help="Learning rates.")] = None,
    steps: Annotated[int | None, typer.Option(metavar="N", help="Steps of training.", parser=whole)] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Number of seeds.", parser=whole, show_default="2")
    ] = None,
    gpu: Annotated[
        bool | None, typer.Option("--gpu/--cpu", help="Train each run on a GPU or a CPU.", show_default="cpu")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Ask nothing; take the defaults.")] = False,
) -> None:
    """Write a sweep file with a comment on every field, to start from.

    On a terminal it asks for what no option says.  The file is checked as by `raysweep validate`; nothing is
    written if something is wrong.

    Examples:

        raysweep init

        raysweep init my.yaml --sizes 32/2/1/128,64/4/2/256 --steps 4000 --seeds 3

        raysweep init texts.yaml --language corpus --source 'texts/*.txt' --gpu
    """
    _check_file(file, force)
    given = _Options(language, source, sizes, lr, steps, seeds, gpu)
    if not yes and sys.stdin.isatty():
        given = _asked(given)
    wishes, schema = _wishes(file, name, given)
    _write(file, wishes)
    if schema is not None:
        from raysweep.files import write_atomic
        from raysweep.sweep.schema import as_text, sweep_schema

        write_atomic(schema, f"{as_text(sweep_schema())}\n".encode())
        typer.echo(f"wrote {os.path.relpath(schema)}, by which editors complete and check sweep files")
    typer.echo(f"wrote {file}; next: raysweep plan {wishes.file}")


def _check_file(file: Path, force: bool) -> None:
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"FILE: '{file}' is no name of a sweep file; write {file.with_suffix('.yaml')}")
    if not file.absolute().parent.is_dir():
        raise ConfigError(f"FILE: there is no folder {file.parent}; make it first")
    if file.exists() and not force:
        raise ConfigError(f"FILE: {file} is there already; name another file, or overwrite it with --force")


def _asked(given: _Options) -> _Options:
    """Return the options with answers in the place of those that are missing."""
    from raysweep.registry import languages
    from raysweep.sweep.fields import first_sentence, read_class
    from raysweep.sweep.starter import TEMPLATES

    say("Press Enter for what stands in brackets; everything can be changed in the file.")
    if given.language is None:
        for kind in TEMPLATES:
            say(f"  {kind:<10} {first_sentence(read_class(languages.path(kind)).meaning)}")
        given = replace(given, language=typer.prompt("Language", "pcfg", value_proc=_known, err=True))
    template = TEMPLATES[_language(str(given.language))]
    if given.source is None and given.language in ("corpus", "causal_lm"):
        question = "Text: a file, folder or pattern" if given.language == "corpus" else "Model: a folder"
        usual = template.language["model"] if given.language == "causal_lm" else None
        answer = typer.prompt(f"{question}, or a name on the Hugging Face hub", usual, err=True)
        given = replace(given, source=None if answer == usual else answer)
    if given.sizes is None:
        usual = ",".join(template.sizes)
        given = replace(
            given,
            sizes=typer.prompt(
                "Sizes of models, width/heads/layers/...", usual, value_proc=_shapes, err=True
            ),
        )
    if given.steps is None:
        given = replace(given, steps=typer.prompt("Steps", template.steps, value_proc=whole, err=True))
    if given.seeds is None:
        given = replace(given, seeds=typer.prompt("Seeds", 2, value_proc=whole, err=True))
    if given.gpu is None:
        given = replace(given, gpu=typer.confirm("A GPU for each run?", False, err=True))
    return given


def _known(answer: str) -> str:
    """Return the answer to a question; one that is no kind of language is asked for again."""
    try:
        return _language(answer)
    except ConfigError as error:
        raise typer.BadParameter(str(error).removeprefix("--language: ")) from None


def _shapes(answer: str) -> str:
    """Return the answer to a question; sizes that no encoder has are asked for again."""
    from raysweep.models.shapes import Shape

    try:
        for size in _listed("--sizes", answer):
            Shape.parse(size)
    except (ConfigError, ValueError) as error:
        raise typer.BadParameter(str(error).removeprefix("--sizes: ")) from None
    return answer


def _language(text: str) -> str:
    """Return a kind of language that there is a proposal for; raises `ConfigError`."""
    from raysweep.registry import languages
    from raysweep.sweep.explain import unknown
    from raysweep.sweep.starter import TEMPLATES

    if text in TEMPLATES:
        return text
    if text in languages.kinds():
        raise ConfigError(
            f"--language: there is no proposal for '{text}'; write a file with {next(iter(TEMPLATES))} and "
            f"change its section language: `raysweep kinds {text}` explains the fields"
        )
    raise ConfigError(f"--language: '{text}': {unknown(text, list(TEMPLATES), 'language kind')}")


def _wishes(file: Path, name: str | None, given: _Options) -> tuple[Wishes, Path | None]:
    """Return what the file is asked for, and the JSON Schema to write beside it, None where one is there."""
    from raysweep.sweep.starter import Wishes
    from raysweep.sweep.starter_source import read_from

    kind = _language("pcfg" if given.language is None else given.language)
    if kind == "corpus" and given.source is None:
        raise ConfigError(
            "--source: missing; name the text of the corpus: a file, a folder, a 'pattern' in quotes, or a "
            "data set on the Hugging Face hub"
        )
    for option, number in (("--steps", given.steps), ("--seeds", given.seeds)):
        if number == 0:
            raise ConfigError(f"{option}: 0 is too few; give at least 1")
    folder = file.absolute().parent
    fields, measures = ({}, {}) if given.source is None else read_from(kind, given.source, folder)
    schema = _schema(folder)
    wishes = Wishes(
        name=file.stem if name is None else name,
        file=shlex.quote(str(file)),
        schema=os.path.relpath(schema, folder),
        kind=kind,
        language=fields,
        evaluate=measures,
        sizes=None if given.sizes is None else _listed("--sizes", given.sizes),
        rates=None if given.lr is None else [_rate(text) for text in _listed("--lr", given.lr)],
        steps=given.steps,
        seeds=2 if given.seeds is None else given.seeds,
        gpu=bool(given.gpu),
    )
    return wishes, None if schema.exists() else schema


def _schema(folder: Path) -> Path:
    """Return the JSON Schema for a file of a folder: that of the clone it lies in, else one beside it."""
    import raysweep

    clone = Path(raysweep.__file__).resolve().parents[1]
    shipped = clone / "sweeps" / _SCHEMA
    return shipped if shipped.is_file() and folder.resolve().is_relative_to(clone) else folder / _SCHEMA


def _listed(option: str, text: str) -> list[str]:
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found:
        raise ConfigError(f"{option}: names nothing; give at least one value, or leave it out")
    return found


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ConfigError(f"--lr: '{text}' is not a number, e.g. 3e-3") from None


def _write(file: Path, wishes: Wishes) -> None:
    """Write the file if it is valid; raises `ConfigError` that names the options."""
    from raysweep.files import replacing
    from raysweep.sweep.load import load_sweep
    from raysweep.sweep.starter import sweep_file

    with replacing(file.absolute()) as draft:
        draft.write_text(sweep_file(wishes), encoding="utf-8")
        try:
            load_sweep(draft)
        except ConfigError as error:
            raise ConfigError("\n".join(_of_option(line) for line in str(error).splitlines())) from error


def _of_option(problem: str) -> str:
    """Return a line on the file that was not written as one on the option that is wrong."""
    found = _PROBLEM.search(problem)
    if found is None:
        return problem
    field = re.sub(r"\[\d+\]", "", found["field"])
    near = [option for path, option in _OPTIONS.items() if f"{field}.".startswith(f"{path}.")]
    return f"{near[0]}: {found['message']}" if near else f"{field}: {found['message']}"
