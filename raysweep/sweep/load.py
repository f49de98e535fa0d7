"""Reads a sweep file into a `Sweep`: extended, overridden, expanded, decoded and checked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raysweep.downstream.tasks import task_names
from raysweep.errors import ConfigError
from raysweep.sweep.check import Checker
from raysweep.sweep.claims import Names, Questions
from raysweep.sweep.config import LanguageCache, Sweep
from raysweep.sweep.document import REMOVABLE, Key, Mark, Node, Problems, dotted, node_of, put, remove
from raysweep.sweep.expansion import Expansion, Sections, search_of, searched, with_mode
from raysweep.sweep.explain import explain, show, unknown
from raysweep.sweep.grid import SECTIONS, Composer, Setting, is_range
from raysweep.sweep.identity import EXTENT
from raysweep.sweep.keeping import KEEPS
from raysweep.sweep.notice import notify_problem
from raysweep.sweep.reading import parse_override, read_file
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.samples import recorded, with_stops
from raysweep.sweep.sources import Sources
from raysweep.sweep.storage import storage_root
from raysweep.sweep.tracking_uri import check_tracking_uri

FIELDS = (
    "name",
    "description",
    "extends",
    "language",
    "model",
    "algorithm",
    "pretrain",
    "init_from",
    "evaluate",
    "seed",
    "seeds",
    "axes",
    "zip",
    "include",
    "exclude",
    "search",
    "resources",
    "keep",
    "notify",
    "tolerance",
    "claims",
    "paper",
)

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")


def load_sweep(
    path: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    *,
    storage: str | os.PathLike[str] | None = None,
    tracking_uri: str | None = None,
) -> Sweep:
    """Read a sweep file and return its sweep, every run decoded and checked.

    `overrides` are `a.b=c` with a YAML value on the right, which replaces the value in the file;
    `axes.a.b=[...]` sets an axis.  `evaluate.a=null` removes an evaluation and `axes.a.b=null` an axis.
    `storage` is the root of results: by default $RAYSWEEP_STORAGE, else `./results`.  `tracking_uri` None
    means SQLite in the sweep's folder; see `check_tracking_uri`.

    Raises `ConfigError` with one line `file:line:column: field: message` for each error.
    """
    root_directory = storage_root(storage)
    check_tracking_uri(tracking_uri)
    problems = Problems()
    root = read_file(Path(path), problems)
    root = override(root, overrides, problems)
    _top(root, problems)
    resources = _resources(root, problems)
    notify = _notify(root, problems)
    questions = _questions(root, problems)
    search = search_of(root, resources, problems)
    languages = LanguageCache()
    sources = Sources(root_directory, str(root.plain.get("name")), languages)
    expansion = Expansion(root, languages, sources, search, resources)
    samples = [] if search is None else [search.draw(k) for k in range(search.drawn)]
    before, asked = len(problems), list[str]()
    grid, checked = expansion(samples, problems)
    if len(problems) == before and not problems.unread and (search is not None or not searched(root)):
        known = _known(checked.runs, languages)
        _names(root, questions, known, problems)
        asked += questions.unanswered(known)
        if search is not None:
            search = with_mode(search, root, checked.runs, languages, problems)
    # A run that is not there would be missed by what names it.
    elif (sections := Sections.of(root, languages)) is not None:
        _names(root, questions, sections.names, problems)
        sections.check_metric(root, problems)
    problems.raise_any()
    if search is not None and search.drawn < search.samples:
        first = [spec for spec in checked.runs if search.belongs(spec.axes, samples[0])]
        samples += recorded(root_directory / str(root.plain["name"]), search, first)
        grid, checked = expansion(samples, problems)
        problems.raise_any()
    description = root.get("description")
    # The address of a webhook is often a secret, so no record has it.
    plain = {key: value for key, value in root.plain.items() if key not in ("extends", "notify")}
    sweep = Sweep(
        name=str(root.plain["name"]),
        description=str(description.value) if description is not None and description.value else "",
        path=Path(path),
        runs=checked.runs,
        resources=resources,
        notify=notify,
        storage=root_directory,
        tracking_uri=tracking_uri,
        axes=tuple(
            name
            for name in grid.axes
            if name.partition(".")[2] not in EXTENT or any(name in run.axes for run in checked.runs)
        ),
        config=plain,
        notes=(*checked.notes, *asked, *_remarks(checked.runs, languages)),
        points=len(grid.points),
        languages=languages,
        make_variant=_Variants(root, languages, sources, resources),
        search=search,
        samples=tuple(samples),
        make_runs=None if search is None else expansion.runs,
    )
    return with_stops(sweep)


def _remarks(runs: Iterable[RunSpec], languages: LanguageCache) -> list[str]:
    """Return the remarks on the languages of runs, each once."""
    configs = {id(spec.language): spec.language for spec in runs}
    return list(dict.fromkeys(said for each in configs.values() for said in languages.get(each).remarks()))


def override(root: Node, overrides: Sequence[str], problems: Problems, *, base: bool = False) -> Node:
    """Return the tree with overrides laid on it, in order.

    With `base` the tree's axes are ignored, so a field that is an axis may be overridden.  Raises
    `ConfigError` for what is no list of texts.
    """
    texts = isinstance(overrides, Sequence) and not isinstance(overrides, str | bytes)
    if not texts or not all(isinstance(one, str) for one in overrides):
        raise ConfigError(f'overrides: {show(overrides)} is not a list of texts such as ["seed=1"]')
    for text in overrides:
        parsed = parse_override(text, problems)
        if parsed is None:
            continue
        path, node = parsed
        name = ".".join(path)
        axes = root.get("axes")
        mark = Mark.of_override(text)
        if path[0] not in FIELDS:
            problems.add(mark, name, unknown(path[0], FIELDS))
        elif path[0] == "extends":
            problems.add(mark, name, "cannot be overridden; write it in the sweep file")
        elif not base and axes is not None and axes.get(name) is not None:
            value = text.partition("=")[2].strip()
            values = value if is_range(value) else f"[{value}]"
            problems.add(mark, name, f"is an axis of this sweep; write --set axes.{name}={values}")
        elif not base and root.find(("search", "space", name)) is not None:
            value = text.partition("=")[2].strip()
            remedy = f"--set 'search.space.{name}={{choice: [{value}]}}'"
            problems.add(mark, name, f"is searched by this sweep; write {remedy}")
        elif path[0] in REMOVABLE and len(path) == 2 and node.value is None:
            root = remove(root, path[0], path[1], mark, problems)
        else:
            root = put(root, path, node, mark)
    return root


def _top(root: Node, problems: Problems) -> None:
    """Check the fields at the top that belong to no section."""
    for key, _ in root.items():
        if key not in FIELDS:
            problems.add(root.keys[key], key, unknown(key, FIELDS))
    name = root.get("name")
    if name is None:
        problems.add(Mark(root.mark.source, 1, 1), "name", "missing — add 'name: my-sweep'")
    elif not isinstance(name.value, str) or not _NAME.match(name.value):
        problems.add(
            name.mark,
            "name",
            f"{show(name.plain)} is not a folder name; use at most 100 letters, digits, '.', '_' and '-', "
            "the first a letter or digit",
        )
    description = root.get("description")
    if description is not None and not isinstance(description.value, str | None):
        problems.add(
            description.mark, "description", f"{show(description.plain)} is not text; put it in quotes"
        )
    keep = root.get("keep")
    if keep is not None and keep.value not in (None, *KEEPS):
        problems.add(keep.mark, "keep", f"{show(keep.plain)} is none of {', '.join(KEEPS)}")


def _notify(root: Node, problems: Problems) -> tuple[str, ...]:
    """Return the commands and webhooks that learn of the end of a launch."""
    node = root.get("notify")
    if node is None or node.value is None:
        return ()
    found = node.plain if isinstance(node.value, list) else [node.plain]
    for target in found:
        wrong = notify_problem(target)
        if wrong is not None:
            problems.add(node.mark, "notify", wrong)
    return tuple(map(str, found))


def _resources(root: Node, problems: Problems) -> Resources:
    node = root.get("resources")
    if node is None or node.value is None:
        return Resources()
    if not isinstance(node.value, dict):
        problems.add(node.mark, "resources", "must be a mapping, e.g. {workers: 1, per_worker: {CPU: 1}}")
        return Resources()
    try:
        return Resources.decode(node.plain)
    except ValidationError as error:
        explain(error, Resources, node, ("resources",), root.keys["resources"], problems)
        return Resources()


def _questions(root: Node, problems: Problems) -> Questions:
    """Return the fields that say what the results are asked."""
    try:
        questions = Questions.of(root.plain)
    except ValidationError as error:
        explain(error, Questions, root, (), root.mark, problems)
        return Questions.right(root.plain)
    _told(root, questions.repeated(), problems)
    return questions


def _known(runs: Sequence[RunSpec], languages: LanguageCache) -> Names:
    """Return the names that runs have for the claims about them."""
    trained = [spec for spec in runs if spec.trains]
    # Runs share their evaluations, so each is asked once.
    evaluations = {id(one): one for spec in trained for one in spec.evaluations.values()}
    configs = {id(spec.language): spec.language for spec in runs}
    return Names.of(
        tasks=(task for one in configs.values() for task in task_names(languages.get(one))),
        algorithms=list({id(spec.algorithm): spec.algorithm for spec in runs}.values()),
        evaluations=evaluations.values(),
    )


def _names(root: Node, questions: Questions, known: Names, problems: Problems) -> None:
    """Check the tasks, algorithms and metrics that claims name."""
    _told(root, questions.misnamed(known), problems)


def _told(root: Node, faults: Iterable[tuple[tuple[Key, ...], str]], problems: Problems) -> None:
    """Note faults at their places."""
    for path, message in faults:
        node = root.find(path)
        problems.add(root.mark if node is None else node.mark, dotted(path), message)


@dataclass(frozen=True)
class _Variants:
    """Makes runs from the base of a sweep file and other settings; see `Sweep.variant`."""

    root: Node
    languages: LanguageCache
    sources: Sources
    resources: Resources

    def __call__(self, settings: Mapping[str, Any]) -> RunSpec:
        problems = Problems()
        laid: list[Setting] = []
        for path, value in settings.items():
            mark = Mark(f"setting {path}", folder=Path.cwd())
            head, *rest = path.split(".")
            if head not in SECTIONS or not all(rest):
                problems.add(mark, path, unknown(head, SECTIONS))
                continue
            laid.append(Setting(path, node_of(value, mark), mark))
        point = Composer(self.root).compose(laid, {})
        checker = Checker(problems, self.languages, self.sources, self.resources)
        evaluate = self.root.get("evaluate")
        evaluations = checker.evaluations(evaluate, self.root.keys.get("evaluate", self.root.mark))
        checked = checker.runs([point], evaluations)
        problems.raise_any()
        axes = {setting.path: setting.node.plain for setting in laid}
        return checked.runs[0].with_axes(axes)
