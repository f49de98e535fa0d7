"""Typer applications whose help flows, and that import no more than what is asked for."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup


class _Light:
    """A command whose parameters are converted where a conversion does something.

    Typer's conversion imports pydantic, also for what is not given.  A completion reads the words as they
    are.
    """

    def get_params(self, context: Any) -> list[Any]:
        """Return all parameters; see `click.Command.get_params`."""
        parameters: list[Any] = super().get_params(context)  # type: ignore[misc]
        for parameter in parameters:
            if not isinstance(parameter.process_value, partial):
                parameter.process_value = partial(_process, parameter, parameter.process_value)
        return parameters


def _process(parameter: Any, convert: Callable[[Any, Any], Any], context: typer.Context, value: Any) -> Any:
    flag = getattr(parameter, "is_flag", False)
    single = parameter.nargs == 1 and not parameter.multiple and not parameter.required
    absent = value is None and (flag or (single and parameter.callback is None))
    return value if context.resilient_parsing or absent else convert(context, value)


class _Command(_Light, TyperCommand):
    pass


class _Group(_Light, TyperGroup):
    pass


class Commands(typer.Typer):
    """Commands that take their help from docstrings, as of a Typer application."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{"cls": _Group, **given})

    def command(self, name: str | None = None, **given: Any) -> Callable[[Any], Any]:
        """Return a decorator that registers a function as a command; see `typer.Typer.command`."""

        def register(function: Any) -> Any:
            text = given.get("help") or inspect.getdoc(function) or ""
            settings = {"cls": _Command, **given, "help": flowing(text)}
            return super(Commands, self).command(name, **settings)(function)

        return register


class Program(_Group):
    """A group whose commands are each imported when they are asked for: one takes no time of the others."""

    #: Where each command is, in the order of `--help`: `module:function`, or `module:app` for a group.
    places: ClassVar[Mapping[str, str]] = {}

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self._imported = _Imported(self.places)
        self.commands = self._imported  # type: ignore[assignment]  # nothing is added later
        self._listing = False

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands; see `click.Group.list_commands`."""
        return list(self.places)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, for a list of commands one without parameters; see `click.Group.get_command`."""
        if self._listing and cmd_name in self.places:
            return self._imported.outline(cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help of the program; see `click.Command.format_help`."""
        with self._lists():
            super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        """Return the commands that begin so; see `click.Group.shell_complete`."""
        with self._lists():
            return super().shell_complete(ctx, incomplete)

    @contextmanager
    def _lists(self) -> Iterator[None]:
        self._listing = True
        try:
            yield
        finally:
            self._listing = False


class _Imported(Mapping[str, Any]):
    """Commands by name."""

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places, self._found = places, dict[str, Any]()

    def _read(self, name: str) -> Any:
        module, _, attribute = self._places[name].partition(":")
        return getattr(importlib.import_module(module), attribute)

    def outline(self, name: str) -> TyperCommand:
        """Return a command that has its name and its help alone: to look at all parameters takes long."""
        found = self._read(name)
        is_group = isinstance(found, typer.Typer)
        return TyperCommand(name, help=found.info.help if is_group else flowing(inspect.getdoc(found) or ""))

    def __getitem__(self, name: str) -> Any:
        if name not in self._found:
            found = self._read(name)
            alone = Commands(add_completion=False)
            if isinstance(found, typer.Typer):
                alone.add_typer(found, name=name)
                self._found[name] = typer.main.get_command(alone).commands[name]  # type: ignore[attr-defined]
            else:
                alone.command(name)(found)
                self._found[name] = typer.main.get_command(alone)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def flowing(text: str) -> str:
    r"""Return a docstring with each paragraph in one line; Typer keeps the line breaks of all but the first.

    A paragraph with an indented line, such as an example, stays as it is.

    >>> flowing("Do it.\n\nFirst this,\nthen that.\n\n    raysweep it \\\n        --now")
    'Do it.\n\n\nFirst this, then that.\n\n    raysweep it \\\n        --now'
    """
    first, *others = map(_joined, text.split("\n\n"))
    # Typer takes an indentation away that all lines have below the first of these, which is now an empty one.
    return "\n\n".join([first, *("\n" + other for other in others[:1]), *others[1:]])


def _joined(paragraph: str) -> str:
    lines = paragraph.split("\n")
    return paragraph if any(line.startswith(" ") for line in lines) else " ".join(lines)
