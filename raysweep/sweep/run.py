"""A run: one configuration with its seeds, decoded, checked and named.

It can be encoded to plain JSON and decoded elsewhere, so that a worker needs neither the sweep file nor the
process that read it.
"""

from __future__ import annotations

import marshal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from raysweep import registry
from raysweep.evaluation.base import Evaluation
from raysweep.languages.base import LanguageConfig
from raysweep.sweep.identity import (
    Itself,
    configuration,
    content_of,
    digest_of_shared,
    run_name,
    training_content,
)
from raysweep.sweep.source import Source
from raysweep.training.seeds import Seeds

if TYPE_CHECKING:
    from raysweep.algorithms.base import AlgorithmConfig
    from raysweep.models.base import ModelConfig
    from raysweep.training.config import PretrainConfig


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """The end of a run that a search has stopped: its last milestone, and the scheduler that stopped it."""

    step: int
    by: str

    def __str__(self) -> str:
        return f"stopped by {self.by} at step {self.step:,}"


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: language, model, algorithm, pre-training and seeds, and the evaluations at its milestones.

    `evaluations` is keyed by name, or by kind where there is none, and holds only those that apply to the
    algorithm; `axes` maps the dotted paths of swept fields to the run's values, for display.
    """

    language: LanguageConfig
    model: ModelConfig
    algorithm: AlgorithmConfig
    pretrain: PretrainConfig
    seeds: Seeds
    evaluations: Mapping[str, Evaluation]
    #: sha256 of the language's content.
    language_fingerprint: str
    axes: Mapping[str, Any] = field(default_factory=dict)
    #: The checkpoint that training starts from; None for drawn weights.
    source: Source | None = None
    #: The end that a search has set to it; None for that of `pretrain`.
    stopped: Stopped | None = None

    @cached_property
    def trains(self) -> bool:
        """False if there is nothing to train, as for the look-up table."""
        return bool(self.algorithm.trains)

    @property
    def seed(self) -> int | None:
        """The seed of initial weights, data and dropout; None where they have different ones."""
        return self.seeds.common

    @cached_property
    def milestones(self) -> tuple[int, ...]:
        """Steps at which a checkpoint is kept and evaluated, ascending; (0,) if nothing is trained."""
        if not self.trains:
            return (0,)
        steps = tuple(self.pretrain.milestones or (self.pretrain.steps,))
        return steps if self.stopped is None else tuple(s for s in steps if s <= self.stopped.step)

    @cached_property
    def _configured(self) -> _Configured:
        """The part of the identity and of the id that replicates share."""
        model, algorithm, pretrain = map(Itself, (self.model, self.algorithm, self.pretrain))
        return _configured(self.language_fingerprint, model, algorithm, pretrain)

    @property
    def model_label(self) -> str:
        """The label of its model, or of its algorithm where nothing is trained."""
        return self._configured.labels[0]

    @property
    def algorithm_label(self) -> str:
        """The label of its algorithm."""
        return self._configured.labels[-1]

    @property
    def _own(self) -> dict[str, Any]:
        """The part of `identity_content` that replicates do not share."""
        if not self.trains:
            return {}
        own: dict[str, Any] = {"seed": self.seeds.content()}
        return own if self.source is None else own | {"source": self.source.identifying}

    @cached_property
    def identity_content(self) -> dict[str, Any]:
        """The plain data that `training_identity` is computed from; nobody may change what runs share.

        `seed` is `Seeds.content`, and `source` identifies the state that training starts from; it is left out
        where weights are drawn, and both where nothing is trained.
        """
        return {**self._configured.content, **self._own}

    @cached_property
    def training_identity(self) -> str:
        """The sha256 (hexadecimal) of everything that determines the weights."""
        return digest_of_shared(self._configured.content, self._own)

    @property
    def configuration(self) -> str:
        """The sha256 (hexadecimal) of the run but for its seeds and those of what it starts from."""
        return configuration(self.identity_content, None if self.source is None else self.source.told)

    @cached_property
    def run_id(self) -> str:
        """The readable, durable name, e.g. `64-1-2-256-adamw-s0-3f9a1c27be`."""
        seeds = (self.seeds.label,) if self.trains else ()
        return run_name((*self._configured.labels, *seeds), self.training_identity)

    def encode(self) -> dict[str, Any]:
        """Return plain JSON data that `decode` turns into an equal spec."""
        data = {
            "language": self.language.encode(),
            "model": self.model.encode(),
            "algorithm": self.algorithm.encode(),
            "pretrain": self.pretrain.encode(),
            "seed": self.seeds.content(),
            "evaluations": [evaluation.encode() for evaluation in self.evaluations.values()],
            "language_fingerprint": self.language_fingerprint,
            "axes": dict(self.axes),
        }
        if self.stopped is not None:
            data["stopped"] = {"step": self.stopped.step, "by": self.stopped.by}
        return data if self.source is None else data | {"source": self.source.encode()}

    @classmethod
    def decode(cls, data: Mapping[str, Any], shared: dict[Any, Any] | None = None) -> RunSpec:
        """Make a spec from the result of `encode`.

        `shared` holds the sections that other specs have, which specs with equal ones share.
        """
        from raysweep.training.config import PretrainConfig

        known = {} if shared is None else shared

        def section(name: str, item: Any, decode: Callable[[Any], Any]) -> Any:
            # Most runs have the very same sections, which live as long as what is found for them here.
            one = name, id(item)
            if one not in known:
                # Equal sections that are written in another order are decoded twice, and share nothing.
                # Of plain data, these bytes take half the time of a text.
                key = name, marshal.dumps(item, 2)
                if key not in known:
                    known[key] = decode(item)
                known[one] = known[key], item
            return known[one][0]

        def measured(items: Any) -> Mapping[str, Evaluation]:
            found = [section("evaluation", one, registry.evaluations.decode) for one in items]
            return {evaluation.key: evaluation for evaluation in found}

        return cls(
            language=section("language", data["language"], registry.languages.decode),
            model=section("model", data["model"], registry.models.decode),
            algorithm=section("algorithm", data["algorithm"], registry.algorithms.decode),
            pretrain=section("pretrain", data["pretrain"], PretrainConfig.decode),
            seeds=section("seeds", data["seed"], Seeds.of),
            evaluations=section("evaluations", data["evaluations"], measured),
            language_fingerprint=data["language_fingerprint"],
            axes=dict(data["axes"]),
            source=Source.decode(data["source"]) if "source" in data else None,
            stopped=Stopped(**data["stopped"]) if "stopped" in data else None,
        )

    def with_axes(self, axes: Mapping[str, Any]) -> RunSpec:
        """Return the same run with other values for display."""
        return replace(self, axes=dict(axes))


@dataclass(frozen=True)
class _Configured:
    """The content of identities, and the labels of ids, that replicates share."""

    content: Mapping[str, Any]
    labels: tuple[str, ...]


# Thousands of runs are replicates of hundreds of configurations.
@lru_cache(maxsize=4096)
def _configured(fingerprint: str, model: Itself, algorithm: Itself, pretrain: Itself) -> _Configured:
    trained, by = model.known, algorithm.known
    content = training_content(
        fingerprint=fingerprint,
        model=content_of(trained),
        algorithm=content_of(by),
        pretrain=content_of(pretrain.known),
        trains=by.trains,
        depends_on_steps=by.depends_on_steps,
    )
    return _Configured(content, (trained.label, by.label) if by.trains else (by.label,))
