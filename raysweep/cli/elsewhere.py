"""A command that is asked for here and runs on a cluster, where the storage is seen."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from raysweep.cli.options import names_a_file
from raysweep.errors import ConfigError

ElsewhereOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="URL",
        help="Do this on the Ray cluster with this dashboard (http://HEAD:8265), where the storage is not "
        "seen from here.",
        show_default="this machine",
    ),
]


def shared_storage(storage: str | Path | None) -> str:
    """Return a storage that means the same here and on a cluster; raises `ConfigError` for any other."""
    if storage is None:
        raise ConfigError(
            "--storage (or RAYSWEEP_STORAGE): is needed for work on a cluster; name the folder of results "
            "there, one that all of its nodes see under the same path, or s3://BUCKET/FOLDER"
        )
    text = str(storage)
    if "://" not in text and not text.startswith("/"):
        raise ConfigError(
            f"--storage {text}: a relative path means another folder on the cluster; write the absolute path "
            "of a folder that all of its nodes see"
        )
    return text


def elsewhere(context: typer.Context, address: str) -> NoReturn:
    """Run the command of a context on a cluster, as a short job, and end as it ends."""
    shared_storage(context.params["storage"])
    words = command_line(context)
    # Ray is imported only now.
    from raysweep.engine.jobs import JobServer

    name = f"raysweep-{context.info_name}"
    raise typer.Exit(JobServer(address).run(words, name=name, out=sys.stdout, err=sys.stderr))


def command_line(context: typer.Context) -> list[str]:
    """Return the words that ask for the command of a context without its address.

    The file of a sweep, which is here alone, becomes the sweep's name.
    """
    words, places = [str(context.info_name)], list[str]()
    for parameter in context.command.params:
        name = str(parameter.name)
        value = context.params.get(name)
        # Typer has enumerations of its own.
        source = getattr(context.get_parameter_source(name), "name", "DEFAULT")
        if name == "address" or source == "DEFAULT":
            continue
        if parameter.param_type_name == "argument":
            places.append(sweep_name(Path(str(value))) if names_a_file(str(value)) else str(value))
        else:
            words += _option(parameter, value)
    return words + places


def _option(parameter: Any, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [max(parameter.opts if value else parameter.secondary_opts, key=len)]
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [word for one in values for word in (max(parameter.opts, key=len), str(one))]


def sweep_name(file: Path, overrides: Sequence[str] = ()) -> str:
    """Return the name of the sweep of a file, which is read but not checked."""
    from raysweep.sweep.document import Problems
    from raysweep.sweep.load import override
    from raysweep.sweep.reading import read_file

    problems = Problems()
    name = override(read_file(file, problems), overrides, problems).plain.get("name")
    problems.raise_any()
    if not isinstance(name, str):
        raise ConfigError(f"{file}: name: missing — add 'name: my-sweep'")
    return name
