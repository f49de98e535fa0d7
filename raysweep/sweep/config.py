"""A sweep as the rest of raysweep sees it: its runs, their resources and the place of their results."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from raysweep import registry
from raysweep.errors import ConfigError
from raysweep.languages.base import Language, LanguageConfig
from raysweep.languages.training_set import TrainingSet
from raysweep.sweep.claims import Questions
from raysweep.sweep.format import check_format
from raysweep.sweep.identity import canonical
from raysweep.sweep.ledger import Ledger
from raysweep.sweep.resources import Resources
from raysweep.sweep.run import RunSpec
from raysweep.sweep.search import Search
from raysweep.sweep.units import count


class LanguageCache:
    """Builds each language once, keyed by its normalised configuration."""

    def __init__(self) -> None:
        self._built: dict[str, Language] = {}
        #: The languages of configurations that were asked for, and these, by their ids.
        self._asked: dict[int, tuple[LanguageConfig, Language]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # Languages can be large, so a process that receives a sweep builds those it needs.
        return LanguageCache, ()

    def get(self, config: LanguageConfig) -> Language:
        """Return the language of a configuration, built at first use."""
        if id(config) not in self._asked:
            key = canonical(config.encode())
            if key not in self._built:
                self._built[key] = config.build()
            self._asked[id(config)] = config, self._built[key]
        return self._asked[id(config)][1]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """An expanded sweep file: its runs, their resources and the place of their results."""

    name: str
    description: str
    #: The sweep file.
    path: Path
    runs: tuple[RunSpec, ...]
    resources: Resources
    #: Commands and addresses that learn of the end of a launch; no record has them.
    notify: tuple[str, ...] = ()
    #: Root of all results, absolute; every node must see it.
    storage: Path
    #: None: SQLite in the sweep's folder.
    tracking_uri: str | None
    #: Dotted paths of the axes that distinguish runs, in the order of the file.
    axes: tuple[str, ...]
    #: The whole configuration, extended and overridden, as plain data.
    config: Mapping[str, Any]
    #: Remarks that are not errors, e.g. on grid points that are the same run.
    notes: tuple[str, ...] = ()
    #: Number of grid points and included runs, before those that share a training are merged.
    points: int = 0
    #: Runs that are in the file, too, and not in `runs`, which is then a selection.
    left_out: tuple[RunSpec, ...] = ()
    #: The search in place of a grid; None without one.
    search: Search | None = None
    #: Settings (dotted path -> plain value) of the samples that are known, in order; of a search that learns
    #: from results, they become more until there are `search.samples`.
    samples: tuple[Mapping[str, Any], ...] = ()
    languages: LanguageCache = field(default_factory=LanguageCache, compare=False)
    make_variant: Callable[[Mapping[str, Any]], RunSpec] | None = field(default=None, compare=False)
    #: Returns all runs of the sweep with these samples.
    make_runs: Callable[[Sequence[Mapping[str, Any]]], tuple[RunSpec, ...]] | None = field(
        default=None, compare=False
    )

    def __repr__(self) -> str:
        return f"Sweep({self.name!r}: {count(len(self.runs), 'run')} of {self.path})"

    @property
    def to_choose(self) -> int:
        """Number of samples that are still to be chosen by results; 0 for a selection of runs."""
        return 0 if self.search is None or self.left_out else self.search.samples - len(self.samples)

    @property
    def directory(self) -> Path:
        """Folder of this sweep's results: storage/name."""
        return self.storage / self.name

    def ledger(self) -> Ledger:
        """Return the ledger of this sweep; raises `DataError` if it is of another version of raysweep."""
        check_format(self.directory)
        return Ledger(self.directory)

    def language(self, spec: RunSpec) -> Language:
        """Return the built language of a run; runs with equal configurations share one object."""
        return self.languages.get(spec.language)

    def prepare(self) -> None:
        """Prepare the data of the runs' languages, such as the tokens of a corpus, and check the evaluations.

        This may take hours, so loading and planning a sweep do not do it.  Raises `DataError` if data cannot
        be prepared, and `ConfigError` if evaluations do not fit it.
        """
        found: dict[str, None] = {}
        for spec in self.runs:
            language = self.language(spec)
            language.prepare()
            training = TrainingSet(language=language, seed=0, sentences=spec.pretrain.sentences)
            if spec.trains:
                for field_, message in spec.pretrain.problems(language):
                    found[f"pretrain.{field_}: {message}"] = None
            for kind, evaluation in spec.evaluations.items():
                of_training = evaluation.training_problems(training) if spec.trains else []
                for field_, message in [*evaluation.problems(language), *of_training]:
                    found[f"evaluate.{kind}{'.' if field_ else ''}{field_}: {message}"] = None
        if found:
            raise ConfigError("\n".join(found))

    def run(self, run_id: str) -> RunSpec:
        """Return a run by its id; raises `ConfigError` with the nearest id for an unknown one."""
        spec = self._by_id.get(run_id)
        if spec is None:
            near = registry.suggest(run_id, self._by_id)
            raise ConfigError(f"sweep '{self.name}' has no run '{run_id}'{near}")
        return spec

    @cached_property
    def questions(self) -> Questions:
        """The questions to the results: the tolerance of loss and the claims."""
        return Questions.of(self.config)

    @cached_property
    def _by_id(self) -> dict[str, RunSpec]:
        return {spec.run_id: spec for spec in self.runs}

    def variant(self, settings: Mapping[str, Any]) -> RunSpec:
        """Return the sweep's base configuration with `settings` (dotted path -> plain value) laid on it.

        This turns the suggestion of a search algorithm into a run.  The axes of the file are ignored.
        Raises `ConfigError` for settings that make no sense.
        """
        if self.make_variant is None:
            raise ConfigError(f"sweep '{self.name}' was not loaded from a file and has no base to vary")
        return self.make_variant(settings)


def check_sweep(given: object) -> None:
    """Raise `ConfigError` for what is no `Sweep`, such as the name of a file."""
    if isinstance(given, str | os.PathLike):
        text = os.fspath(given)
        raise ConfigError(f"sweep: {text!r} is the name of a file, not a sweep; give rs.load_sweep({text!r})")
    if not isinstance(given, Sweep):
        raise ConfigError(
            f"sweep: {type(given).__name__} is not a sweep; give what rs.load_sweep(FILE) returns"
        )
