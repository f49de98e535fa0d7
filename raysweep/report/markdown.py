"""Tables in Markdown, and texts that hold made ones between two comments."""

from __future__ import annotations

from collections.abc import Sequence

from raysweep.errors import ConfigError


def in_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows, the headings first, as a table.

    >>> print(in_markdown([("a", "b"), ("1|2", "3")]))
    | a | b |
    | --- | --- |
    | 1\\|2 | 3 |
    """
    ruled = [rows[0], tuple("---" for _ in rows[0]), *rows[1:]]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in ruled)


def between(key: str) -> tuple[str, str]:
    """Return the two comments that stand around a made part of a text."""
    return f"<!-- {key} -->", f"<!-- /{key} -->"


def replaced(text: str, key: str, body: str) -> str:
    """Return a text with `body`, whole lines, between its two comments.

    Raises `ConfigError` where the text does not have exactly one such pair.
    """
    first, last = between(key)
    if text.count(first) != 1 or text.count(last) != 1 or text.index(first) > text.index(last):
        raise ConfigError(f"the text needs one line '{first}' and, after it, one line '{last}'")
    head, tail = text.partition(first)[0], text.partition(last)[2]
    return f"{head}{first}\n{body}{last}{tail}"
