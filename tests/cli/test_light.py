"""What is asked for at every key, such as help and completion, imports nothing that takes seconds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import typer

from raysweep.cli.app import app

HEAVY = {"torch", "ray", "mlflow", "numpy", "scipy", "pandas", "pyarrow", "transformers", "matplotlib"}

PROGRAM = f"""\
import contextlib, io, sys
from raysweep.cli import __main__ as program
for words in sys.argv[1].split(";"):
    sys.argv = ["raysweep", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        try:
            program.main()
        except SystemExit as end:
            assert not end.code, (words, end.code)
    assert said.getvalue(), words
    heavy = {HEAVY!r} & set(sys.modules)
    assert not heavy, (words, heavy)
print("light")
"""


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of every command."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_help_and_version_import_nothing_heavy() -> None:
    asked = [" ".join([*path, "--help"]) for path in commands(typer.main.get_command(app))]
    assert {"--help", "launch --help", "status --help", "language show --help"} <= set(asked)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, ";".join(["--version", *asked])],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "light\n"), done.stderr
