"""A sweep file as a tree of values with their places.

YAML 1.2 core schema: `1e-3` is a number, `on` and `yes` are strings, a key written twice is an error.  Every
node keeps its file, line and column, so that an error names the place of a wrong value: the sweep file, the
file it extends, an axis, or `--set a.b=c` on the command line.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

from raysweep.errors import ConfigError
from raysweep.registry import suggest
from raysweep.sweep.scalars import Scalar, resolve

#: Most values of a sweep file; nested aliases can grow to more.
MAX_VALUES = 100_000

_CORE_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null")}
# The resolver of ruamel also recognises these in plain scalars; the core schema reads them as text.
_TEXT_TAGS = {f"tag:yaml.org,2002:{name}" for name in ("timestamp", "merge", "value")}

Key = str | int


@dataclass(frozen=True)
class Mark:
    """The place of a value: in a file, or in an override (no line)."""

    source: str
    line: int | None = None
    column: int | None = None
    #: Folder from which relative paths written here start.
    folder: Path = field(default=Path(), compare=False)

    def __str__(self) -> str:
        return self.source if self.line is None else f"{self.source}:{self.line}:{self.column}"

    @property
    def order(self) -> tuple[str, int, int]:
        """Sort key: file, line, column."""
        return (self.source, self.line or 0, self.column or 0)


@dataclass(frozen=True, eq=False)
class Node:
    """A value with its place; `keys` holds the place of each key of a mapping."""

    value: dict[str, Node] | list[Node] | Scalar
    mark: Mark
    keys: Mapping[str, Mark] = field(default_factory=dict)

    @cached_property
    def plain(self) -> Any:
        """The value without places."""
        if isinstance(self.value, dict):
            return {key: child.plain for key, child in self.value.items()}
        if isinstance(self.value, list):
            return [child.plain for child in self.value]
        return self.value

    def items(self) -> Iterator[tuple[str, Node]]:
        """Iterate over a mapping; nothing for any other value."""
        return iter(self.value.items() if isinstance(self.value, dict) else ())

    def elements(self) -> list[Node]:
        """Return the elements of a list; [] for any other value."""
        return self.value if isinstance(self.value, list) else []

    def get(self, key: Key) -> Node | None:
        """Return a child of a mapping or list, or None."""
        if isinstance(self.value, dict) and isinstance(key, str):
            return self.value.get(key)
        if isinstance(self.value, list) and isinstance(key, int) and 0 <= key < len(self.value):
            return self.value[key]
        return None

    def find(self, path: Sequence[Key]) -> Node | None:
        """Return the node at a path, or None."""
        node: Node | None = self
        for key in path:
            node = node.get(key) if node is not None else None
        return node


@dataclass(frozen=True)
class Problem:
    """One thing wrong: place, field, and a sentence with value and remedy."""

    mark: Mark
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.mark}: {self.field}: {self.message}" if self.field else f"{self.mark}: {self.message}"


class Problems:
    """Collects problems, each once, and raises all of them in one `ConfigError`."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def add(self, mark: Mark, name: str, message: str) -> None:
        """Note one problem."""
        self._found[Problem(mark, name, message)] = None

    def raise_any(self) -> None:
        """Raise `ConfigError`, one line per problem in the order of the files, if there are any."""
        if self._found:
            lines = [str(problem) for problem in sorted(self._found, key=lambda p: p.mark.order)]
            raise ConfigError("\n".join(dict.fromkeys(lines)))


def dotted(path: Sequence[Key]) -> str:
    """Return the readable form of a path.

    >>> dotted(("pretrain", "milestones", 2))
    'pretrain.milestones[2]'
    """
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}" if text else key
    return text


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
            value = resolve(node.value) if node.style is None else str(node.value)
            if isinstance(value, float) and not math.isfinite(value):
                self.problems.add(mark, dotted(path), f"{node.value} is not a finite number")
                value = None
            return Node(value, mark)
        self.open.add(id(node))
        try:
            if isinstance(node, SequenceNode):
                return Node([self.read(child, (*path, k)) for k, child in enumerate(node.value)], mark)
            return self._mapping(node, path, mark)
        finally:
            self.open.discard(id(node))

    def _mapping(self, node: MappingNode, path: tuple[Key, ...], mark: Mark) -> Node:
        children: dict[str, Node] = {}
        keys: dict[str, Mark] = {}
        for key_node, value_node in node.value:
            key_mark = self.mark(key_node)
            if not isinstance(key_node, ScalarNode):
                self.problems.add(key_mark, dotted(path), "a key must be a plain word")
                continue
            key = str(key_node.value)
            where = (*path, key)
            if key == "<<" and key_node.style is None:
                self.problems.add(key_mark, dotted(path), "merge keys '<<' are not YAML 1.2; use 'extends'")
                continue
            value = self.read(value_node, where)
            if key in keys:
                first = keys[key]
                at = "" if first.line is None else f" (first at line {first.line})"
                self.problems.add(key_mark, dotted(where), f"key written twice{at}; keep one")
                continue
            children[key], keys[key] = value, key_mark
        return Node(children, mark, keys)


def parse(text: str, place: Mark, problems: Problems) -> Node:
    """Return the tree of a YAML text; if `place` has a line, nodes have their own places in the text.

    Raises `ConfigError` for text that is not YAML; duplicate keys and the like go to `problems`.
    """
    yaml = YAML(typ="safe", pure=True)
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
    except YAMLError as error:
        raise ConfigError(f"{place}: not valid YAML: {str(error).splitlines()[0]}") from None
    if composed is None:
        return Node(None, place)
    return _Reader(place, problems).read(composed, ())


def merge(base: Node, over: Node) -> Node:
    """Return `base` with `over` laid on it.

    Mappings are merged key by key, but a mapping with another `kind` replaces the whole mapping.  Any other
    value replaces the old one.
    """
    if not isinstance(base.value, dict) or not isinstance(over.value, dict):
        return over
    kind, other = base.value.get("kind"), over.value.get("kind")
    if kind is not None and other is not None and kind.value != other.value:
        return over
    children, keys = dict(base.value), dict(base.keys)
    for key, value in over.value.items():
        old = children.get(key)
        children[key] = value if old is None else merge(old, value)
        if children[key] is value:
            keys[key] = over.keys[key]
    return Node(children, base.mark, keys)


def node_of(data: Any, mark: Mark) -> Node:
    """Return the tree of plain data that no file holds; all of its nodes have the place `mark`."""
    if isinstance(data, Mapping):
        children = {str(key): node_of(value, mark) for key, value in data.items()}
        return Node(children, mark, dict.fromkeys(children, mark))
    if isinstance(data, list | tuple):
        return Node([node_of(value, mark) for value in data], mark)
    # Numbers of NumPy and the like become Python's own.
    return Node(data.item() if hasattr(data, "item") else data, mark)


def put(root: Node, path: Sequence[str], node: Node, mark: Mark) -> Node:
    """Return `root` with `node` at `path`; new keys have the place `mark`."""
    if not path:
        return node
    head, rest = path[0], path[1:]
    children = dict(root.value) if isinstance(root.value, dict) else {}
    keys = dict(root.keys)
    keys[head] = keys.get(head, mark) if rest else mark
    children[head] = put(children.get(head) or Node({}, mark), rest, node, mark)
    return Node(children, root.mark, keys)


def nest(path: Sequence[str], node: Node, key_mark: Mark) -> Node:
    """Return a mapping with `node` at `path` and nothing else."""
    for key in reversed(path):
        node = Node({key: node}, key_mark, {key: key_mark})
    return node


def read_file(path: Path, problems: Problems, chain: tuple[Path, ...] = ()) -> Node:
    """Read a sweep file with everything it extends; its root must be a mapping.

    Raises `ConfigError` for a file that is missing, is not YAML, or extends itself.
    """
    place = Mark(str(path), 1, 1, path.parent)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        known = [str(other) for other in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise ConfigError(f"{path}: no such file{suggest(str(path), known)}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from None
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
    if target.resolve() in chain:
        names = " -> ".join(p.name for p in (*chain, target))
        raise ConfigError(f"{parent.mark}: extends: the files extend one another in a circle: {names}")
    if not target.is_file():
        problems.add(parent.mark, "extends", f"no such file: {target}")
        return root
    return merge(read_file(target, problems, chain), root)


def parse_override(text: str, problems: Problems) -> tuple[list[str], Node] | None:
    """Return path and value of `a.b=c`; the right side is YAML.  The rest after `axes.` is one axis name."""
    place = Mark(f"--set {text}", folder=Path.cwd())
    left, equals, right = text.partition("=")
    path = left.strip().split(".")
    if not equals or not all(path):
        problems.add(place, "", "not of the form a.b=c, e.g. pretrain.steps=2000")
        return None
    if not right.strip():
        problems.add(place, left, "no value after '='; write null for none")
        return None
    if path[0] == "axes" and len(path) > 2:
        path = ["axes", ".".join(path[1:])]
    try:
        return path, parse(right, place, problems)
    except ConfigError as error:
        problems.add(place, left, str(error).removeprefix(f"{place}: "))
        return None
