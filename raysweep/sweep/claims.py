"""Claims: what a sweep is asked, written down in its file before anything is measured.

    tolerance: 0.02                   # nats above the least loss up to which a checkpoint counts as saturated
    claims:
      - flatter: {task: A}            # at equal loss, flatter goes with better
      - longer: {}                    # at equal loss, more steps go with better, within a run
      - larger: {}                    # at equal loss, larger models are better
      - algorithm: {better: adamw, than: adversarial}
      - beats: lookup_table           # trained models transfer better than the exact conditionals

A claim is no part of a run's identity: another one, or another tolerance, repeats no work.  The tasks,
algorithms and metrics that it names are those of the sweep.

A sweep that repeats a paper's says what that found, for readers of both (`raysweep.sweep.suite`):

    paper: {place: Figure 1, question: "At equal loss, is a flatter model better?", finding: the trace tells}
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from raysweep.registry import Config, suggest
from raysweep.sweep.document import Key

if TYPE_CHECKING:
    from raysweep.algorithms.base import AlgorithmConfig
    from raysweep.evaluation.base import Evaluation

#: Nats above the least loss up to which a checkpoint counts as saturated, where a sweep says nothing else.
TOLERANCE = 0.02

_NO_ACCURACY = "the sweep measures no accuracy; add 'evaluate: {probe: {}}'"
_NO_FLATNESS = "nothing that the sweep measures is flatness; add 'evaluate: {trace: {}}'"
_NO_TABLE = "the look-up table is none of the runs; add 'include: [{algorithm: {kind: lookup_table}}]'"

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: A correlation, or a difference of accuracy.
Effect = Annotated[float, Field(gt=0, le=1)]
#: The part of the variation in which flatness is compared; see `raysweep.report.association`.
Level = Literal["all", "configurations", "seeds", "steps"]


class About(Config):
    """The part that every claim shares: the accuracy it is about, and what counts."""

    #: The task, by its name; None is the mean over all tasks.
    task: str | None = None
    #: Accuracies of this kind, such as `probe` or `finetune`; None is the first that was measured.
    accuracy: str | None = None
    #: Two checkpoints are of equal loss up to so many nats; None is a tenth of the sweep's tolerance.
    tolerance: Positive | None = None
    #: The smallest effect worth mentioning: a correlation for `flatter` (None is 0.5); for the others a
    #: difference of accuracy, for `longer` and `larger` by doubling (None is 0.01).
    least: Effect | None = None


class Flatter(About):
    """At equal loss, flatter goes with better."""

    #: The measure of flatness, by its name; None is the first by which all checkpoints can be compared.
    metric: str | None = None
    #: Between configurations, between the seeds of one, along the steps of a run, or all together.
    level: Level = "all"


class Longer(About):
    """At equal loss, a later checkpoint of a run is better."""


class Larger(About):
    """At equal loss, larger models of the sweep are better than smaller ones."""


class Algorithm(About):
    """At equal loss, one algorithm gives better models than another."""

    #: The algorithm that should give the better models: its kind, or its whole label.
    better: str = Field(min_length=1)
    #: The algorithm that it is compared with.
    than: str = Field(min_length=1)

    @model_validator(mode="after")
    def _two(self) -> Self:
        if self.better == self.than:
            raise ValueError(f"than: '{self.than}' is the algorithm of `better`; name another one")
        return self


class Beats(About):
    """Trained models transfer better than the look-up table."""

    #: The thing that trained models should beat.
    than: Literal["lookup_table"] = "lookup_table"


def _or_short(schema: dict[str, Any]) -> None:
    """Add the short form of `beats` to its JSON Schema."""
    schema["anyOf"].insert(1, {"const": "lookup_table"})


class Claim(Config):
    """One claim of a list: exactly one of its fields is given."""

    #: At equal loss, flatter goes with better.
    flatter: Flatter | None = Field(default=None, examples=[{"task": "A"}])
    #: At equal loss, a later checkpoint of a run is better.
    longer: Longer | None = Field(default=None, examples=[{"task": "A"}])
    #: At equal loss, larger models are better than smaller ones.
    larger: Larger | None = Field(default=None, examples=[{"task": "A"}])
    #: At equal loss, one algorithm gives better models than another.
    algorithm: Algorithm | None = Field(default=None, examples=[{"better": "adamw", "than": "sam"}])
    #: Trained models transfer better than the look-up table.
    beats: Beats | None = Field(default=None, json_schema_extra=_or_short)

    @model_validator(mode="before")
    @classmethod
    def _short_form(cls, data: Any) -> Any:
        """Take `beats: lookup_table` for `beats: {than: lookup_table}`."""
        if isinstance(data, dict) and isinstance(data.get("beats"), str):
            return data | {"beats": {"than": data["beats"]}}
        return data

    @model_validator(mode="after")
    def _one(self) -> Self:
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            known = ", ".join(type(self).model_fields)
            raise ValueError(f"a claim is exactly one of {known}, e.g. {{flatter: {{task: A}}}}")
        return self

    @property
    def about(self) -> About:
        """The claim that is given."""
        parts = (self.flatter, self.longer, self.larger, self.algorithm, self.beats)
        [found] = [part for part in parts if part is not None]
        return found


class Paper(Config):
    """A figure or table of a paper that a sweep repeats."""

    #: The place in the paper, such as `Figure 2a`.
    place: str = Field(min_length=1)
    #: The question of the figure, with the language and task that it is asked on.
    question: str = Field(min_length=1)
    #: What the paper found, in its own numbers.
    finding: str = Field(min_length=1)


@dataclass(frozen=True, kw_only=True)
class Names:
    """The names that a sweep has for the claims about it."""

    #: The tasks of its languages.
    tasks: Sequence[str]
    #: The labels of the algorithms that train; None where they are not known.
    algorithms: Sequence[str] | None
    #: Whether the look-up table is among its runs; None where that is not known.
    table: bool | None
    #: The measures of flatness, with coordinates left open, such as "trace/{group}".
    flatness: Sequence[str]
    #: The kinds of accuracy, such as "probe".
    accuracies: Sequence[str]

    @classmethod
    def of(
        cls,
        tasks: Iterable[str],
        algorithms: Collection[AlgorithmConfig] | None,
        evaluations: Iterable[Evaluation],
    ) -> Self:
        """Return the names of a sweep with these tasks, algorithms and evaluations, each once."""
        measured = [quantity for one in evaluations for quantity in one.claimable()]
        return cls(
            tasks=_once(tasks),
            algorithms=None if algorithms is None else _once(one.label for one in algorithms if one.trains),
            table=None if algorithms is None else any(one.kind == "lookup_table" for one in algorithms),
            flatness=_once(q.name for q in measured if q.kind == "flatness"),
            accuracies=_once(q.name.partition("/")[0] for q in measured if q.kind == "accuracy"),
        )


class Questions(Config):
    """The fields of a sweep file that say what its results are asked."""

    #: Nats above the least loss up to which a checkpoint counts as saturated; None is 0.02.
    tolerance: Annotated[
        Positive,
        BeforeValidator(
            lambda value: TOLERANCE if value is None else value, json_schema_input_type=Positive | None
        ),
    ] = TOLERANCE
    #: What the sweep is asked; None is a choice by what it varies, an empty list is nothing.
    claims: tuple[Claim, ...] | None = Field(default=None, examples=[[{"flatter": {"task": "A"}}]])
    #: The figure or table of a paper that the sweep repeats; None for none.
    paper: Paper | None = None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """Decode these fields of the configuration of a sweep, as plain data."""
        return cls.decode({name: config[name] for name in cls.model_fields if name in config})

    @classmethod
    def right(cls, config: Mapping[str, Any]) -> Self:
        """Decode what is right of these fields, where something is wrong.

        A claim that cannot be read leaves one without names in its place, so the others keep theirs.
        """
        data = deepcopy({name: config[name] for name in cls.model_fields if name in config})
        while True:
            try:
                return cls.decode(data)
            except ValidationError as error:
                for details in error.errors(include_url=False):
                    _take_out(data, details["loc"])

    def within(self, tolerance: float | None) -> Self:
        """Return the same claims at another tolerance; None is this one."""
        return self if tolerance is None else self.model_copy(update={"tolerance": tolerance})

    def repeated(self) -> Iterator[tuple[tuple[Key, ...], str]]:
        """Yield the place and the fault of each claim that is there again: it would raise the p of all."""
        claims = self.claims or ()
        for k, claim in enumerate(claims):
            if (first := claims.index(claim)) < k:
                yield ("claims", k), f"the same claim as claims[{first}]; keep one"

    def misnamed(self, known: Names) -> Iterator[tuple[tuple[Key, ...], str]]:
        """Yield the place and the fault of each name in the claims that a sweep does not have."""
        for k, claim in enumerate(self.claims or ()):
            about = claim.about
            [kind] = [name for name in type(claim).model_fields if getattr(claim, name) is not None]
            if about.task is not None and about.task not in known.tasks:
                yield ("claims", k, kind, "task"), _no_task(about.task, known.tasks)
            if about.accuracy is not None and about.accuracy not in known.accuracies:
                yield ("claims", k, kind, "accuracy"), _no_accuracy(about.accuracy, known.accuracies)
            metric = about.metric if isinstance(about, Flatter) else None
            if metric is not None and not any(_is_metric(metric, name) for name in known.flatness):
                yield ("claims", k, kind, "metric"), _no_flatness(metric, known.flatness)
            if isinstance(about, Algorithm) and known.algorithms is not None:
                for side in ("better", "than"):
                    name = getattr(about, side)
                    if not any(is_algorithm(label, name) for label in known.algorithms):
                        yield ("claims", k, kind, side), _no_algorithm(name, known.algorithms)
            if isinstance(about, Beats) and known.table is False:
                yield ("claims", k, kind), _NO_TABLE

    def unanswered(self, known: Names) -> Iterator[str]:
        """Yield a note on each claim that what the sweep measures cannot answer."""
        for k, claim in enumerate(self.claims or ()):
            lacks = "" if known.accuracies else _NO_ACCURACY
            if known.accuracies and isinstance(claim.about, Flatter) and not known.flatness:
                lacks = _NO_FLATNESS
            if lacks:
                yield f"claims[{k}] gets no verdict: {lacks}"


def _once(names: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(names))


def _take_out(data: dict[str, Any], place: Sequence[Key]) -> None:
    """Take what is wrong at a place, as pydantic tells it, out of the fields that say what is asked."""
    field, *rest = place
    claims = data.get("claims")
    if field != "claims" or not rest or not isinstance(claims, list):
        data.pop(str(field), None)
        return
    k, *rest = rest
    claim = claims[int(k)]
    about = claim.get(rest[0]) if isinstance(claim, dict) and len(rest) == 2 else None
    if isinstance(about, dict) and rest[1] in about:
        del about[rest[1]]
    else:
        claims[int(k)] = {"longer": {}}


def is_algorithm(label: str, name: str) -> bool:
    """Return whether an algorithm with this label goes by a name: its kind, or its whole label.

    >>> [is_algorithm("sgd-lr0.5", name) for name in ("sgd", "sgd-lr0.5", "sg", "sgd-lr0.50")]
    [True, True, False, False]
    """
    return label == name or label.startswith(f"{name}-")


def _is_metric(name: str, quantity: str) -> bool:
    """Return whether a metric is of a quantity, some of whose coordinates may be left open.

    >>> [_is_metric(name, "spectrum/hessian/{rank}") for name in ("spectrum/hessian/1", "spectrum/hessian")]
    [True, False]
    """
    parts = re.split(r"\{[^}]*\}", quantity)
    return re.fullmatch(".+".join(map(re.escape, parts)), name) is not None


def _no_flatness(name: str, known: Sequence[str]) -> str:
    """Return the sentence for a metric that is no measure of flatness of the sweep."""
    if not known:
        return f"'{name}': {_NO_FLATNESS}"
    return f"'{name}' is no measure of flatness{suggest(name, known)}; the sweep has {', '.join(known)}"


def _no_accuracy(name: str, known: Sequence[str]) -> str:
    """Return the sentence for an accuracy that the sweep does not measure."""
    if not known:
        return f"'{name}': {_NO_ACCURACY}"
    return f"'{name}' is no accuracy{suggest(name, known)}; the sweep has {', '.join(known)}"


def _no_task(task: str, known: Sequence[str]) -> str:
    """Return the sentence for a task that no language of the sweep has."""
    if not known:
        return f"'{task}': the language has no downstream tasks; leave the task out"
    return f"'{task}' is no task of the language{suggest(task, known)}; it has {', '.join(known)}"


def _no_algorithm(name: str, labels: Sequence[str]) -> str:
    """Return the sentence for an algorithm with which no run of the sweep trains."""
    known = list(dict.fromkeys(kind for label in labels for kind in (label.partition("-")[0], label)))
    return (
        f"no run has the algorithm '{name}'{suggest(name, known)}; the sweep trains with {', '.join(known)}"
    )
