"""The `search` of a sweep file: samples of a space in place of a grid, the best of them by a metric.

    search:
      metric: excess_loss              # its value at the last milestone counts
      mode: min                        # or max; by default what is better for the metric
      samples: 20
      space:                           # dotted path -> values, or a range to draw from
        algorithm.lr: {loguniform: [1e-4, 1e-2]}
        model.shape: {choice: [16/1/1/32, 32/1/2/64]}
      algorithm: random                # or optuna: its TPE learns from the samples that are finished
      scheduler: none                  # or asha: {kind: asha, grace_period: 500, reduction_factor: 4}
      seed: 0

A sample is trained at every point of `axes` and `zip`, such as several seeds; the mean of its runs counts.
Sample k is a function of the space, the seed and k; with `optuna`, from the tenth on, also of the results so
far.  More `samples` therefore add to those that are there.  No part of a search enters the identity of a run.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, field_validator, model_validator

from raysweep.registry import Config, suggest
from raysweep.seeding import derive
from raysweep.sweep.identity import DIGITS, canonical, digest

Value = Annotated[float, Field(allow_inf_nan=False)]

#: Samples that are drawn at random before TPE begins; also Optuna's own number.
STARTUP = 10

#: Parts of a range in which two drawn numbers differ; more digits would only make names long.
_PARTS = 1000

_REFUSED = {
    "pbt": "population based training changes the settings of a run on the way, and a run of a sweep has one "
    "configuration from start to end; use asha or none",
    "hyperband": "synchronous HyperBand pauses runs to wait for others; use asha, which does not",
}


class Domain(Config):
    """The values that a path may take: exactly one of these fields is given."""

    #: One of these values, each as likely.
    choice: tuple[Any, ...] | None = Field(default=None, min_length=1)
    #: A number between two others.
    uniform: tuple[Value, Value] | None = None
    #: A number between two others, whose logarithm is uniform.
    loguniform: tuple[Value, Value] | None = None
    #: A whole number from the first to the second, both of them included.
    int_uniform: tuple[int, int] | None = None
    #: The same with a uniform logarithm.
    int_loguniform: tuple[int, int] | None = None

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"the values are exactly one of {known}, e.g. {{loguniform: [1e-4, 1e-2]}}")
        if self.choice is not None:
            texts = [canonical(value) for value in self.choice]
            if len(set(texts)) < len(texts):
                raise ValueError("choice: lists a value twice; list each once")
            return self
        low, high = self.range
        if low >= high:
            raise ValueError(f"{given[0]}: [{low:g}, {high:g}] is no range; begin with the smaller one")
        if self.log and low <= 0:
            raise ValueError(f"{given[0]}: begins at {low:g}, which has no logarithm; begin above 0")
        return self

    @property
    def range(self) -> tuple[float, float]:
        """The ends of the range; only where there is no choice."""
        [found] = [
            r for r in (self.uniform, self.loguniform, self.int_uniform, self.int_loguniform) if r is not None
        ]
        return found

    @property
    def log(self) -> bool:
        """Whether the logarithm is uniform."""
        return self.loguniform is not None or self.int_loguniform is not None

    @property
    def whole(self) -> bool:
        """Whether numbers are whole."""
        return self.int_uniform is not None or self.int_loguniform is not None

    def at(self, u: float) -> Any:
        """Return the value at a quantile u in [0, 1)."""
        if self.choice is not None:
            return self.choice[int(u * len(self.choice))]
        low, high = self.range
        top = high + 1 if self.whole else high
        drawn = low * (1 - u) + top * u
        if self.log:
            drawn = math.exp(math.log(low) * (1 - u) + math.log(top) * u)
        return self.near(math.floor(drawn) if self.whole else drawn)

    def near(self, value: float) -> float:
        """Return a number of the range with no more digits than tell apart a thousandth of it."""
        low, high = self.range
        if self.whole:
            return int(min(max(value, low), high))
        # Logarithms hold the widths of all ranges.
        width = math.log10(high / 2 - low / 2) + math.log10(2)
        if self.log:
            width = math.log10(value) + math.log10(math.log(high) - math.log(low))
        return min(max(float(round(value, math.ceil(math.log10(_PARTS) - width))), low), high)

    @property
    def ends(self) -> tuple[Any, ...]:
        """All values of a choice, else the two ends."""
        return self.choice if self.choice is not None else self.range


class Asha(Config):
    """Asynchronous successive halving: at each rung, samples that are not among the best are stopped.

    The rungs are `grace_period`, `grace_period` x `reduction_factor` and so on, in steps.  It is decided at
    the first milestone there or behind it.  See Li et al., "A system for massively parallel hyperparameter
    tuning" (MLSys 2020), and `ray.tune.schedulers.AsyncHyperBandScheduler`.
    """

    #: Kind of the scheduler.
    kind: Literal["asha"] = "asha"
    #: Steps that every sample is trained; None is the first milestone after 0.
    grace_period: int | None = Field(default=None, ge=1)
    #: About one of so many samples goes on from a rung.
    reduction_factor: float = Field(default=4.0, gt=1, allow_inf_nan=False)


class Search(Config):
    """A search, as the file says it."""

    #: The metric, at the last milestone, by which samples are compared.
    metric: str = Field(min_length=1, examples=["excess_loss"])
    #: None is what is better for the metric; a loaded sweep has one of the others.
    mode: Literal["min", "max"] | None = None
    #: Number of samples.
    samples: int = Field(ge=1, le=10_000, examples=[20])
    #: Dotted path of a setting -> the values that it may take.
    space: dict[str, Domain] = Field(min_length=1, examples=[{"algorithm.lr": {"loguniform": [1e-4, 1e-2]}}])
    #: `random`, or `optuna`: its TPE learns from the samples that are finished.
    algorithm: Literal["random", "optuna"] = "random"
    #: None or `none`: every sample is trained to the end.
    scheduler: Asha | None = None
    #: Seed of the samples.
    seed: int = Field(default=0, ge=0)

    @field_validator("scheduler", mode="before")
    @classmethod
    def _short_form(cls, value: Any) -> Any:
        """Take `none` for null and `asha` for its defaults; say why others are not there."""
        kind = value.get("kind") if isinstance(value, dict) else value
        if not isinstance(kind, str) or (kind == "asha" and isinstance(value, dict)):
            return value
        if kind in ("none", "fifo") and value == kind:
            return None
        if kind == "asha":
            return {"kind": "asha"}
        known = ("none", "asha")
        raise ValueError(
            f"'{kind}': {_REFUSED.get(kind) or f'no such scheduler{suggest(kind, known)}; use none or asha'}"
        )

    @property
    def question(self) -> dict[str, Any]:
        """All that makes samples comparable: everything but their number and the scheduler."""
        return self.model_dump(mode="json", exclude={"samples", "scheduler"})

    @property
    def stops(self) -> str:
        """The head of a digest of what decides which runs are stopped."""
        return digest([self.metric, self.mode, self.model_dump(mode="json")["scheduler"]])[:DIGITS]

    @property
    def drawn(self) -> int:
        """The number of samples that depend on no result."""
        return self.samples if self.algorithm == "random" else min(self.samples, STARTUP)

    def draw(self, index: int) -> dict[str, Any]:
        """Return the settings of a sample, drawn at random: dotted path -> plain value."""
        return {
            path: domain.at(np.random.default_rng(derive(self.seed, "search", index, path)).random())
            for path, domain in self.space.items()
        }

    def probes(self) -> list[dict[str, Any]]:
        """Return the first sample with each value of each choice, and each end of each range, in it."""
        first = self.draw(0)
        return [first | {path: end} for path, domain in self.space.items() for end in domain.ends]

    def belongs(self, axes: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
        """Return whether a run with these values of the axes is one of a sample with these settings."""
        return all(path in axes and canonical(axes[path]) == canonical(settings[path]) for path in self.space)


class Known(Config):
    """A sample that TPE can learn from: its settings, and what became of it.

    `value` is None where it failed or is still at work; `step` is where it was stopped, None for the end.
    """

    settings: dict[str, Any]
    value: float | None = None
    step: int | None = None
    failed: bool = False


def has_optuna() -> bool:
    """Return whether Optuna is installed."""
    return importlib.util.find_spec("optuna") is not None


def suggestion(search: Search, known: Sequence[Known], attempt: int = 0) -> dict[str, Any]:
    """Return the settings of the next sample by Optuna's TPE.

    They are a function of the samples before it alone, so a search that was killed goes on as it would have
    gone.  Samples at work count as bad ones, so that those at once are not alike (`constant_liar`).  Another
    `attempt` gives another sample.
    """
    import optuna
    from optuna.distributions import (
        BaseDistribution,
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )
    from optuna.trial import FrozenTrial, TrialState, create_trial

    def distribution(domain: Domain) -> BaseDistribution:
        if domain.choice is not None:
            return CategoricalDistribution([canonical(value) for value in domain.choice])
        low, high = domain.range
        if domain.whole:
            return IntDistribution(int(low), int(high), log=domain.log)
        return FloatDistribution(low, high, log=domain.log)

    space = {path: distribution(domain) for path, domain in search.space.items()}

    def trial(one: Known) -> FrozenTrial:
        params = {
            path: canonical(value) if search.space[path].choice is not None else value
            for path, value in one.settings.items()
        }
        if one.failed:
            return create_trial(state=TrialState.FAIL, params=params, distributions=space)
        if one.value is None:
            return create_trial(state=TrialState.RUNNING, params=params, distributions=space)
        if one.step is not None:
            return create_trial(
                state=TrialState.PRUNED,
                params=params,
                distributions=space,
                intermediate_values={one.step: one.value},
            )
        return create_trial(params=params, distributions=space, value=one.value)

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    seed = derive(search.seed, "search", len(known), attempt) % 2**32
    study = optuna.create_study(
        direction="minimize" if search.mode == "min" else "maximize",
        sampler=optuna.samplers.TPESampler(seed=seed, n_startup_trials=STARTUP, constant_liar=True),
    )
    study.add_trials([trial(one) for one in known])
    params = study.ask(space).params
    found: dict[str, Any] = {}
    for path, domain in search.space.items():
        if domain.choice is not None:
            found[path] = next(value for value in domain.choice if canonical(value) == params[path])
        else:
            found[path] = domain.near(params[path])
    return found
