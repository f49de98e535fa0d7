"""`raysweep`: the application, and the one place where errors become exit codes.

0 ok, 1 internal, 2 usage or configuration, 3 finished with failed runs, 4 cluster or storage unreachable,
130 interrupted and resumable.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer

import raysweep
from raysweep.cli import bench, evaluate, export_model, inspect, language, launch, results
from raysweep.errors import RaysweepError, StorageError

#: Errors of a file system that are no defect of raysweep: no permission, disk full, folder gone, disk broken.
TROUBLE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG),
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE),
    }
)

app = typer.Typer(
    name="raysweep",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Sweeps of language models at equal pre-training loss: which transfers better, and is it flatness?",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"raysweep {raysweep.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of the program itself."""


app.command("launch")(launch.launch)
app.command("plan")(inspect.plan)
app.command("validate")(inspect.validate)
app.command("status")(inspect.status)
app.command("report")(results.report)
app.command("export")(results.export)
app.command("evaluate")(evaluate.evaluate)
app.command("export-model")(export_model.export_model)
app.command("ui")(results.ui)
app.add_typer(language.app, name="language")
app.add_typer(bench.app, name="bench")


def _is_usage_error(error: Any) -> bool:
    """Return whether an error is a wrong command line, and not a defect.

    Its class is click's or typer's copy of it, depending on the version of typer.
    """
    return hasattr(error, "show") and hasattr(error, "exit_code")


def _defect() -> int:
    """Print the exception that is being handled as a defect."""
    traceback.print_exc()
    print("raysweep: internal error (this is a defect: please report it)", file=sys.stderr)
    return 1


@contextmanager
def _saying(logger: str) -> Iterator[None]:
    """Show on standard error the progress that long work writes to a log."""
    handler, log = logging.StreamHandler(sys.stderr), logging.getLogger(logger)
    handler.setFormatter(logging.Formatter("%(message)s"))
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        with _saying("raysweep.corpus"):
            code = app(arguments, standalone_mode=False)
    except RaysweepError as error:
        if os.environ.get("RAYSWEEP_TRACEBACK"):
            traceback.print_exc()
        print(f"raysweep: {error}", file=sys.stderr)
        return error.exit_code
    except (typer.Abort, KeyboardInterrupt):
        print("raysweep: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe has left, as `| head` does.  That is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.errno not in TROUBLE:
            return _defect()
        if os.environ.get("RAYSWEEP_TRACEBACK"):
            traceback.print_exc()
        where = f" {error.filename}:" if error.filename else ""
        print(f"raysweep: storage:{where} {error.strerror}", file=sys.stderr)
        return StorageError.exit_code
    except Exception as problem:
        wrong: Any = problem
        if _is_usage_error(wrong):
            wrong.show()
            return int(wrong.exit_code)
        return _defect()
    return code if isinstance(code, int) else 0


def main() -> None:
    """Entry point of the `raysweep` program."""
    sys.exit(run())
