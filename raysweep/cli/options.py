"""Options that several commands share."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from raysweep.cli import complete
from raysweep.cli.indented import indented
from raysweep.errors import ConfigError
from raysweep.remote import list_now, path_of

if TYPE_CHECKING:
    import pandas as pd

    from raysweep.sweep import Sweep

FileArgument = Annotated[
    Path,
    typer.Argument(
        metavar="FILE",
        help="Sweep file (YAML).",
        show_default=False,
        autocompletion=complete.files,
    ),
]
NameArgument = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE",
        help="Name of a sweep in the storage, or its file.",
        show_default=False,
        autocompletion=complete.sweeps,
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="A.B=C",
        help="Override a field of the sweep file; may be repeated.",
        autocompletion=complete.settings,
    ),
]
StorageOption = Annotated[
    Path | None,
    typer.Option(
        "--storage",
        metavar="DIR",
        parser=path_of,
        envvar="RAYSWEEP_STORAGE",
        help="Folder of all sweeps, which every node must see: on a disk, or s3://BUCKET/FOLDER.",
        show_default="results",
    ),
]
FolderOption = Annotated[
    Path | None,
    typer.Option(
        "--folder",
        metavar="DIR",
        help="Folder of the suite's sweep files.",
        show_default="sweeps/paper of this clone",
    ),
]
TrackingOption = Annotated[
    str | None,
    typer.Option(
        "--tracking-uri",
        metavar="URI",
        envvar="MLFLOW_TRACKING_URI",
        help="MLflow server or database.",
        show_default="SQLite in the sweep's folder",
    ),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="Ray cluster.",
        show_default="RAY_ADDRESS, else Ray on this machine",
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--only",
        metavar="RUN",
        help="Only these runs: a name as in tables (64/1/2/256 seed 0), an id or its beginning, or a pattern "
        "of either (* and ?); may be repeated.",
        autocompletion=complete.runs,
    ),
]
RetryOption = Annotated[bool, typer.Option("--retry-failed", help="Try failed runs again.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on standard output.")]


def names_a_file(name: str) -> bool:
    """Return whether a name is that of a file, and not of a sweep in the storage."""
    path = Path(name)
    return path.suffix in (".yaml", ".yml") or os.path.isfile(path)


def results_of(name: str, storage: Path | None) -> Sweep:
    """Return the sweep of a file or name as `find` does, with the runs that Tuners have made of it.

    The command reads its results as they are now.
    """
    from raysweep.sweep.made import with_made

    sweep = find(name, storage)
    list_now(sweep.directory)
    return with_made(sweep)


def find(
    name: str, storage: Path | None, overrides: list[str] | None = None, tracking: str | None = None
) -> Sweep:
    """Return the sweep of a file, or the sweep that was launched under a name.

    Raises `ConfigError` if there is neither, and for overrides without a file.
    """
    from raysweep.sweep import load_sweep
    from raysweep.sweep.stored import find_stored

    if names_a_file(name):
        return load_sweep(name, overrides=overrides or (), storage=storage, tracking_uri=tracking)
    found = find_stored(name, storage, tracking_uri=tracking)
    if overrides:
        raise ConfigError(f"--set: '{name}' is a stored sweep, which stays as it was launched; name its file")
    return found


def check_output(path: Path) -> None:
    """Check that the file of `--output` can be written, before anything is computed; raises `ConfigError`."""
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--output {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise ConfigError(f"--output {path}: is a folder; name a file")


def whole(text: str | int, *, least: int = 0) -> int:
    """Return a whole number; large ones may be written as people write them.

    >>> whole("1e6"), whole("2_000"), whole("12")
    (1000000, 2000, 12)
    """
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not (least <= number < 2**53 and number.is_integer()):
        raise typer.BadParameter(f"'{text}' is no whole number of at least {least} (100000, 1e5)")
    return int(number)


def whole_from(least: int) -> Callable[[str], int]:
    """Return the reader of whole numbers that are not less than `least`."""

    def read(text: str) -> int:
        return whole(text, least=least)

    return read


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a failure to write the file of `--output` into a `ConfigError`."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--output {path}: cannot be written: {error.strerror or error}") from error


def print_json(data: Any) -> None:
    """Print data for a program on standard output."""
    typer.echo(indented(data))


def records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a table as plain data; missing values and NaN become null."""
    rows: list[dict[str, Any]] = json.loads(frame.to_json(orient="records", double_precision=15))
    return rows
