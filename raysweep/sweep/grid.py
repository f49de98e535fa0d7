"""From axes, zip, include and exclude to points: one configuration each, not yet decoded.

    axes      dotted path -> values; the grid is their product, the first axis outermost
    zip       list of groups of axes; the axes of a group walk together, the groups multiply with the grid
    exclude   list of {dotted path: value}; a grid point that agrees with all of one entry is dropped
    include   list of partial configurations; each, laid on the base, is one more point, without the axes
    search    samples of a space, which multiply with the grid as a group of `zip` does (see `search.py`)

Of an axis, `0..4` stands for the whole numbers from 0 to 4, alone or among other values.

A path leads into `language`, `model`, `algorithm`, `pretrain`, `init_from` or `seeds`, or is `seed`.  It may
be a whole section.  Values are merged with the base as by `extends` (see `document.merge`).
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from raysweep.sweep.document import Mark, Node, Problems, merge, nest, node_of
from raysweep.sweep.explain import show, unknown
from raysweep.sweep.identity import EXTENT, canonical

#: Sections that belong to a run; `evaluate` and `resources` belong to the whole sweep.
SECTIONS = ("language", "model", "algorithm", "pretrain", "init_from", "seed", "seeds")

#: Most points of a grid; a larger grid is taken for a mistake.
MAX_POINTS = 100_000


_RANGE = re.compile(r"([-+]?[0-9]{1,18})\.\.([-+]?[0-9]{1,18})\Z")


def is_range(value: object) -> bool:
    """Return whether a value of an axis is a range.

    >>> is_range("0..4"), is_range("0.4")
    (True, False)
    """
    return isinstance(value, str) and _RANGE.match(value) is not None


@dataclass(frozen=True, eq=False)
class Setting:
    """A value laid at a dotted path of the base configuration."""

    path: str
    node: Node
    key: Mark


@dataclass(frozen=True, eq=False)
class Point:
    """One configuration: a node for each of its sections, and its values of the axes."""

    sections: dict[str, Node]
    #: Place of each section's name.
    marks: dict[str, Mark]
    axes: dict[str, Any]


@dataclass(frozen=True)
class Grid:
    """All points, the paths of the axes in order, and the paths of faulty axes, which are left out."""

    points: list[Point]
    axes: tuple[str, ...]
    faulty: frozenset[str]


class Composer:
    """Lays settings on the sections of a base; equal settings give the same node object."""

    def __init__(self, root: Node) -> None:
        self.base = {name: root.get(name) for name in SECTIONS}
        self.marks = {name: root.keys.get(name, root.mark) for name in SECTIONS}
        self._made: dict[tuple[str, tuple[int, ...]], Node] = {}
        self._kept: list[Setting] = []

    def compose(self, settings: Sequence[Setting], axes: dict[str, Any]) -> Point:
        """Return the base with settings laid on it, shorter paths first."""
        sections: dict[str, Node] = {}
        marks = dict(self.marks)
        by_section: dict[str, list[Setting]] = {}
        for setting in settings:
            by_section.setdefault(setting.path.partition(".")[0], []).append(setting)
        for name in SECTIONS:
            base = self.base[name]
            mine = by_section.get(name)
            if mine:
                base = self._lay(name, base, sorted(mine, key=lambda s: s.path.count(".")))
                if self.base[name] is None:
                    marks[name] = mine[0].key
            if base is not None:
                sections[name] = base
        return Point(sections, marks, axes)

    def _lay(self, name: str, base: Node | None, settings: list[Setting]) -> Node:
        key = (name, tuple(id(s.node) for s in settings))
        made = self._made.get(key)
        if made is None:
            self._kept.extend(settings)  # an id is valid only while its object lives
            nodes = [nest(s.path.split(".")[1:], s.node, s.key) for s in settings]
            made = functools.reduce(merge, nodes if base is None else [base, *nodes])
            self._made[key] = made
        return made


def expand(root: Node, problems: Problems, samples: Sequence[Mapping[str, Any]] | None = None) -> Grid:
    """Return all points of a sweep file; errors of its axes go to `problems`.

    `samples` are the settings of those that a search has so far; None for a file without a search.
    """
    reader = _AxesReader(problems)
    groups: list[list[tuple[Setting, ...]]] = []
    axes = root.get("axes")
    if axes is not None and axes.value is not None:
        if not isinstance(axes.value, dict):
            problems.add(axes.mark, "axes", "must be a mapping from dotted paths to lists of values")
        for path, values in axes.items():
            column = reader.column("axes", path, values, axes.keys[path], distinct=True)
            if column:
                groups.append([(setting,) for setting in column])
    for k, group in enumerate(_list_of_mappings(root, "zip", problems)):
        groups.extend(reader.walk(k, group))
    if samples is not None:
        groups.insert(0, reader.samples(root, samples))
    composer = Composer(root)
    size = math.prod(len(group) for group in groups)
    if size > MAX_POINTS:
        mark = root.keys.get("axes") or root.keys.get("zip") or root.mark
        problems.add(mark, "axes", f"{size:,} grid points are more than {MAX_POINTS:,}; use fewer values")
        return Grid([], (), frozenset())
    points = [composer.compose(settings, _shown(settings)) for settings in _product(groups)]
    points = _exclude(root, points, problems)
    names = tuple(setting.path for group in groups for row in group[:1] for setting in row)
    for k, entry in enumerate(_list_of_mappings(root, "include", problems)):
        settings = []
        for path, node in entry.items():
            if reader.known(f"include[{k}].{path}", path, entry.keys[path]):
                settings.append(Setting(path, node, entry.keys[path]))
        point = composer.compose(settings, {})
        found = {name: _value(point, name) for name in names}
        point.axes.update({name: node.plain for name, node in found.items() if node is not None})
        if names:
            # Without these, the run would be called as that of the grid with the same values of the axes.
            point.axes.update(_further(settings, names, composer.base))
        points.append(point)
    if not points and not problems:
        problems.add(root.keys["exclude"], "exclude", "drops every run of the grid; nothing is left to do")
    return Grid(points, names, frozenset(reader.faulty))


def _product(groups: list[list[tuple[Setting, ...]]]) -> Iterator[tuple[Setting, ...]]:
    for rows in itertools.product(*groups):
        yield tuple(itertools.chain.from_iterable(rows))


def _shown(settings: Sequence[Setting]) -> dict[str, Any]:
    return {setting.path: setting.node.plain for setting in settings}


def _further(
    settings: Iterable[Setting], names: Sequence[str], base: Mapping[str, Node | None]
) -> dict[str, Any]:
    """Return the fields that settings change in a base and that are no axes, with their values."""
    found: dict[str, Any] = {}
    for setting in settings:
        for path, node in _leaves(setting.path, setting.node):
            head, *rest = path.split(".")
            section = base[head]
            before = None if section is None else section.find(rest)
            below = any(path == name or path.startswith(f"{name}.") for name in names)
            if not below and (before is None or canonical(before.plain) != canonical(node.plain)):
                found[path] = node.plain
    return found


def _leaves(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield the dotted paths of the values in a mapping, however deep, or the path of any other value."""
    if not isinstance(node.value, dict):
        yield path, node
    for key, inner in node.items():
        yield from _leaves(f"{path}.{key}", inner)


def _value(point: Point, path: str) -> Node | None:
    head, *rest = path.split(".")
    section = point.sections.get(head)
    return section.find(rest) if section is not None else None


class _AxesReader:
    """Reads and checks axes."""

    def __init__(self, problems: Problems) -> None:
        self.problems = problems
        self.taken: dict[str, Mark] = {}
        self.faulty: set[str] = set()

    def known(self, name: str, path: str, mark: Mark) -> bool:
        """Check that a dotted path leads into a section of a run."""
        head, *rest = path.split(".")
        if head in ("evaluate", "resources", "axes", "zip", "include", "exclude", "search", "name"):
            self.problems.add(mark, name, f"'{head}' is the same for all runs of a sweep; set it at the top")
        elif head not in SECTIONS:
            self.problems.add(mark, name, unknown(head, SECTIONS))
        elif not all(rest) or (head == "seed" and rest):
            self.problems.add(
                mark, name, f"'{path}' is not a path; write e.g. model.shape, algorithm.lr or seed"
            )
        else:
            return True
        return False

    def column(self, at: str, path: str, values: Node, mark: Mark, *, distinct: bool) -> list[Setting]:
        """Return the settings of one axis; [] if it is wrong."""
        name = f"{at}.{path}"
        before = len(list(self.problems))
        values = self._ranges(name, values)
        if self.known(name, path, mark):
            if path in self.taken:
                self.problems.add(mark, name, f"already an axis at {self.taken[path]}; keep one")
            self.taken.setdefault(path, mark)
            if not isinstance(values.value, list):
                self.problems.add(
                    values.mark, name, f"{show(values.plain)} is not a list of values, e.g. [0, 1, 2] or 0..2"
                )
            elif not values.value and len(list(self.problems)) == before:
                self.problems.add(
                    values.mark, name, "an axis without values makes no runs; list some or remove it"
                )
            elif distinct:
                self._distinct(name, values.value)
        if len(list(self.problems)) > before:
            self.faulty.add(path)
            return []
        return [Setting(path, node, mark) for node in values.elements()]

    def _ranges(self, name: str, values: Node) -> Node:
        """Return the values of an axis with the numbers of each range in its place."""
        listed = values.value if isinstance(values.value, list) else [values]
        if not any(is_range(node.value) for node in listed):
            return values
        found: list[Node] = []
        for node in listed:
            ends = _RANGE.match(node.value) if isinstance(node.value, str) else None
            if ends is None:
                found.append(node)
                continue
            first, last = int(ends[1]), int(ends[2])
            if first > last:
                self.problems.add(node.mark, name, f"'{node.value}' goes down; write '{last}..{first}'")
            elif last - first >= MAX_POINTS:
                message = f"'{node.value}' has {last - first + 1:,} values, more than {MAX_POINTS:,}"
                self.problems.add(node.mark, name, f"{message}; use fewer")
            else:
                found.extend(Node(number, node.mark) for number in range(first, last + 1))
        return Node(found, values.mark)

    def _distinct(self, name: str, values: list[Node]) -> None:
        seen: dict[str, Node] = {}
        for value in values:
            first = seen.setdefault(canonical(value.plain), value)
            if first is not value:
                self.problems.add(
                    value.mark, name, f"{show(value.plain)} is listed twice; the runs would be the same"
                )

    def walk(self, k: int, group: Node) -> list[list[tuple[Setting, ...]]]:
        """Return the rows of a zip group, as one group of the product; [] if it is wrong."""
        at = f"zip[{k}]"
        columns = [
            self.column(at, path, values, group.keys[path], distinct=False) for path, values in group.items()
        ]
        if not columns:
            self.problems.add(
                group.mark, at, "a group without axes; write e.g. {model.shape: [...], seed: [...]}"
            )
        elif all(columns) and len({len(column) for column in columns}) > 1:
            lengths = ", ".join(f"{column[0].path} has {len(column)}" for column in columns)
            self.problems.add(group.mark, at, f"axes that walk together need equally many values: {lengths}")
            self.faulty.update(column[0].path for column in columns)
        elif all(columns):
            return [list(zip(*columns, strict=True))]
        return []

    def samples(self, root: Node, samples: Sequence[Mapping[str, Any]]) -> list[tuple[Setting, ...]]:
        """Return the rows of a search, one for each sample; its paths are checked as axes are."""
        space = root.find(("search", "space")) or root
        for path, mark in space.keys.items():
            name = f"search.space.{path}"
            if not self.known(name, path, mark):
                self.faulty.add(path)
            elif path.partition(".")[0] == "pretrain" and path.partition(".")[2] in EXTENT:
                message = "is no part of a run's identity, so it cannot be searched; set it at the top"
                self.problems.add(mark, name, message)
                self.faulty.add(path)
            elif path in self.taken:
                message = f"already an axis at {self.taken[path]}; keep one"
                self.problems.add(mark, name, message)
                self.faulty.add(path)
        if self.faulty:
            return []
        return [
            tuple(Setting(path, _drawn(space, path, value), space.keys[path]) for path, value in one.items())
            for one in samples
        ]


def _drawn(space: Node, path: str, value: Any) -> Node:
    """Return the node of a value of a search: that of the choice it is, or one at the place of its range."""
    choices = space.find((path, "choice"))
    for node in choices.elements() if choices is not None else ():
        if canonical(node.plain) == canonical(value):
            return node
    there = space.get(path)
    return node_of(value, space.keys[path] if there is None else there.mark)


def _list_of_mappings(root: Node, name: str, problems: Problems) -> list[Node]:
    node = root.get(name)
    if node is None or node.value is None:
        return []
    if not isinstance(node.value, list):
        problems.add(node.mark, name, "must be a list of mappings, each behind a '-'")
        return []
    for k, entry in enumerate(node.value):
        if not isinstance(entry.value, dict):
            problems.add(entry.mark, f"{name}[{k}]", f"{show(entry.plain)} is not a mapping")
    return [entry for entry in node.value if isinstance(entry.value, dict)]


def _exclude(root: Node, points: list[Point], problems: Problems) -> list[Point]:
    """Return the points that no entry of `exclude` matches; an entry that matches none is a mistake."""
    for k, entry in enumerate(_list_of_mappings(root, "exclude", problems)):
        if not entry.value:
            problems.add(entry.mark, f"exclude[{k}]", "matches every run; name a path and a value")
            continue
        wanted = [(path, node.plain) for path, node in entry.items()]
        wrong = [path for path, _ in wanted if path.split(".")[0] not in SECTIONS]
        for path in wrong:
            problems.add(entry.keys[path], f"exclude[{k}].{path}", unknown(path.split(".")[0], SECTIONS))
        kept = [point for point in points if not all(_agrees(_value(point, p), v) for p, v in wanted)]
        if len(kept) == len(points) and points and not wrong:
            problems.add(
                entry.mark, f"exclude[{k}]", f"matches no run: {show(entry.plain)}; correct or remove it"
            )
        points = kept
    return points


def _agrees(node: Node | None, value: Any) -> bool:
    """Return whether a node equals `value`; of a mapping, only the keys of `value` count."""
    if node is None:
        return False
    if isinstance(value, dict):
        return all(_agrees(node.get(key), inner) for key, inner in value.items())
    return canonical(node.plain) == canonical(value) or (
        _number(node.plain) and _number(value) and node.plain == value
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
