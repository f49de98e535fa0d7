"""`raysweep`: the application, and the one place where errors become exit codes.

0 ok, 1 internal, 2 usage or configuration, 3 finished with failed runs, 4 cluster or storage unreachable,
130 interrupted and resumable.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import stat
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar

import typer

import raysweep
from raysweep.cli.flowing import Commands, Program
from raysweep.engine.interrupt import INTERRUPTED
from raysweep.errors import RaysweepError, StorageError
from raysweep.remote import forgotten

#: Errors of a file system that are no defect of raysweep: no permission, disk full, folder gone, disk broken.
TROUBLE = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG),
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE),
    }
)
#: What to do about those that have a remedy.
_REMEDIES = {
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "; make it writable, or name another place (--storage, or --output where there is one)",
    ),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), "; make room and run this again"),
}

#: Pydantic's errors of numbers out of their range: where the limit stands, and what it is.
_LIMITS = {"greater_than_equal": ("ge", "at least"), "less_than_equal": ("le", "at most")}
#: What the text of an option should have been.
_NUMBERS = {"int_parsing": "whole number", "float_parsing": "number"}


class _Raysweep(Program):
    places: ClassVar = {
        "init": "raysweep.cli.init:init",
        "launch": "raysweep.cli.launch:launch",
        "submit": "raysweep.cli.submit:submit",
        "plan": "raysweep.cli.inspect:plan",
        "validate": "raysweep.cli.inspect:validate",
        "status": "raysweep.cli.status:status",
        "logs": "raysweep.cli.logs:logs",
        "cancel": "raysweep.cli.control:cancel",
        "retry": "raysweep.cli.control:retry",
        "clean": "raysweep.cli.clean:clean",
        "report": "raysweep.cli.results:report",
        "match": "raysweep.cli.claims:match",
        "power": "raysweep.cli.claims:power",
        "export": "raysweep.cli.results:export",
        "evaluate": "raysweep.cli.evaluate:evaluate",
        "export-model": "raysweep.cli.export_model:export_model",
        "ui": "raysweep.cli.results:ui",
        "diff": "raysweep.cli.diff:diff",
        "doctor": "raysweep.cli.doctor:doctor",
        "schema": "raysweep.cli.reference:schema",
        "kinds": "raysweep.cli.reference:kinds",
        "language": "raysweep.cli.language:app",
        "paper": "raysweep.cli.paper:app",
        "bench": "raysweep.cli.bench:app",
    }


app = Commands(
    name="raysweep",
    cls=_Raysweep,
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


def _is_usage_error(error: Any) -> bool:
    """Return whether an error is a wrong command line, and not a defect.

    Its class is click's or typer's copy of it, depending on the version of typer.
    """
    return hasattr(error, "show") and hasattr(error, "exit_code")


class _ToStandardError(logging.Handler):
    """Writes to standard error as it is at the moment, because a live view puts its own in its place."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except OSError:
            self.handleError(record)


@contextmanager
def _saying(logger: str) -> Iterator[None]:
    """Show on standard error the progress that long work writes to a log."""
    handler, log = _ToStandardError(), logging.getLogger(logger)
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
    piped = _is_pipe()
    try:
        with _saying("raysweep.corpus"), _saying("raysweep.tracking"), forgotten():
            code = app(arguments, standalone_mode=False)
            # What cannot be written is an error here; at the end of the process nobody would hear of it.
            sys.stdout.flush()
    except SystemExit as end:
        # Typer and rich end the process on each broken pipe.
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # rich has then put the null device in the place of the pipe.
        return 0 if piped and not _is_pipe() else _explained(end.__context__)
    except (Exception, KeyboardInterrupt) as error:
        return _explained(error)
    return code if isinstance(code, int) else 0


def _explained(error: BaseException) -> int:
    """Say on standard error why a command has ended, and return its exit code."""
    try:
        return _explain(error)
    except OSError:
        # The words have no place, as in a log on a full disk; the exit code tells all the same.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
        return _explain(error)


def _worded(error: Any) -> str:
    """Return the words of a wrong command line; where Typer leaves a value out, it is in them."""
    said: str = error.message.removeprefix("Value error, ")
    cause = error.__cause__
    found = cause.errors() if hasattr(cause, "errors") else []
    kind = found[0]["type"] if len(found) == 1 else ""
    if kind in _LIMITS:
        field, words = _LIMITS[kind]
        return f"{found[0]['input']} is not valid; it must be {words} {found[0]['ctx'][field]:g}"
    return f"'{found[0]['input']}' is no {_NUMBERS[kind]}" if kind in _NUMBERS else said


def _explain(error: BaseException) -> int:
    if isinstance(error, typer.Abort) and isinstance(error.__cause__, EOFError):
        # Typer takes every end of a file for that of its standard input.
        error = StorageError("a file has ended too early, as on a full disk: make room and run this again")
    if isinstance(error, BrokenPipeError) and _unread(sys.stdout.fileno()):
        # The reader of a pipe has left, as `| head` does.  That is no error.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    if _is_usage_error(error):
        wrong: Any = error
        wrong.message = _worded(wrong)
        wrong.show()
        return int(wrong.exit_code)
    trouble = isinstance(error, OSError) and error.errno in TROUBLE
    if not trouble and not isinstance(error, (RaysweepError, typer.Abort, KeyboardInterrupt)):
        traceback.print_exception(error)
        print("raysweep: internal error (this is a defect: please report it)", file=sys.stderr)
        return 1
    if os.environ.get("RAYSWEEP_TRACEBACK"):
        traceback.print_exception(error)
    if isinstance(error, RaysweepError):
        print(f"raysweep: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError):
        where = f" {error.filename}:" if error.filename else ""
        remedy = _REMEDIES.get(error.errno or 0, "")
        print(f"raysweep: storage:{where} {error.strerror}{remedy}", file=sys.stderr)
        return StorageError.exit_code
    print("raysweep: interrupted", file=sys.stderr)
    return INTERRUPTED


def _is_pipe() -> bool:
    """Return whether standard output is a pipe."""
    try:
        return stat.S_ISFIFO(os.fstat(sys.stdout.fileno()).st_mode)
    except (OSError, ValueError):
        return False  # closed, or no file at all


def _unread(descriptor: int) -> bool:
    """Return whether a descriptor is a pipe that nobody reads any more."""
    look = select.poll()
    look.register(descriptor, 0)
    return any(event & select.POLLERR for _, event in look.poll(0))


def main() -> None:
    """Entry point of the `raysweep` program."""
    sys.exit(run())
