"""Reads sweep files and overrides into trees (`document.py`).

YAML 1.2 core schema: `1e-3` is a number, `on` and `yes` are strings, a key written twice is an error.  Text
is refused before it is read where it is larger than `MAX_CHARACTERS`, nested deeper than `MAX_DEPTH` or grows
to more than `MAX_VALUES` values.
"""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import Composer
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError

from raysweep.errors import ConfigError
from raysweep.registry import suggest
from raysweep.sweep.document import Key, Mark, Node, Problems, dotted, lay
from raysweep.sweep.scalars import Scalar, resolve

#: Most characters of a sweep file; its values take some hundred times as much memory.
MAX_CHARACTERS = 1_000_000

#: Most lists and mappings inside one another.
MAX_DEPTH = 50

#: Most values of a sweep file; nested aliases can grow to more.
MAX_VALUES = 100_000

_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null")}
# The resolver of ruamel also recognises these in plain scalars; the core schema reads them as text.
_TEXT_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "merge", "value")}


class _Shallow(Composer):
    """Composes YAML up to `MAX_DEPTH`: each level takes a part of Python's own depth."""

    level = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # YAML lets an anchor be used again; a warning would stand among our own lines.
        self.warn_double_anchors = False

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.level > MAX_DEPTH:
            mark = self.parser.peek_event().start_mark
            raise MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        self.level += 1
        node = super().compose_node(parent, index)
        self.level -= 1
        return node


class _Reader:
    """Turns composed YAML into nodes, noting duplicate keys and foreign tags."""

    def __init__(self, place: Mark, problems: Problems) -> None:
        self.place = place
        self.problems = problems
        self.count = 0
        self.open: set[int] = set()

    def mark(self, node: Any) -> Mark:
        if self.place.line is None:
            return self.place
        start = node.start_mark
        return Mark(self.place.source, start.line + 1, start.column + 1, self.place.folder)

    def read(self, node: Any, path: tuple[Key, ...]) -> Node:
        mark = self.mark(node)
        self.count += 1
        if self.count > MAX_VALUES:
            raise ConfigError(f"{mark}: more than {MAX_VALUES:,} values; are aliases nested too deep?")
        if id(node) in self.open:
            raise ConfigError(f"{mark}: an alias that contains itself; write the value out")
        tag = str(node.tag)
        if tag not in _CORE_TAGS | _TEXT_TAGS:
            self.problems.add(mark, dotted(path), f"tag '{tag}' is not supported; write a plain value")
        if isinstance(node, ScalarNode):
            if node.style is not None:
                return Node(self.text(str(node.value), mark, path), mark)
            return Node(self.scalar(node.value, mark, path), mark, blank=not node.value)
        self.open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return Node([self.read(child, (*path, k)) for k, child in enumerate(node.value)], mark)
            return self._mapping(node, path, mark)
        finally:
            self.open.discard(id(node))

    def scalar(self, text: str, mark: Mark, path: tuple[Key, ...]) -> Scalar:
        """Return the value of a plain scalar; one that cannot be used is a problem, and None."""
        try:
            value = resolve(text)
        except ValueError as error:
            self.problems.add(mark, dotted(path), str(error), unread=True)
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.problems.add(mark, dotted(path), f"{text} is not a finite number", unread=True)
            return None
        return self.text(value, mark, path) if isinstance(value, str) else value

    def text(self, text: str, mark: Mark, path: tuple[Key, ...]) -> str:
        """Return a text; one that no file name and no terminal can hold is a problem."""
        wrong = next((c for c in text if c == "\0" or "\ud800" <= c <= "\udfff"), None)
        if wrong is not None:
            message = f"holds the character {wrong!a}, which no file name can hold; remove it"
            self.problems.add(mark, dotted(path), message, unread=True)
            return text.replace(wrong, "?")
        return text

    def _mapping(self, node: MappingNode, path: tuple[Key, ...], mark: Mark) -> Node:
        children: dict[str, Node] = {}
        keys: dict[str, Mark] = {}
        for key_node, value_node in node.value:
            key_mark = self.mark(key_node)
            if not isinstance(key_node, ScalarNode):
                self.problems.add(key_mark, dotted(path), "a key must be a plain word")
                continue
            key = self.text(str(key_node.value), key_mark, path)
            where = (*path, key)
            if key == "<<" and key_node.style is None:
                self.problems.add(key_mark, dotted(path), "merge keys '<<' are not YAML 1.2; use 'extends'")
                continue
            value = self.read(value_node, where)
            head, _, rest = key.partition(":")
            if value.blank and rest and key_node.style is None:
                self.problems.add(
                    key_mark, dotted(path), f"'{key}': YAML wants a space behind the colon: '{head}: {rest}'"
                )
                key, where = head, (*path, head)
                value = Node(self.scalar(rest, key_mark, where), key_mark)
            if key in keys:
                first = keys[key]
                at = "" if first.line is None else f" (first at line {first.line})"
                self.problems.add(key_mark, dotted(where), f"key written twice{at}; keep one")
                continue
            children[key], keys[key] = value, key_mark
        return Node(children, mark, keys)


def parse(text: str, place: Mark, problems: Problems, path: tuple[Key, ...] = ()) -> Node:
    """Return the tree of a YAML text; if `place` has a line, nodes have their own places in the text.

    `path` is the field that the text is the value of.

    Raises `ConfigError` for text that is not YAML; duplicate keys and the like go to `problems`.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{place}: more than {MAX_CHARACTERS:,} characters; is this a sweep file?")
    yaml = YAML(typ="safe", pure=True)
    yaml.Composer = _Shallow
    try:
        # One document only: compose raises on a second one.
        composed = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = place
        if mark is not None and place.line is not None:
            where = Mark(place.source, mark.line + 1, mark.column + 1, place.folder)
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        raise ConfigError(f"{where}: not valid YAML: {what}") from None
    except ReaderError as error:
        where = place
        if place.line is not None:
            before = text[: error.position].split("\n")
            where = Mark(place.source, len(before), len(before[-1]) + 1, place.folder)
        raise ConfigError(f"{where}: not valid YAML: {str(error).splitlines()[0]}") from None
    except YAMLError as error:
        raise ConfigError(f"{place}: not valid YAML: {str(error).splitlines()[0]}") from None
    if composed is None:
        return Node(None, place)
    return _Reader(place, problems).read(composed, path)


def read_file(
    path: Path, problems: Problems, chain: tuple[Path, ...] = (), files: list[Path] | None = None
) -> Node:
    """Read a sweep file with everything it extends; its root must be a mapping.

    `files` takes the path of each file that is read.

    Raises `ConfigError` for a file that is missing, is not YAML, or extends itself.
    """
    place = Mark(str(path), 1, 1, path.parent)
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARACTERS + 1)
    except FileNotFoundError:
        beside = path.parent.glob("*.y*ml") if path.parent.is_dir() else ()
        # Names that share a folder and an ending alone are not near.
        known = [str(other) for other in beside if suggest(path.stem, [other.stem])]
        raise ConfigError(f"{path}: no such file{suggest(str(path), known)}") from None
    except IsADirectoryError:
        raise ConfigError(f"{path}: is a folder; name a sweep file (YAML)") from None
    except UnicodeDecodeError:
        raise _no_text(path) from None
    except (OSError, ValueError) as error:  # such as a NUL in the name
        raise ConfigError(f"{path}: cannot be read: {error}") from None
    if "\0" in text and len(text) <= MAX_CHARACTERS:
        raise _no_text(path)
    if files is not None:
        files.append(path)
    root = parse(text, place, problems)
    if not isinstance(root.value, dict):
        raise ConfigError(f"{path}:1:1: a sweep file is a mapping with 'name', 'language', 'model' and so on")
    parent = root.value.pop("extends", None)
    if parent is None:
        return root
    if not isinstance(parent.value, str) or not parent.value:
        problems.add(parent.mark, "extends", f"{parent.plain!r} is not a file name, e.g. base.yaml")
        return root
    target = Path(os.path.normpath(path.parent / parent.value))
    chain = (*chain, path.resolve())
    try:
        there, final = target.is_file(), target.resolve()
    except OSError as error:  # such as a name that is too long
        problems.add(parent.mark, "extends", f"{target} cannot be read: {error.strerror}")
        return root
    if final in chain:
        names = " -> ".join(p.name for p in (*chain, target))
        raise ConfigError(f"{parent.mark}: extends: the files extend one another in a circle: {names}")
    if not there:
        problems.add(parent.mark, "extends", f"no such file: {target}")
        return root
    return lay(read_file(target, problems, chain, files), root, problems)


def _no_text(path: Path) -> ConfigError:
    return ConfigError(f"{path}: is not a text file in UTF-8; name a sweep file (YAML)")


def parse_override(text: str, problems: Problems) -> tuple[list[str], Node] | None:
    """Return path and value of `a.b=c`; the right side is YAML.

    What follows `axes.` or `search.space.` is one path.
    """
    place = Mark.of_override(text)
    left, equals, right = text.partition("=")
    path = left.strip().split(".")
    if not equals or not all(path):
        problems.add(place, "", "not of the form a.b=c, e.g. pretrain.steps=2000")
        return None
    if not right.strip():
        problems.add(place, left, "no value after '='; write null for none")
        return None
    for section in (["axes"], ["search", "space"]):
        if path[: len(section)] == section and len(path) > len(section):
            path = [*section, ".".join(path[len(section) :])]
    try:
        return path, parse(right, place, problems, tuple(path))
    except ConfigError as error:
        problems.add(place, left, str(error).removeprefix(f"{place}: "))
        return None
