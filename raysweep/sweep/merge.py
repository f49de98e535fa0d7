"""From the points of a grid to runs: points that share a training are one run, with all their milestones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.evaluation.base import Evaluation
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig
from raysweep.sweep.identity import canonical, digest, extent
from raysweep.sweep.run import RunSpec
from raysweep.sweep.together import together
from raysweep.training.config import PretrainConfig


@dataclass(frozen=True)
class Checked:
    """Distinct runs, and notes on points that turned out to be the same run."""

    runs: tuple[RunSpec, ...]
    notes: tuple[str, ...]


class Merger:
    """Joins points that share a training: all their milestones, and only the axes they agree on."""

    def __init__(self, evaluations: Mapping[str, Evaluation]) -> None:
        self.evaluations = dict(evaluations)
        self.groups: dict[Any, list[RunSpec]] = {}
        self._evaluations: dict[int, dict[str, Evaluation]] = {}
        self._applying: dict[tuple[int, int], dict[str, Evaluation]] = {}
        self._texts: dict[tuple[int, frozenset[str]], str] = {}
        self._alive: list[Any] = []

    def evaluations_of(self, algorithm: Any, language: Language) -> dict[str, Evaluation]:
        """Return the evaluations that make sense for an algorithm, fitted to the language."""
        if id(language) not in self._evaluations:
            self._alive.append(language)
            self._evaluations[id(language)] = {
                kind: evaluation.fitted(language) for kind, evaluation in self.evaluations.items()
            }
        key = (id(language), id(algorithm))
        if key not in self._applying:
            self._alive.append(algorithm)
            self._applying[key] = {
                kind: evaluation
                for kind, evaluation in self._evaluations[id(language)].items()
                if evaluation.applies_to(algorithm)
            }
        return self._applying[key]

    def _text(
        self, config: ModelConfig | AlgorithmConfig | PretrainConfig, drop: frozenset[str] = frozenset()
    ) -> str:
        key = (id(config), drop)
        if key not in self._texts:
            self._alive.append(config)
            data = config.content()
            self._texts[key] = canonical({name: value for name, value in data.items() if name not in drop})
        return self._texts[key]

    def add(self, spec: RunSpec) -> RunSpec:
        """Add the run of a point; return the first one with the same training."""
        # This groups as the training identity does, without hashing everything for every point.
        key: tuple[Any, ...] = (spec.language_fingerprint, self._text(spec.algorithm))
        if spec.trains:
            free = extent(spec.algorithm.depends_on_steps)
            key += (self._text(spec.model), self._text(spec.pretrain, free), spec.seeds)
            key += (None if spec.source is None else canonical(spec.source.identifying),)
        group = self.groups.setdefault(key, [])
        group.append(spec)
        return group[0]

    def joined(self) -> list[RunSpec]:
        """Return the joined runs in the order of their first points."""
        return [_join(specs) if len(specs) > 1 else specs[0] for specs in self.groups.values()]

    def finish(self, others: Sequence[ModelConfig] = ()) -> Checked:
        """Return the joined runs in the order of their first points, and notes.

        `others` are models that the sweep may train, too.
        """
        runs, notes = self.joined(), []
        for spec, specs in zip(runs, self.groups.values(), strict=True):
            extents = {canonical([s.pretrain.steps, s.milestones]) for s in specs}
            if spec.trains and len(extents) < len(specs):
                notes.append(
                    f"{len(specs)} combinations of values are the same run, {spec.run_id}; it runs once"
                )
        compared, remarks = together(runs, others)
        return Checked(compared, (*notes, *_lengths(runs), *remarks))


def _lengths(runs: Iterable[RunSpec]) -> list[str]:
    """Return a note for each algorithm with separate trainings of several lengths."""
    found: dict[str, set[int]] = {}
    for run in runs:
        if run.trains and run.algorithm.depends_on_steps:
            found.setdefault(run.algorithm.label, set()).add(run.pretrain.steps)
    return [
        f"pretrain.steps: the rate of '{label}' depends on the number of steps, so its runs of "
        f"{', '.join(map(str, sorted(steps)))} steps are separate trainings"
        for label, steps in found.items()
        if len(steps) > 1
    ]


def _join(specs: list[RunSpec]) -> RunSpec:
    first = specs[0]
    shared = {
        path: value
        for path, value in first.axes.items()
        if all(path in s.axes and digest(s.axes[path]) == digest(value) for s in specs)
    }
    every = [s.pretrain.checkpoint_every for s in specs if s.pretrain.checkpoint_every is not None]
    joined = first.pretrain.encode() | {
        "steps": max(s.pretrain.steps for s in specs),
        "milestones": sorted({step for s in specs for step in s.pretrain.milestones}),
        "checkpoint_every": min(every, default=None),
    }
    pretrain = PretrainConfig.decode(joined) if first.trains else first.pretrain
    return replace(first, pretrain=pretrain, axes=shared)
