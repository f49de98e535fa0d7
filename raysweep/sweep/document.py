"""A sweep file as a tree of values with their places.

Every node keeps its file, line and column, so that an error names the place of a wrong value: the sweep file,
the file it extends, an axis, or `--set a.b=c` on the command line.  `reading.py` makes trees of text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError
from raysweep.registry import suggest
from raysweep.sweep.scalars import Scalar

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

    @classmethod
    def of_override(cls, text: str) -> Mark:
        """Return the place of an override, whose text may be long."""
        return cls(f"--set {text if len(text) <= 100 else text[:97] + '...'}", folder=Path.cwd())

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
    #: True for a key with nothing behind it, which YAML reads as null too.
    blank: bool = False

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


def _shortened(text: str, most: int) -> str:
    """Return text without its middle where a value in it is very long, with `most` characters at each end."""
    return text if len(text) <= 2 * most else f"{text[:most]} ... {text[-most:]}"


@dataclass(frozen=True)
class Problem:
    """One thing wrong: place, field, and a sentence with value and remedy."""

    mark: Mark
    field: str
    message: str

    def __str__(self) -> str:
        parts = (str(self.mark), _shortened(self.field, 60), _shortened(self.message, 500))
        return ": ".join(part for part in parts if part)


class Problems:
    """Collects problems, each once, and raises all of them in one `ConfigError`."""

    def __init__(self) -> None:
        self._found: dict[Problem, None] = {}
        self._unread: set[Mark | tuple[Mark, str]] = set()

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Problem]:
        return iter(self._found)

    def add(self, mark: Mark, name: str, message: str, *, unread: bool = False) -> None:
        """Note one problem.  With `unread` the value was not read, so what follows from it is left out."""
        # All of an override has one place.
        place = mark if mark.line is not None else (mark, name)
        if place not in self._unread:
            self._found[Problem(mark, name, message)] = None
        if unread:
            self._unread.add(place)

    @property
    def unread(self) -> bool:
        """Whether there is a value that was not read."""
        return bool(self._unread)

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


#: Sections whose entries null takes away, and what these are.
REMOVABLE = {"evaluate": "evaluation", "axes": "axis"}


def remove(root: Node, section: str, name: str, mark: Mark, problems: Problems) -> Node:
    """Return `root` without an entry of one of `REMOVABLE`; one that is not there is a problem."""
    found = root.get(section)
    if found is None or found.get(name) is None:
        there = [key for key, _ in found.items()] if found is not None else []
        hint = suggest(name, there) or f"; there: {', '.join(there) or 'none'}"
        message = f"null removes an {REMOVABLE[section]}, but there is none of this name{hint}"
        problems.add(mark, f"{section}.{name}", message)
        return root
    left = {key: child for key, child in found.items() if key != name}
    return put(root, (section,), Node(left, found.mark, found.keys), root.keys[section])


def lay(base: Node, over: Node, problems: Problems) -> Node:
    """Return the tree of a file laid on the one that it extends; null removes an evaluation or an axis."""
    for section in REMOVABLE:
        entries = over.get(section) or Node({}, over.mark)
        for name in [key for key, child in entries.items() if child.value is None and not child.blank]:
            base = remove(base, section, name, entries.keys[name], problems)
            over = remove(over, section, name, entries.keys[name], problems)
    return merge(base, over)


def nest(path: Sequence[str], node: Node, key_mark: Mark) -> Node:
    """Return a mapping with `node` at `path` and nothing else."""
    for key in reversed(path):
        node = Node({key: node}, key_mark, {key: key_mark})
    return node
