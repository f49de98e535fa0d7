"""A Typer application whose help flows: the terminal wraps paragraphs of docstrings, examples stay."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import typer


class Commands(typer.Typer):
    """Commands that take their help from docstrings, as of a Typer application."""

    def command(self, name: str | None = None, **given: Any) -> Callable[[Any], Any]:
        """Return a decorator that registers a function as a command; see `typer.Typer.command`."""

        def register(function: Any) -> Any:
            text = given.get("help") or inspect.getdoc(function) or ""
            return super(Commands, self).command(name, **{**given, "help": flowing(text)})(function)

        return register


def flowing(text: str) -> str:
    r"""Return a docstring with each paragraph in one line; Typer keeps the line breaks of all but the first.

    A paragraph with an indented line, such as an example, stays as it is.

    >>> flowing("Do it.\n\nFirst this,\nthen that.\n\n    raysweep it \\\n        --now")
    'Do it.\n\nFirst this, then that.\n\n    raysweep it \\\n        --now'
    """
    return "\n\n".join(map(_joined, text.split("\n\n")))


def _joined(paragraph: str) -> str:
    lines = paragraph.split("\n")
    return paragraph if any(line.startswith(" ") for line in lines) else " ".join(lines)
