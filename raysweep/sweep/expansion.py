"""From the tree of a sweep file and the samples of its search to runs, and the checks of a search."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import ValidationError

from raysweep import registry
from raysweep.algorithms.base import AlgorithmConfig
from raysweep.downstream.tasks import task_names
from raysweep.evaluation.base import Evaluation
from raysweep.evaluation.metric import Quantity
from raysweep.languages.base import Language
from raysweep.registry import suggest
from raysweep.sweep.check import Checker
from raysweep.sweep.claims import Names
from raysweep.sweep.config import LanguageCache
from raysweep.sweep.document import Node, Problems
from raysweep.sweep.explain import explain, show
from raysweep.sweep.grid import Grid, expand
from raysweep.sweep.merge import Checked
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.search import Search, has_optuna
from raysweep.sweep.sources import Sources

_EXAMPLE = "{metric: excess_loss, samples: 20, space: {algorithm.lr: {loguniform: [1e-4, 1e-2]}}}"


@dataclass(frozen=True)
class Expansion:
    """Makes the runs of a sweep file, with those of the samples of its search."""

    root: Node
    languages: LanguageCache
    sources: Sources
    search: Search | None
    resources: Resources

    def __call__(self, samples: Sequence[Mapping[str, Any]], problems: Problems) -> tuple[Grid, Checked]:
        """Return grid and runs with these samples; problems are collected."""
        root, found = self.root, Problems()
        grid = expand(root, problems, None if self.search is None else samples)
        probes = [] if self.search is None else expand(root, Problems(), self.search.probes()).points
        checker = Checker(found, self.languages, self.sources, self.resources)
        evaluations = checker.evaluations(root.get("evaluate"), root.keys.get("evaluate", root.mark))
        checked = checker.runs(grid.points, evaluations, probes)
        # A field that a faulty axis or search sets is not missing.
        faulty = grid.faulty | (set() if self.search is not None else _space(root))
        drawn: set[str] = set()
        for problem in found:
            message = problem.message
            if self._ranges(problem.field):
                # All numbers of a range have the same fault, and stand nowhere in the file.
                if problem.field in drawn:
                    continue
                drawn.add(problem.field)
                message = f"drawn from this range, {message}"
            if not (message.startswith("missing") and problem.field in faulty):
                problems.add(problem.mark, problem.field, message)
        return grid, checked

    def _ranges(self, path: str) -> bool:
        """Return whether the search draws numbers for a path, and not one of the values that it lists."""
        domain = None if self.search is None else self.search.space.get(path)
        return domain is not None and domain.choice is None

    def runs(self, samples: Sequence[Mapping[str, Any]]) -> tuple[RunSpec, ...]:
        """Return the runs with these samples; raises `ConfigError` if one makes no sense."""
        problems = Problems()
        _, checked = self(samples, problems)
        problems.raise_any()
        return checked.runs


@dataclass(frozen=True)
class Sections:
    """The languages, evaluations and algorithms of a file with mistakes in its runs or its search."""

    languages: Sequence[Language]
    evaluations: Sequence[Evaluation]
    #: None where one of them is wrong, or searched.
    algorithms: Sequence[AlgorithmConfig] | None

    @classmethod
    def of(cls, root: Node, cache: LanguageCache) -> Self | None:
        """Return those of a file; None where its axes, languages or evaluations are wrong, or not known."""
        searched_sections = {path.partition(".")[0] for path in _space(root)}
        if "language" in searched_sections:
            return None
        found, wrong = Problems(), Problems()
        checker = Checker(found, cache)
        evaluations = checker.evaluations(root.get("evaluate"), root.keys.get("evaluate", root.mark))
        languages: dict[int, Language] = {}
        algorithms: dict[int, AlgorithmConfig] = {}
        other = Checker(wrong, cache)
        for point in expand(root, found).points:
            config = checker.section("language", registry.languages, point)
            language = None if config is None else checker.language(config, point)
            if language is not None:
                languages[id(language)] = language
            algorithm = other.section("algorithm", registry.algorithms, point)
            if algorithm is not None:
                algorithms[id(algorithm)] = algorithm
        if found:
            return None
        known = not wrong and "algorithm" not in searched_sections
        measured = [evaluation for evaluation, _, _ in evaluations.values()]
        return cls(list(languages.values()), measured, list(algorithms.values()) if known else None)

    @property
    def names(self) -> Names:
        """The names for claims."""
        tasks = (task for language in self.languages for task in task_names(language))
        return Names.of(tasks, self.algorithms, self.evaluations)

    def check_metric(self, root: Node, problems: Problems) -> None:
        """Check the metric of a search, if there is one, against what is measured."""
        node = root.find(("search", "metric"))
        if node is None or not node.value or not isinstance(node.value, str):
            return
        known = {
            name: quantity
            for evaluation in self.evaluations
            for quantity in evaluation.claimable()
            for language in self.languages
            for name in _named(quantity, task_names(language))
        }
        if _quantity(node.value, known) is None:
            problems.add(node.mark, "search.metric", _not_measured(node.value, known))


def searched(root: Node) -> bool:
    """Return whether a file has a search, right or wrong."""
    node = root.get("search")
    return node is not None and node.value is not None


def _space(root: Node) -> set[str]:
    """Return the paths that a file searches."""
    space = root.find(("search", "space"))
    return set() if space is None else {path for path, _ in space.items()}


def search_of(root: Node, resources: Resources, problems: Problems) -> Search | None:
    """Return the search of a sweep file; None without one, and for one that is wrong."""
    node = root.get("search")
    if node is None or node.value is None:
        return None
    at = root.keys["search"]
    if not isinstance(node.value, dict):
        problems.add(node.mark, "search", f"{show(node.plain)} is not a mapping, e.g. {_EXAMPLE}")
        return None
    try:
        search = Search.decode(node.plain)
    except ValidationError as error:
        explain(error, Search, node, ("search",), at, problems)
        return None

    def wrong(field: str, message: str) -> None:
        there = node.get(field)
        problems.add(at if there is None else there.mark, f"search.{field}", message)

    if search.algorithm == "optuna" and not has_optuna():
        wrong("algorithm", "optuna is not installed; run: pip install 'raysweep[search]', or use random")
    for axes in ("axes", "zip"):
        if search.scheduler is not None and root.plain.get(axes):
            wrong(
                "scheduler",
                f"asha compares single runs, and with {axes} a sample is several; move the {axes} into "
                "search.space as {choice: [...]}, or leave out the scheduler",
            )
    if search.scheduler is not None and resources.engine == "lanes":
        wrong(
            "scheduler",
            "asha may stop a run at any time, and then its processes must end, so resources.engine cannot be "
            "lanes; use auto or nested",
        )
    return search


def with_mode(
    search: Search, root: Node, runs: Sequence[RunSpec], languages: LanguageCache, problems: Problems
) -> Search:
    """Return a search with the mode of its metric, and check that its samples are measured by it."""
    node = root.find(("search", "metric"))
    mark = root.mark if node is None else node.mark
    mine = [spec for spec in runs if spec.trains and set(search.space) <= set(spec.axes)]
    known = _measured(mine, languages)
    found = _quantity(search.metric, known)
    if not mine:
        problems.add(
            mark,
            "search.metric",
            "no sample is trained, so there is nothing to search; search among algorithms that train",
        )
    elif found is None:
        problems.add(mark, "search.metric", _not_measured(search.metric, known))
    elif search.mode is None and found.better is None:
        problems.add(
            mark,
            "search.mode",
            f"missing, as neither is better for '{search.metric}' — add 'mode: min' or 'mode: max'",
        )
    if search.mode is not None or found is None:
        return search
    return search.model_copy(update={"mode": "min" if found.better == "less" else "max"})


def unmeasured(metric: str, runs: Sequence[RunSpec], languages: LanguageCache) -> str | None:
    """Return why no run can be judged by a metric; None if one can."""
    known = _measured(runs, languages)
    return None if _quantity(metric, known) is not None else _not_measured(metric, known)


def _measured(runs: Sequence[RunSpec], languages: LanguageCache) -> dict[str, Quantity]:
    """Return what the evaluations of runs measure, by name."""
    return {
        name: quantity
        for spec in runs
        for evaluation in spec.evaluations.values()
        for quantity in evaluation.claimable()
        for name in _named(quantity, task_names(languages.get(spec.language)))
    }


def _named(quantity: Quantity, tasks: Sequence[str]) -> list[str]:
    """Return the names of a quantity with its tasks filled in; other coordinates stay open."""
    return (
        [quantity.name.replace("{task}", task) for task in tasks]
        if "{task}" in quantity.name
        else [quantity.name]
    )


def _quantity(metric: str, known: Mapping[str, Quantity]) -> Quantity | None:
    """Return the quantity that a metric is of; None where it is of none of the `known` ones."""
    return next((quantity for name, quantity in known.items() if _is(metric, name)), None)


def _not_measured(metric: str, known: Mapping[str, Quantity]) -> str:
    """Return the sentence for a metric that no evaluation has."""
    names = ", ".join(known) or "nothing; add 'evaluate: {excess_loss: {}}'"
    return f"'{metric}' is not measured{suggest(metric, known)}; the sweep measures {names}"


def _is(name: str, known: str) -> bool:
    """Return whether a metric is of a known name, some of whose coordinates may be open.

    >>> [_is(name, "spectrum/hessian/{rank}") for name in ("spectrum/hessian/1", "spectrum/hessian")]
    [True, False]
    """
    return re.fullmatch(".+".join(map(re.escape, re.split(r"\{[^}]*\}", known))), name) is not None
