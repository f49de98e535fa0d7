"""The fields of JSON output as `raysweep/cli/README.md` tells them, and a check of what a command prints."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import raysweep.cli

README = Path(raysweep.cli.__file__).with_name("README.md")


def documented() -> dict[str, set[str]]:
    """Return the fields by command, such as `runs[].state`."""
    parts = re.split(r"^### (.+)$", README.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = {}
    for title, text in zip(parts[::2], parts[1::2], strict=True):
        rows = re.findall(r"^\| (`.+?) \|", text, flags=re.MULTILINE)
        found[title.replace("`", "")] = {field for row in rows for field in re.findall(r"`([^`]+)`", row)}
    return found


def check(data: Any, fields: set[str]) -> None:
    """Check that data have the fields that are documented and no others, as deep as these tell them."""
    inner: dict[str, set[str]] = {}
    for field in fields:
        head, rest = re.fullmatch(r"(\[\]|[^.\[]+)\.?(.*)", field).groups()  # type: ignore[union-attr]
        inner.setdefault(head, set()).update({rest} - {""})
    if not fields:
        return
    if set(inner) == {"[]"}:
        assert isinstance(data, list)
        for element in data:
            check(element, inner["[]"])
        return
    assert isinstance(data, dict)
    if set(inner) == {"*"}:
        for value in data.values():
            check(value, inner["*"])
        return
    assert set(data) == set(inner)
    for name, rest in inner.items():
        check(data[name], rest)
