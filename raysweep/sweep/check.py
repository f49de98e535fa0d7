"""From points to runs: decoding, and every check that needs more than one field.

Each distinct section is decoded once and each pair checked once, however many runs share them.
"""

from __future__ import annotations

import glob
import os
import re
import typing
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from raysweep import registry
from raysweep.algorithms.base import AlgorithmConfig
from raysweep.errors import RaysweepError
from raysweep.evaluation.base import Evaluation
from raysweep.languages.base import Language, LanguageConfig
from raysweep.languages.training_set import TrainingSet
from raysweep.models.base import ModelConfig
from raysweep.registry import Config, Registry, suggest
from raysweep.sweep.config import LanguageCache
from raysweep.sweep.document import Mark, Node, Problems, dotted
from raysweep.sweep.explain import explain, explain_named, nearest, one_line, show, unknown
from raysweep.sweep.grid import Point, is_range
from raysweep.sweep.identity import extent
from raysweep.sweep.merge import Checked, Merger
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.sources import Sources, Starting
from raysweep.training.config import PretrainConfig
from raysweep.training.seeds import Seeds
from raysweep.training.start import InitFrom

C = TypeVar("C", bound=Config)

_KEY = re.compile(r"[A-Za-z]\w{0,49}\Z", re.ASCII)

_NEEDED = {
    "language": "language: {kind: pcfg, seed: 0}",
    "model": "model: {kind: encoder, shape: 64/1/2/256}",
    "algorithm": "algorithm: {kind: adamw}",
    "pretrain": "pretrain: {steps: 1000, batch_size: 256}",
    "init_from": "init_from: {run: RUN@STEP}",
}


class Checker:
    """Decodes and checks the points of one sweep file, whose runs have `resources`."""

    def __init__(
        self,
        problems: Problems,
        languages: LanguageCache,
        sources: Sources | None = None,
        resources: Resources | None = None,
    ) -> None:
        self.problems = problems
        self.languages = languages
        self.sources = sources
        self.resources = resources or Resources()
        self._decoded: dict[tuple[str, int], Any] = {}
        self._alive: list[Node] = []
        self._built: dict[int, Language | None] = {}
        self._fitted: set[tuple[int, ...]] = set()
        #: Languages with problems; no run is made of them.
        self._faulty: set[int] = set()

    def evaluations(self, node: Node | None, mark: Mark) -> dict[str, tuple[Evaluation, Node, Mark]]:
        """Decode `evaluate`: key -> settings; a key without a value has the defaults of its kind.

        The key is the kind, unless the settings name another kind: then it is the evaluation's name.
        """
        found: dict[str, tuple[Evaluation, Node, Mark]] = {}
        if node is None or node.value is None:
            return found
        if not isinstance(node.value, dict):
            self.problems.add(node.mark, "evaluate", "must be a mapping, e.g. {excess_loss: {}, trace: {}}")
            return found
        for key, settings in node.items():
            at = node.keys[key]
            if settings.blank:
                settings = Node({}, settings.mark)
            if not isinstance(settings.value, dict):
                message = f"{show(settings.plain)} is not a mapping of settings"
                if settings.value is None:
                    message += "; write {} for the defaults (null removes what `extends` brings)"
                self.problems.add(settings.mark, f"evaluate.{key}", message)
                continue
            cls = self._evaluation_class(key, settings, at)
            if cls is None:
                continue
            data = self._with_absolute_paths(cls, settings, f"evaluate.{key}")
            data |= {"name": key} if "kind" in data else {"kind": key}
            evaluation = self._validate(cls, data, settings, ("evaluate", key), at)
            if evaluation is not None:
                found[key] = (evaluation, settings, at)
        return found

    def _evaluation_class(self, key: str, settings: Node, at: Mark) -> type[Evaluation] | None:
        """Return the class of the evaluation under a key, or None if the key or the kind is wrong."""
        name, kinds, kind = f"evaluate.{key}", registry.evaluations.kinds(), settings.get("kind")
        if settings.get("name") is not None:
            self.problems.add(settings.keys["name"], f"{name}.name", "remove it; the key above is the name")
        elif kind is None and key not in kinds:
            self.problems.add(at, name, unknown(key, kinds, "evaluation"))
        elif kind is None:
            return registry.evaluations.get(key)
        elif key in kinds:
            self.problems.add(settings.keys["kind"], f"{name}.kind", "remove it; the key above is the kind")
        elif not _KEY.match(key):
            self.problems.add(
                at, name, f"{show(key)} is not a name; use a letter, then letters, digits and '_'"
            )
        elif kind.value not in kinds:
            message = unknown(str(kind.plain), kinds, "evaluation")
            self.problems.add(kind.mark, f"{name}.kind", message)
        else:
            return registry.evaluations.get(str(kind.value))
        return None

    def section(self, name: str, source: Registry[Any] | type[Config], point: Point) -> Any:
        """Return the decoded section of a point, or None if it is wrong.

        `source` is the registry of its kinds, or its class if it has only one.
        """
        node, at = point.sections.get(name), point.marks[name]
        if node is None or node.value is None:
            self.problems.add(at if node else Mark(at.source, 1, 1), name, f"missing — add '{_NEEDED[name]}'")
            return None
        key = (name, id(node))
        if key not in self._decoded:
            self._alive.append(node)
            self._decoded[key] = self._decode(name, source, node, at)
        return self._decoded[key]

    def _decode(self, name: str, source: Registry[Any] | type[Config], node: Node, at: Mark) -> Config | None:
        if not isinstance(node.value, dict):
            message = f"{show(node.plain)} is not a mapping; write '{_NEEDED[name]}'"
            self.problems.add(node.mark, name, message)
            return None
        cls = source if isinstance(source, type) else self._class_of(name, source, node, at)
        if cls is None:
            return None
        return self._validate(cls, self._with_absolute_paths(cls, node, name), node, (name,), at)

    def _class_of(self, name: str, family: Registry[Any], node: Node, at: Mark) -> type[Config] | None:
        """Return the class that a section's `kind` names, or None if there is no such class."""
        kind, choices = node.get("kind"), ", ".join(family.kinds())
        if kind is None:
            self.problems.add(at, f"{name}.kind", f"missing — choose one of {choices}")
            return None
        if not isinstance(kind.value, str) or kind.value not in family.kinds():
            hint = suggest(str(kind.plain), family.kinds())
            message = f"unknown {name} kind {show(kind.plain)}{hint}; known: {choices}"
            self.problems.add(kind.mark, f"{name}.kind", message)
            return None
        cls: type[Config] = family.get(kind.value)
        return cls

    def _validate(
        self, cls: type[C], data: Mapping[str, Any], node: Node, prefix: tuple[str, ...], at: Mark
    ) -> C | None:
        try:
            return cls.decode(data)
        except ValidationError as error:
            explain(error, cls, node, prefix, at, self.problems)
        except RaysweepError as error:
            self.problems.add(at, ".".join(prefix), one_line(str(error)))
        return None

    def _with_absolute_paths(self, cls: type[Config], node: Node, name: str) -> dict[str, Any]:
        """Return plain data with absolute paths; relative ones start from the folder of their file."""
        data: dict[str, Any] = dict(node.plain)
        for key, child in node.items():
            part = _part(cls, key)
            if part is not None:
                data[key] = [
                    self._with_absolute_paths(part, element, f"{name}.{key}[{k}]")
                    if isinstance(element.value, dict)
                    else element.plain
                    for k, element in enumerate(child.elements())
                ] or child.plain
            if not isinstance(child.value, str) or key not in cls.model_fields:
                continue
            path = child.mark.folder / os.path.expanduser(child.value)
            if key in getattr(cls, "hub_or_path", ()):
                # A name on the hub may look like a path too: it is a path if something exists there.
                if os.path.exists(path) or child.value.startswith(("/", "./", "../", "~")) or _matches(path):
                    data[key] = os.path.abspath(path)
            elif is_path(cls, key):
                if not os.path.exists(path):
                    self.problems.add(child.mark, f"{name}.{key}", f"no such file: {path}", unread=True)
                data[key] = os.path.abspath(path)
        return data

    def seeds(self, point: Point) -> Seeds | None:
        """Return the seeds of a point: `seed`, by default 0, where `seeds` names no other."""
        seed, node = self._seed(point), point.sections.get("seeds")
        if seed is None or node is None or node.value is None:
            return None if seed is None else Seeds.of(seed)
        if not isinstance(node.value, dict):
            message = f"{show(node.plain)} is not a mapping, e.g. {{init: 0, data: 1, dropout: 0}}"
            self.problems.add(node.mark, "seeds", message)
            return None
        own = {name: value for name, value in node.plain.items() if value is not None}
        if "seed" in point.axes and own.keys() >= Seeds.model_fields.keys():
            message = "names all seeds, so the axis seed has no effect; leave out that axis, or one of these"
            self.problems.add(node.mark, "seeds", message)
            return None
        return self._validate(Seeds, Seeds.of(seed).encode() | own, node, ("seeds",), point.marks["seeds"])

    def _seed(self, point: Point) -> int | None:
        node = point.sections.get("seed")
        if node is None:
            return 0
        if isinstance(node.value, bool) or not isinstance(node.value, int) or node.value < 0:
            several = f"; several seeds are an axis: 'axes: {{seed: {node.value}}}'"
            message = f"{show(node.plain)} is not a whole number of at least 0"
            self.problems.add(node.mark, "seed", message + several * is_range(node.value))
            return None
        return node.value

    def language(self, config: LanguageConfig, point: Point) -> Language | None:
        """Return the built language, or None if its parameters make no sense.

        The local tables of its tasks are read and checked too.
        """
        if id(config) not in self._built:
            node, at = point.sections["language"], point.marks["language"]
            try:
                language = self.languages.get(config)
                for field, message in language.problems():
                    self._faulty.add(id(language))
                    self._add(field, message, node, at, "language")
                self._built[id(config)] = language
            except (RaysweepError, OSError) as error:
                message = one_line(str(error))
                explain_named(message, type(config), node, ("language",), at, self.problems)
                self._built[id(config)] = None
        return self._built[id(config)]

    def _fits(self, config: Any, language: Language, node: Node, at: Mark, name: str) -> None:
        """Check once whether a model, algorithm or evaluation fits a language."""
        key = (id(config), id(language))
        if key in self._fitted:
            return
        self._fitted.add(key)
        for field, message in config.problems(language):
            self._add(field, message, node, at, name)

    def _shared_out(self, pretrain: PretrainConfig, algorithm: AlgorithmConfig, node: Node, at: Mark) -> None:
        """Check once whether the workers of a run, however many it goes on with, can share its batches."""
        key = (id(pretrain), id(algorithm))
        if key in self._fitted:
            return
        self._fitted.add(key)
        resources = self.resources
        for workers in range(resources.workers, (resources.min_workers or resources.workers) - 1, -1):
            sharded = resources.shards(workers) > 1
            found = pretrain.sharing_problems(workers, halves=algorithm.halves, sharded=sharded)
            for field, message in found:
                self._add(field, message, node, at, "pretrain")
            if found:
                return

    def _add(self, field: str, message: str, node: Node, at: Mark, name: str) -> None:
        """Note a problem of a field below a section; `tasks.1` is the second element of `tasks`."""
        path = [int(key) if key.isdecimal() else key for key in field.split(".") if key]
        self.problems.add(nearest(node, path, at), dotted((*name.split("."), *path)), one_line(message))

    def _can_measure(
        self,
        evaluation: Evaluation,
        model: ModelConfig,
        algorithm: AlgorithmConfig,
        pretrain: PretrainConfig | None,
        language: Language,
        node: Node,
        at: Mark,
    ) -> None:
        """Check once whether an evaluation can measure a model, or what an untrained algorithm gives."""
        measured = (model, pretrain) if algorithm.trains else (algorithm,)
        key = (id(evaluation), id(language), *map(id, measured))
        if key in self._fitted or not evaluation.applies_to(algorithm):
            return
        self._fitted.add(key)
        if algorithm.trains:
            found = evaluation.model_problems(model, language)
            if pretrain is not None:
                # Only the number of sentences matters here, not which they are.
                training = TrainingSet(language=language, seed=0, sentences=pretrain.sentences)
                found = [*found, *evaluation.training_problems(training)]
        else:
            found = evaluation.untrained_problems(algorithm, language)
        for field, message in found:
            self._add(field, message, node, at, f"evaluate.{evaluation.key}")

    def runs(
        self,
        points: Iterable[Point],
        evaluations: Mapping[str, tuple[Evaluation, Node, Mark]],
        probes: Iterable[Point] = (),
    ) -> Checked:
        """Return the runs of all points, merging those that share a training; problems are collected.

        `probes` are points that a search may come to: they are checked, and evaluations know their models.
        """
        merger = Merger({kind: found[0] for kind, found in evaluations.items()})
        starting: list[Starting] = []
        probed: list[ModelConfig] = []
        for point, is_probe in [*((p, False) for p in points), *((p, True) for p in probes)]:
            language_config = self.section("language", registry.languages, point)
            model = self.section("model", registry.models, point)
            algorithm = self.section("algorithm", registry.algorithms, point)
            pretrain = self.section("pretrain", PretrainConfig, point)
            starts = _given(point, "init_from")
            init = self.section("init_from", InitFrom, point) if starts else None
            seeds = self.seeds(point)
            language = self.language(language_config, point) if language_config is not None else None
            if language is None:
                continue
            if model is not None:
                self._fits(model, language, point.sections["model"], point.marks["model"], "model")
            if pretrain is not None and algorithm is not None and algorithm.trains:
                node, at = point.sections["pretrain"], point.marks["pretrain"]
                self._fits(pretrain, language, node, at, "pretrain")
                self._shared_out(pretrain, algorithm, node, at)
            if algorithm is not None:
                node, at = point.sections["algorithm"], point.marks["algorithm"]
                self._fits(algorithm, language, node, at, "algorithm")
            for kind, (evaluation, node, at) in evaluations.items():
                self._fits(evaluation, language, node, at, f"evaluate.{kind}")
                if model is not None and algorithm is not None:
                    self._can_measure(evaluation, model, algorithm, pretrain, language, node, at)
            if None in (model, algorithm, pretrain, seeds) or id(language) in self._faulty:
                continue
            if starts and init is None:
                continue
            if is_probe:
                probed += [model] if algorithm.trains else []
                continue
            spec = RunSpec(
                language=language_config,
                model=model,
                algorithm=algorithm,
                pretrain=pretrain,
                seeds=typing.cast(Seeds, seeds),
                evaluations=merger.evaluations_of(algorithm, language),
                language_fingerprint=language.fingerprint,
                axes=_telling(point.axes, algorithm),
            )
            if init is None:
                self._merge(merger, point, spec)
            elif not algorithm.trains:
                message = (
                    f"'{algorithm.kind}' trains nothing, so it starts from no run; write init_from: null"
                )
                self._of_start(point, "", message)
            else:
                node = point.sections["init_from"]
                folder = (node.get("run") or node).mark.folder
                starting.append(
                    Starting(
                        spec,
                        init,
                        folder,
                        partial(self._of_start, point),
                        partial(self._merge, merger, point),
                    )
                )
        if starting and self.sources is not None:
            self.sources.resolve(starting, merger.joined)
        return merger.finish(probed)

    def _of_start(self, point: Point, field: str, message: str) -> None:
        """Note a problem of the run that a point starts from."""
        self._add(field, message, point.sections["init_from"], point.marks["init_from"], "init_from")

    def _merge(self, merger: Merger, point: Point, spec: RunSpec) -> None:
        """Add the run of a point to those it shares its training with."""
        if merger.add(spec).evaluations != spec.evaluations:
            self.problems.add(
                point.marks["language"],
                "language.tasks",
                f"two points of the grid differ in their tasks alone, and both are run {spec.run_id}, "
                "because the training does not depend on tasks; name all tasks in one list",
            )


def _given(point: Point, name: str) -> bool:
    """Return whether a point has a section that it may do without."""
    node = point.sections.get(name)
    return node is not None and node.value is not None


def _telling(axes: Mapping[str, Any], algorithm: AlgorithmConfig) -> dict[str, Any]:
    """Return the axes that distinguish runs: the number of steps only if a step depends on it."""
    free = extent(algorithm.depends_on_steps)
    return {path: value for path, value in axes.items() if path.partition(".")[2] not in free}


def _matches(path: Path) -> bool:
    """Return whether a pattern such as `texts/*.txt` finds a file."""
    return next(glob.iglob(str(path), recursive=True), None) is not None


def _part(cls: type[Config], name: str) -> type[Config] | None:
    """Return the configuration that a field holds a list of; None for any other field."""
    field = cls.model_fields.get(name)
    element = next(iter(typing.get_args(field.annotation)), None) if field is not None else None
    return element if isinstance(element, type) and issubclass(element, Config) else None


def is_path(cls: type[Config], name: str) -> bool:
    """Return whether a field holds a path, by its type or its name."""
    annotation = cls.model_fields[name].annotation
    return name == "path" or annotation is Path or Path in typing.get_args(annotation)
