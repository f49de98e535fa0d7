"""The help of every command shows all of its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
import typer
from rich.table import Table

from raysweep.cli.app import app, run
from raysweep.cli.output import console


def commands(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the words of every command, and the command, those of groups included."""
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(app)))


def squeezed(text: str) -> str:
    """Return text without white space and the borders of tables."""
    return re.sub(r"[\s─-╿]", "", text)


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_loses_no_text_to_markup(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Wide enough that no text is wrapped among other columns.
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("NO_COLOR", "1")
    command = COMMANDS[path]
    assert run([*path, "--help"]) == 0
    shown = squeezed(capsys.readouterr().out)
    texts = [command.help, command.epilog]
    for parameter in command.params:
        texts += [getattr(parameter, "help", None), parameter.metavar]
        if isinstance(getattr(parameter, "show_default", None), str):
            texts.append(parameter.show_default)
    written = [text for text in texts if text]
    assert written
    for text in written:
        # A backslash keeps a bracket from being markup; it is not shown itself.
        assert squeezed(text.replace("\\[", "[")) in shown


def test_help_lists_every_command_with_the_first_sentence_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run(["--help"]) == 0
    box = capsys.readouterr().out.partition("─ Commands ─")[2]
    listed = [line.strip("│ ").split(None, 1) for line in box.splitlines() if line.startswith("│")]
    wanted = {path[0]: command.help.split("\n\n")[0] for path, command in COMMANDS.items() if len(path) == 1}
    assert len(wanted) == 24
    assert listed == [[*both] for both in wanted.items()]


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_breaks_lines_where_the_terminal_does(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("NO_COLOR", "1")
    assert run([*path, "--help"]) == 0
    lines = capsys.readouterr().out.partition("╭")[0].splitlines()
    assert any(line.strip() for line in lines)
    # Nothing is too long for this terminal, so only an example may go on with the line below.
    for line, below in pairwise(lines):
        if line.strip() and below.strip():
            assert (line[:5], below[:5]) == (" " * 5, " " * 5), line


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_indents_examples_a_line_each(
    path: tuple[str, ...], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "1000")
    monkeypatch.setenv("NO_COLOR", "1")
    written = [line for line in (COMMANDS[path].help or "").splitlines() if line.startswith(" ")]
    assert run([*path, "--help"]) == 0
    text = capsys.readouterr().out.partition("╭")[0]
    shown = [line.removeprefix(" ").rstrip() for line in text.splitlines()]
    assert [line for line in shown if line.startswith(" ")] == [line.rstrip() for line in written]
    assert not any("Example" in line and not line.startswith("Example") for line in shown)


def test_printed_text_is_no_markup(capsys: pytest.CaptureFixture[str]) -> None:
    console().print("failed: [bold]no[/bold] such thing, see raysweep[bench]")
    table = Table("[heading]", box=None, pad_edge=False)
    table.add_row("pip install 'raysweep[bench]'")
    console().print(table)
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed == [
        "failed: [bold]no[/bold] such thing, see raysweep[bench]",
        "[heading]",
        "pip install 'raysweep[bench]'",
    ]
