"""A sweep and its runs, as the rest of raysweep sees them: decoded, checked and named.

`RunSpec` is one configuration with its seed.  It can be encoded to plain JSON and decoded elsewhere, so that
a worker needs neither the sweep file nor the process that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from raysweep import registry
from raysweep.errors import ConfigError
from raysweep.evaluation.base import Evaluation
from raysweep.languages.base import Language, LanguageConfig
from raysweep.registry import Config
from raysweep.sweep.identity import canonical, digest, run_name, training_content

if TYPE_CHECKING:
    from raysweep.algorithms.base import AlgorithmConfig
    from raysweep.models.base import ModelConfig
    from raysweep.sweep.ledger import Ledger
    from raysweep.sweep.plan import Plan
    from raysweep.training.config import PretrainConfig

Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Resources(Config):
    """What a run may use; never part of an identity."""

    #: Training processes of one run (data parallel).
    workers: int = Field(default=1, ge=1)
    #: Ray resources of each training process, e.g. {CPU: 1} or {GPU: 1}.
    per_worker: dict[str, Amount] = Field(default_factory=lambda: {"CPU": 1.0})
    #: Ray resources of each evaluation task.
    evaluate: dict[str, Amount] = Field(default_factory=lambda: {"CPU": 1.0})
    #: Runs trained at once; "auto" asks the cluster.
    max_concurrent: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """One run: what is trained, how, from which seed, and what is measured at which steps.

    `evaluations` is keyed by kind and holds only those that make sense for the algorithm; `axes` maps the
    dotted paths of the sweep's axes to this run's values, for display.
    """

    language: LanguageConfig
    model: ModelConfig
    algorithm: AlgorithmConfig
    pretrain: PretrainConfig
    seed: int
    evaluations: Mapping[str, Evaluation]
    #: sha256 of the language's content.
    language_fingerprint: str
    axes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def trains(self) -> bool:
        """False for the look-up table, which has nothing to train."""
        return bool(self.algorithm.trains)

    @property
    def milestones(self) -> tuple[int, ...]:
        """Steps at which a checkpoint is kept and evaluated, ascending; (0,) where nothing is trained."""
        if not self.trains:
            return (0,)
        return tuple(self.pretrain.milestones or (self.pretrain.steps,))

    @cached_property
    def identity_content(self) -> dict[str, Any]:
        """What `training_identity` is the sha256 of."""
        return training_content(
            fingerprint=self.language_fingerprint,
            model=self.model.content(),
            algorithm=self.algorithm.content(),
            pretrain=self.pretrain.encode(),
            seed=self.seed,
            trains=self.trains,
            depends_on_steps=self.algorithm.depends_on_steps,
        )

    @cached_property
    def training_identity(self) -> str:
        """sha256 (hexadecimal) of everything that determines the weights."""
        return digest(self.identity_content)

    @cached_property
    def run_id(self) -> str:
        """Readable, durable name, e.g. `64-1-2-256-adamw-s0-3f9a1c27be`."""
        return run_name(
            model=self.model.label if self.trains else "",
            algorithm=self.algorithm.label,
            seed=self.seed,
            trains=self.trains,
            identity=self.training_identity,
        )

    def encode(self) -> dict[str, Any]:
        """Return plain JSON data from which `decode` makes an equal spec."""
        return {
            "language": self.language.encode(),
            "model": self.model.encode(),
            "algorithm": self.algorithm.encode(),
            "pretrain": self.pretrain.encode(),
            "seed": self.seed,
            "evaluations": [evaluation.encode() for evaluation in self.evaluations.values()],
            "language_fingerprint": self.language_fingerprint,
            "axes": dict(self.axes),
        }

    @classmethod
    def decode(cls, data: Mapping[str, Any]) -> RunSpec:
        """Make a spec from what `encode` returned."""
        from raysweep.training.config import PretrainConfig

        evaluations = [registry.evaluations.decode(item) for item in data["evaluations"]]
        return cls(
            language=registry.languages.decode(data["language"]),
            model=registry.models.decode(data["model"]),
            algorithm=registry.algorithms.decode(data["algorithm"]),
            pretrain=PretrainConfig.decode(data["pretrain"]),
            seed=data["seed"],
            evaluations={evaluation.kind: evaluation for evaluation in evaluations},
            language_fingerprint=data["language_fingerprint"],
            axes=dict(data["axes"]),
        )

    def with_axes(self, axes: Mapping[str, Any]) -> RunSpec:
        """Return the same run with other values for display."""
        return replace(self, axes=dict(axes))


class LanguageCache:
    """Builds each language once; the key is its normalised configuration."""

    def __init__(self) -> None:
        self._built: dict[str, Language] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        # A process that receives a sweep builds what it needs; languages can be large.
        return LanguageCache, ()

    def get(self, config: LanguageConfig) -> Language:
        """Return the language of a configuration, building it at first use."""
        key = canonical(config.encode())
        if key not in self._built:
            self._built[key] = config.build()
        return self._built[key]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """A sweep file, expanded: its runs, what they may use and where their results lie."""

    name: str
    description: str
    #: The sweep file.
    path: Path
    runs: tuple[RunSpec, ...]
    resources: Resources
    #: Root of all results, absolute; every node must see it.
    storage: Path
    #: None: SQLite in the sweep's folder.
    tracking_uri: str | None
    #: Dotted paths of the axes that tell runs apart, in the order of the file.
    axes: tuple[str, ...]
    #: The whole configuration, extended and overridden, as plain data.
    config: Mapping[str, Any]
    #: Things worth knowing that are no errors, e.g. grid points that are the same run.
    notes: tuple[str, ...] = ()
    #: Grid points and included runs before those that share a training were merged.
    points: int = 0
    languages: LanguageCache = field(default_factory=LanguageCache, repr=False, compare=False)
    make_variant: Callable[[Mapping[str, Any]], RunSpec] | None = field(
        default=None, repr=False, compare=False
    )

    @property
    def directory(self) -> Path:
        """Folder of this sweep's results: storage/name."""
        return self.storage / self.name

    def ledger(self) -> Ledger:
        """Return the ledger of this sweep."""
        from raysweep.sweep.ledger import Ledger

        return Ledger(self.directory)

    def language(self, spec: RunSpec) -> Language:
        """Return the built language of a run; runs with equal configurations share one object."""
        return self.languages.get(spec.language)

    def prepare(self) -> None:
        """Make what the languages of the runs read, such as the tokens of a corpus; check what is known then.

        Loading and planning a sweep does not: it may take hours.  Raises `DataError` where it cannot be made,
        `ConfigError` where evaluations do not fit what was made.
        """
        found: dict[str, None] = {}
        for spec in self.runs:
            language = self.language(spec)
            language.prepare()
            for kind, evaluation in spec.evaluations.items():
                for field_, message in evaluation.problems(language):
                    found[f"evaluate.{kind}{'.' if field_ else ''}{field_}: {message}"] = None
        if found:
            raise ConfigError("\n".join(found))

    def run(self, run_id: str) -> RunSpec:
        """Return a run by its id; raises `ConfigError` with the nearest id for one that is not there."""
        spec = self._by_id.get(run_id)
        if spec is None:
            near = registry.suggest(run_id, self._by_id)
            raise ConfigError(f"sweep '{self.name}' has no run '{run_id}'{near}")
        return spec

    @cached_property
    def _by_id(self) -> dict[str, RunSpec]:
        return {spec.run_id: spec for spec in self.runs}

    def variant(self, settings: Mapping[str, Any]) -> RunSpec:
        """Return the sweep's base configuration with `settings` (dotted path -> plain value) laid on it.

        This is how a search algorithm's suggestion becomes a run.  The axes of the file play no part.
        Raises `ConfigError` for settings that make no sense.
        """
        if self.make_variant is None:
            raise ConfigError(f"sweep '{self.name}' was not loaded from a file and has no base to vary")
        return self.make_variant(settings)

    def plan(
        self,
        *,
        retry_failed: bool = False,
        verify: bool = True,
        step_seconds: Mapping[str, float] | None = None,
        concurrency: int | None = None,
    ) -> Plan:
        """Compare the runs with the ledger; see `raysweep.sweep.plan.make_plan`."""
        from raysweep.sweep.plan import make_plan

        return make_plan(
            self,
            self.ledger(),
            retry_failed=retry_failed,
            verify=verify,
            step_seconds=step_seconds,
            concurrency=concurrency,
        )
