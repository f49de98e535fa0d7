"""The linear probe at a milestone (`raysweep.downstream.probe` defines it).

Training and test sentences are the two task splits of `raysweep.downstream.tasks`, which share no sentence.
They, projections and orders are keyed by the evaluation's seed alone, so all runs and milestones are probed
with the same draws.

Features are standardised by the same sentences whatever the sizes of the training set are: the first 4,096 of
the split `train`, or all rows of a smaller data set.  Their labels are not used.

With several sizes of the training set (`train: [128, 512, 2048]`) the metrics of each size carry its number
of labels, and the area is the mean of the score over the logarithm of that number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from torch import Tensor

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.downstream.best import best_accuracy
from raysweep.downstream.control import ControlTask
from raysweep.downstream.online_code import LEAST
from raysweep.downstream.probe import AdamW, Chunk, Convex, ProbeResult, linear_probe
from raysweep.downstream.tasks import TaskGroup
from raysweep.errors import DataError
from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations, forward
from raysweep.evaluation.probe_metrics import PROBE, PROBE_AREA, arrays_of, metrics_of
from raysweep.evaluation.tasks import EXAMPLES, TaskEvaluation
from raysweep.languages.base import Language, Task
from raysweep.languages.splits import Split, in_validation
from raysweep.models.base import ModelConfig, without_values
from raysweep.models.representation import Layers, Representation, misfits
from raysweep.seeding import derive

_CHUNK = 4096  # sentences whose features are in memory at once; as many give the statistics
_CHOOSES = 0.2  # share of the training sentences on which l2 is chosen
_ITERATIONS = 60  # passes of L-BFGS over the training set, about
_CONTROL = "\0"  # begins the name of a control task, and no other

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
LabelCount = Annotated[int, Field(gt=0)]


def _as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


class ProbeConfig(TaskEvaluation):
    """Scores of linear heads on frozen representations, for each of `tasks` (all when None).

    The score is the first metric of the task: accuracy, but for data sets that ask for another one.

    `solver: adamw`, `projection: null` and `train: 100000` with the other defaults are the recipe of the
    paper (appendix A.5), which does not say batch, weight decay and standardisation.  `lbfgs` finds the
    minimum of a penalised cross-entropy; it is the default because it is about as accurate on many labels,
    more so on few, and faster.
    """

    kind: Literal["probe"] = "probe"
    #: 2: AdamW takes `steps` on small training sets; metrics of the solve, of test sentences, and the best.
    #: 3: features are standardised by the same sentences for every size of the training set.
    #: 4: F1 goes by the task's classes, not by those that occur; each layer's probe has its own reservation.
    #: 5: the first of the task's metrics is the headline.
    #: 6: heads of fewer than 8,192 sentences are nearer to their minimum.
    #: 7: heads are found by another way to the same minimum, and answer without projecting test sentences.
    #: 8: the axes in which heads are found are made in float32.
    version: ClassVar[int] = 8

    #: Projections, training orders, and training sets with draws `own`.
    seeds: int = Field(default=5, gt=0)
    #: One training set for all seeds, or one for each.
    draws: Literal["shared", "own"] = "shared"
    #: Sentences trained on, of the task split `train`; several numbers give a curve.  None is all rows of a
    #: data set, and 100,000 sentences of a language's own task.
    train: Annotated[LabelCount | tuple[LabelCount, ...] | None, BeforeValidator(_as_tuple)] = 100_000
    #: Sentences tested on, of the task split `test`; None as for `train`.
    test: LabelCount | None = 100_000
    #: Features of a sentence: its words' states side by side, their mean, or the sentence-level token's
    #: state.
    representation: Representation = "concatenated"
    #: The last layer, or each of them by a probe of its own.
    layers: Layers = "last"
    #: Width of the random projection; None for none.
    projection: int | None = Field(default=512, gt=0)
    #: Give every feature mean 0 and variance 1.
    standardize: bool = True
    #: `lbfgs` finds the minimum of a penalised cross-entropy; `adamw` is the paper's way.
    solver: Literal["lbfgs", "adamw"] = "lbfgs"
    #: L-BFGS: 1 / variance of a Gaussian prior on the weights.  Of several numbers, each head takes the one
    #: with the least cross-entropy on a fifth of its training sentences, which it does not see then.
    l2: Annotated[Positive | tuple[Positive, ...], BeforeValidator(_as_tuple)] = 1.0
    #: L-BFGS ends where the objective is certain to be so near to the least one, in nats for a label, and
    #: still nearer where there are fewer than 8,192 labels.
    tolerance: Positive = 0.03
    #: AdamW: passes over the training set, and more of them up to at least `steps` steps.
    epochs: int = Field(default=100, gt=0)
    #: AdamW: fewest steps.
    steps: int = Field(default=10_000, ge=0)
    #: AdamW: learning rate.
    lr: Positive = 1e-3
    #: AdamW: sentences of a batch.
    batch_size: int = Field(default=256, gt=0)
    #: AdamW: weight decay.
    weight_decay: float = Field(default=0.01, ge=0, allow_inf_nan=False)
    #: Also measure the description length of the labels of the largest training set (Voita and Titov, 2020).
    mdl: bool = False
    #: Also probe for control tasks (Hewitt and Liang, 2019).
    control: bool = False
    #: Decides all draws.
    seed: int = Field(default=0, ge=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(train=96, test=64, projection=16, seeds=2)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of training sentences, ascending; () where the data decide."""
        return (self.train,) if isinstance(self.train, int) else self.train or ()

    @property
    def penalties(self) -> tuple[float, ...]:
        """The penalties of L-BFGS."""
        return self.l2 if isinstance(self.l2, tuple) else (self.l2,)

    @model_validator(mode="after")
    def _sizes_ascend(self) -> Self:
        if self.train == () or any(low >= high for low, high in pairwise(self.sizes)):
            raise ValueError(f"train: {list(self.sizes)} does not ascend; name each number of labels once")
        if self.train is None and self.draws == "own":
            raise ValueError("train: seeds cannot each have all rows for their own; name a number")
        if self.mdl and self.sizes and max(self.sizes) < 2 * LEAST:
            raise ValueError(f"train: {max(self.sizes)} labels are no two portions; mdl takes {2 * LEAST}")
        return self

    @model_validator(mode="after")
    def _fields_belong_to_the_solver(self) -> Self:
        others = {
            "lbfgs": ("epochs", "steps", "lr", "batch_size", "weight_decay"),
            "adamw": ("l2", "tolerance"),
        }[self.solver]
        for field in others:
            if getattr(self, field) != type(self).model_fields[field].default:
                other = "adamw" if self.solver == "lbfgs" else "lbfgs"
                raise ValueError(
                    f"{field}: solver {self.solver} does not use it; take {other}, or leave it out"
                )
        if not self.penalties or len(set(self.penalties)) != len(self.penalties):
            raise ValueError(f"l2: {list(self.penalties)} names none, or one twice")
        if self.mdl and len(self.penalties) > 1:
            raise ValueError("l2: a code of the labels takes one number, and mdl is true")
        if self.solver == "lbfgs" and self.projection is None and self.draws == "shared" and self.seeds > 1:
            raise ValueError(
                f"seeds: {self.seeds} seeds have the same head without a projection; take seeds 1, "
                "or draws own"
            )
        return self

    def problems(self, language: Language) -> list[tuple[str, str]]:
        found = super().problems(language) or self._regressions(language)
        if not found:
            sets = self.seeds if self.draws == "own" else 1
            found = self.shortage(language, "train", "train", sets * max(self.sizes, default=0))
            found += self.shortage(language, "test", "test", self.test or 0)
        return found

    def _regressions(self, language: Language) -> list[tuple[str, str]]:
        return [
            ("tasks", f"'{group.names[0]}' is a regression, and the probe classifies; name the other tasks")
            for group in self.groups(language)
            if group.data is not None and group.data.regression
        ]

    def applies_to(self, algorithm: AlgorithmConfig) -> bool:
        of_models = self.representation == "cls" or self.layers == "all"
        return super().applies_to(algorithm) and (algorithm.gives_parameters or not of_models)

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        if self.representation != "cls" and self.layers == "last":
            return []
        with without_values():
            return misfits(model.module(language), language, self.representation, self.layers)

    def quantities(self) -> Sequence[Quantity]:
        return (PROBE if len(self.sizes) <= 1 else PROBE_AREA,)

    def operations(self, parameters: int, language: Language) -> Operations | None:
        """Return the operations of the features, of their projection, and of all heads.

        A sentence takes 2·P·T, and 2·D² for each projection from and to about D features; a head takes 4·D·C
        for each sentence and pass, C the number of classes.  None as long as nobody knows how many rows a
        task has.
        """
        total, width = 0.0, self.projection or 512
        for group in self.groups(language):
            all_train, test = self.number(group, "train", None), self.number(group, "test", self.test)
            sizes = self.sizes or (all_train,)
            if test is None or sizes[-1] is None:
                return None
            # What is known before rows are read; data sets of more than two classes are rare.
            classes = sum(
                2 if group.data is not None else len(group.tasks[name].classes) for name in group.names
            )
            sets = self.seeds if self.draws == "own" else 1
            sentences = sets * sizes[-1] + test + (_CHUNK if sizes[-1] < _CHUNK and self.standardize else 0)
            projected = 2.0 * width * width * self.seeds * (sum(filter(None, sizes)) + test)
            passes = _ITERATIONS * len(self.penalties) if self.solver == "lbfgs" else self.epochs
            seen = passes * sum(filter(None, sizes))
            if self.solver == "adamw":
                seen = max(seen, self.steps * self.batch_size * len(sizes))
            heads = 4.0 * self.seeds * width * classes * seen * (2 if self.control else 1)
            total += sentences * forward(parameters, language) + heads
            total += projected if self.projection is not None else 0.0
        return Operations.fixed(total)

    def shards(self) -> int:
        """One: all seeds and tasks share one pass over the features."""
        return 1

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the arrays of each task (`raysweep.evaluation.probe_metrics`)."""
        if shard != 0:
            raise IndexError(f"shard {shard} of 1")
        arrays: Arrays = {}
        for group in self.groups(subject.language):
            tasks = group.tasks
            for name, task in tasks.items():
                if task.regression:
                    raise DataError(f"task '{name}' is a regression, and the probe classifies; leave it out")
            sizes = self.sizes or (group.size("train") or EXAMPLES,)
            found = self._probe(subject, group, tasks, sizes)
            for name, task in tasks.items():
                best = best_accuracy(subject.language, name, found[name].n, seed=self.seed)
                control = found.get(_CONTROL + name)
                chosen = len(self.penalties) > 1
                arrays |= arrays_of(task, found[name], control, best, sizes=sizes, chosen=chosen)
        return arrays

    def _probe(
        self, subject: Subject, group: TaskGroup, tasks: Mapping[str, Task], sizes: tuple[int, ...]
    ) -> dict[str, ProbeResult]:
        """Return the results of tasks that share their sentences, and of their control tasks."""
        classes = {name: len(task.classes) for name, task in tasks.items()}
        controls = {
            name: ControlTask(
                words=subject.language.cls_id + 1, classes=count, seed=derive(self.seed, "probe"), task=name
            )
            for name, count in classes.items()
            if self.control
        }
        most = max(sizes)
        test = self.test or group.size("test") or EXAMPLES
        sets = range(self.seeds if self.draws == "own" else 1)
        return linear_probe(
            [self._chunks(subject, group, controls, "train", k * most, most) for k in sets],
            self._chunks(subject, group, controls, "test", 0, test),
            classes | {_CONTROL + name: classes[name] for name in controls},
            sizes=sizes,
            solver=self._solver(),
            seeds=self.seeds,
            seed=derive(self.seed, "probe"),
            projection=self.projection,
            standardize=self.standardize,
            statistics=self._statistics(subject, group, most),
            code=self.mdl,
        )

    def _statistics(self, subject: Subject, group: TaskGroup, most: int) -> Tensor | None:
        """Return the features that standardise; None where the first training chunk has them."""
        if most >= _CHUNK or not self.standardize:
            return None
        n = min(_CHUNK, group.size("train") or _CHUNK)
        ids = group.examples("train", n, seed=self.seed).ids
        return subject.features(ids, self.representation, self.layers)

    def _solver(self) -> AdamW | Convex:
        if self.solver == "lbfgs":
            return Convex(l2=self.penalties, tolerance=self.tolerance)
        return AdamW(
            epochs=self.epochs,
            steps=self.steps,
            learning_rate=self.lr,
            batch_size=self.batch_size,
            weight_decay=self.weight_decay,
        )

    def _chunks(
        self,
        subject: Subject,
        group: TaskGroup,
        controls: Mapping[str, ControlTask],
        split: Split,
        first: int,
        n: int,
    ) -> Iterator[Chunk]:
        """Yield features and labels of examples `first .. first+n-1` of a split, some thousand at a time."""
        for start in range(first, first + n, _CHUNK):
            examples = group.examples(split, min(_CHUNK, first + n - start), seed=self.seed, start=start)
            labels = dict(examples.labels)
            for name, control in controls.items():
                labels[_CONTROL + name] = control.labels(examples.ids, examples.labels[name])
            chooses = None
            if split == "train" and len(self.penalties) > 1:
                chooses = in_validation(examples.ids, subject.language.pad_id, _CHOOSES)
            features = subject.features(examples.ids, self.representation, self.layers)
            yield Chunk(features=features, labels=labels, chooses=chooses)

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return scores with their spread, that of guessing one class, and the best possible accuracy."""
        (arrays,) = shards
        solver = self._solver()
        convex = solver if isinstance(solver, Convex) else None
        by_task: dict[str, dict[str, np.ndarray]] = {}
        for key, array in arrays.items():
            name, _, task = key.partition(".")
            by_task.setdefault(task, {})[name] = array
        return [metric for task, own in by_task.items() for metric in metrics_of(task, own, solver=convex)]
