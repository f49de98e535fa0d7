"""Fine-tuning at a milestone (`raysweep.downstream.finetune` defines it), and what a model forgets by it.

A cell is one seed of one task: a shard of its own, so finished cells outlive an interruption.  A cell whose
loss is no longer finite has diverged: the record names it, and the mean is over the others.

Examples are those of `raysweep.downstream.tasks`, keyed by the evaluation's seed alone, so all runs and
milestones are fine-tuned on the same sentences, in the same orders, from the same heads.

Forgetting is the rise of the pre-training loss (`raysweep.evaluation.pretraining_loss`) by fine-tuning, with
the head of pre-training as it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self, cast

import numpy as np
from pydantic import Field
from torch import Tensor

from raysweep.downstream.best import best_accuracy
from raysweep.downstream.finetune import DivergedError, FineTuned, Recipe, fine_tune
from raysweep.downstream.scores import scores, sentence_error
from raysweep.downstream.tasks import TaskGroup, task_names
from raysweep.errors import ConfigError, DataError
from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.held_out_loss import mean_per_word
from raysweep.evaluation.labels import model_of
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.notes import text_arrays, text_of
from raysweep.evaluation.operations import Operations, forward, gradient
from raysweep.evaluation.pretraining_loss import HEADINGS, PretrainingLoss, PretrainingLossFields
from raysweep.evaluation.tasks import EXAMPLES, TaskEvaluation
from raysweep.languages.base import Estimate, Language, Task, TaskMetric
from raysweep.languages.splits import Split
from raysweep.models.base import ModelConfig, without_values
from raysweep.models.subject import ModelSubject
from raysweep.seeding import derive

FINETUNE = Quantity(
    name="finetune/{task}", heading="accuracy after fine-tuning", short="tuned", unit="accuracy",
    kind="accuracy", better="more", baseline="finetune_guess/{task}", ceiling="finetune_best/{task}",
    live=True, report=True,
)  # fmt: skip
STD = Quantity(
    name="finetune_std/{task}", heading="standard deviation after fine-tuning between seeds", unit="accuracy"
)
SENTENCES = Quantity(
    name="finetune_sentence_error/{task}", heading="standard error of the score over test sentences",
    unit="accuracy",
)  # fmt: skip
GUESS = Quantity(name="finetune_guess/{task}", heading="score of one answer to all", unit="accuracy")
BEST = Quantity(
    name="finetune_best/{task}",
    heading="best possible accuracy on the examples of fine-tuning",
    unit="accuracy",
)
OTHER = Quantity(name="finetune_{metric}/{task}", heading="score after fine-tuning", unit="score")
TRAIN_LOSS = Quantity(
    name="finetune_train_loss/{task}", heading="training loss in the last epoch of fine-tuning", unit="nats"
)
DIVERGED = Quantity(
    name="finetune_diverged/{task}", heading="seeds that diverged in fine-tuning", unit="seeds"
)
FORGETTING = Quantity(
    name="forgetting/{task}", heading="rise of the loss by fine-tuning", short="forgets", unit="nats",
    better="less", report=True,
)  # fmt: skip
AFTER = {
    loss: Quantity(name=f"finetune_{loss}/{{task}}", heading=f"{heading} after fine-tuning", unit="nats")
    for loss, heading in HEADINGS.items()
}

#: The beginning of the note that names the cells that diverged.
DIVERGED_NOTE = "finetune: diverged and left out: "


class FinetuneConfig(TaskEvaluation, PretrainingLossFields, Recipe):
    """Scores on the test examples of each of `tasks` (all when None) after fine-tuning on training ones.

    The defaults are the recipe of the paper, and BERT's where the paper leaves it open
    (`raysweep.downstream.finetune`); forgetting is an addition.
    """

    kind: Literal["finetune"] = "finetune"
    needs_parameters: ClassVar[bool] = True
    cells: ClassVar[bool] = True
    #: 3: F1 goes by the task's classes; units of other scores than accuracy; the best possible accuracy.
    version: ClassVar[int] = 3

    #: Heads, orders of the training set and draws of dropout.
    seeds: int = Field(default=5, gt=0)
    #: Training examples; None for all rows of a data set, and 100,000 of a language's own task.
    train: int | None = Field(default=None, gt=0)
    #: Test examples; None as for `train`.
    test: int | None = Field(default=None, gt=0)
    #: Sentences on which the pre-training loss is measured before and after; 0 to leave it out.
    forgetting: int = Field(default=1024, ge=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(train=48, test=32, seeds=2, epochs=2, batch_size=16, warmup_steps=2, forgetting=12)

    def problems(self, language: Language) -> list[tuple[str, str]]:
        found = super().problems(language)
        if found:
            return found
        if self.forgetting:
            found += [("forgetting", message) for message in self._loss(language).problems()]
        for field, split, n in self._wanted():
            found += [] if n is None else self.shortage(language, field, split, n)
        return found

    def fitted(self, language: Language) -> Self:
        """Return the evaluation with its tasks named and the fingerprints of their data."""
        tasks = tuple(task_names(language)) if self.tasks is None else self.tasks
        return super().fitted(language).model_copy(update={"tasks": tasks})

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        if self.pooling != "cls":
            return []
        with without_values():
            positions = model.module(language).with_token().max_length
        if positions > language.max_length:
            return []
        return [
            (
                "pooling",
                f"the model's {positions} positions leave no place for the sentence-level token in front of "
                f"{language.max_length} words; use mean or auto, or pre-train with model.cls: true",
            )
        ]

    def quantities(self) -> Sequence[Quantity]:
        return (FINETUNE,)

    def operations(self, parameters: int, language: Language) -> Operations | None:
        """Return seeds · (train · epochs · 6·P·T + test · 2·P·T), and twice the loss, over the tasks.

        None as long as nobody knows how many rows a task has.
        """
        total = 0.0
        loss = self._loss(language).evaluation.operations(parameters, language) if self.forgetting else None
        for group in self.groups(language):
            train, test = (self.number(group, split, n) for _, split, n in self._wanted())
            if train is None or test is None:
                return None
            cell = train * self.epochs * gradient(parameters, language) + test * forward(parameters, language)
            total += self.seeds * len(group.names) * (cell + (2 * loss.most if loss is not None else 0.0))
        return Operations.fixed(total)

    def shards(self) -> int:
        """Return the number of cells; raises `ConfigError` where the tasks are not named (see `fitted`)."""
        if self.tasks is None:
            raise ConfigError("finetune.tasks: which ones is up to the language; name them, or use `fitted`")
        return self.seeds * len(self.tasks)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return the results of one cell.

        They are `score.<metric>`, `train_loss`, and the pre-training loss, its rise and that of the subject
        under `after`, `rise` and the loss's name, float64 [1] each; `answers` and `labels` [n] of the test
        examples.  A cell that diverged has none of them, but the step at which it did under `diverged`.
        Every cell has `guess`, `classes` [1], 0 for a regression, and `examples` [2] for training and test.
        That of the first seed has `best` [2], the best possible accuracy and its standard error, where it is
        known and the headline is an accuracy.
        """
        language, model = subject.language, model_of(self.kind, subject)
        cells = [(group, name) for group in self.groups(language) for name in group.names]
        if not 0 <= shard < self.seeds * len(cells):
            raise IndexError(f"shard {shard} of {self.seeds * len(cells)}")
        (group, name), seed = cells[shard // self.seeds], shard % self.seeds
        task = group.tasks[name]
        (ids, labels), (test_ids, test_labels) = self._examples(group, task)
        pooling, reason = self.pooling_of(model, cls=model.reads_cls, longest=language.max_length)
        texts = {"task": task.name, "metric": task.metrics[0]}
        if reason is not None:
            texts |= {"method": "the mean state of the words", "reason": reason}
        guess = labels.mean() if task.regression else labels.bincount().argmax()
        answer, truth = np.full(len(test_labels), guess.item()), test_labels.numpy()
        arrays: Arrays = {
            "examples": np.array([len(ids), len(test_ids)]),
            "guess": np.array([scores(task, answer, truth)[task.metrics[0]]]),
            "classes": np.array([len(task.classes)]),
        }
        if seed == 0:
            arrays |= self._best(language, task, len(test_ids))
        try:
            found = fine_tune(
                model,
                ids,
                labels,
                classes=None if task.regression else len(task.classes),
                recipe=self,
                pooling=pooling,
                seed=derive(self.seed, "finetune", seed),
            )
            results = self._scores(task, found, test_ids, truth)
            if self.forgetting:
                results |= self._forgetting(self._loss(language), subject, found)
            arrays |= results
        except DivergedError as error:
            arrays["diverged"] = np.array([error.step])
        return arrays | text_arrays(texts)

    def _wanted(self) -> list[tuple[str, Split, int | None]]:
        """Return field, split and number of training and of test examples."""
        return [("train", "train", self.train), ("test", "test", self.test)]

    def _examples(self, group: TaskGroup, task: Task) -> list[tuple[Tensor, Tensor]]:
        """Return ids [n, T] and labels [n] of the training and of the test examples."""
        if group.data is not None:
            group.data.prepare()
        both = []
        for _, split, n in self._wanted():
            size = group.size(split)
            found = group.examples(split, n or size or EXAMPLES, seed=self.seed)
            both.append((found.ids, found.labels[task.name]))
        return both

    def _best(self, language: Language, task: Task, n: int) -> Arrays:
        """Return the best possible accuracy on the n test examples, where that is the headline and known."""
        if task.metrics[0] != "accuracy":
            return {}
        best = best_accuracy(language, task.name, n, seed=self.seed)
        return {} if best is None else {"best": np.array([best.value, best.standard_error])}

    def _scores(self, task: Task, found: FineTuned, ids: Tensor, truth: np.ndarray) -> Arrays:
        """Return the scores of a fine-tuned model, and its loss in the last epoch."""
        z = found.scores(ids)
        if not bool(z.isfinite().all()):
            raise DivergedError(len(found.losses))
        answer = z[:, 0] if task.regression else z.argmax(dim=1)
        by_metric = scores(task, answer.numpy(), truth)
        last = found.losses[-(len(found.losses) // self.epochs) :]
        return {f"score.{metric}": np.array([score]) for metric, score in by_metric.items()} | {
            "train_loss": np.array([last.mean().item()]),
            "answers": answer.numpy(),
            "labels": truth,
        }

    def _forgetting(self, loss: PretrainingLoss, subject: Subject, found: FineTuned) -> Arrays:
        """Return the pre-training loss before and after fine-tuning, and its rise."""
        loss.language.held_out.prepare()
        for message in loss.problems():
            raise DataError(f"forgetting: {message}")
        before, masked = loss.terms_before(model_of(self.kind, subject), 0)
        after, _ = loss.terms(ModelSubject(loss.language, found.classifier.model), 0)
        if not np.isfinite(after).all():
            raise DivergedError(len(found.losses))
        values = {loss.name: before, "after": after, "rise": after - before}
        arrays = {name: np.array([mean_per_word(sums, masked).value]) for name, sums in values.items()}
        return arrays if loss.reason is None else arrays | text_arrays({"loss": f"finetune: {loss.reason}"})

    def _loss(self, language: Language) -> PretrainingLoss:
        return self.loss_on(language, self.forgetting, self.forgetting)

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        """Return means over the seeds of each task that did not diverge; n counts these.

        Standard errors are over seeds, given the examples and sentences, which are the same for every run.
        `finetune_sentence_error` is the error of a task's mean score over its test sentences.
        """
        metrics = []
        for task, cells in self._by_task(shards).items():
            metrics += _combined(task, cells)
        return metrics

    def _by_task(
        self, shards: Sequence[Mapping[str, np.ndarray]]
    ) -> dict[str, list[Mapping[str, np.ndarray]]]:
        """Return the cells of each task, in the order of seeds."""
        found: dict[str, list[Mapping[str, np.ndarray]]] = {}
        for shard in shards:
            found.setdefault(str(text_of(shard, "task")), []).append(shard)
        return found

    def notes(self, shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
        """Return representation and reason, cells that diverged, and warm-ups that did not end."""
        found = {name: text_of(shards[0], name) for name in ("method", "reason", "loss")}
        texts = {name: text for name, text in found.items() if text is not None}
        diverged, short = [], []
        for task, cells in self._by_task(shards).items():
            steps = self.steps(int(cells[0]["examples"][0]))
            if steps < self.warmup_steps:
                short.append(f"task {task} has {steps}")
            for seed, cell in enumerate(cells):
                if "diverged" in cell:
                    diverged.append(f"task {task}, seed {seed} at step {int(cell['diverged'][0])} of {steps}")
        if diverged:
            texts["diverged"] = DIVERGED_NOTE + "; ".join(diverged)
        if short:
            texts["warm_up"] = (
                f"finetune: the rate never reaches lr, because warmup_steps is {self.warmup_steps} and "
                f"{', '.join(short)} steps; take a shorter warm-up or more epochs"
            )
        return texts


def _combined(task: str, cells: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
    """Return the metrics of one task, given its cells."""
    of, sound = {"task": task}, [cell for cell in cells if "diverged" not in cell]
    lost, n, classes = len(cells) - len(sound), int(cells[0]["examples"][1]), int(cells[0]["classes"][0])
    unit = cast(TaskMetric, text_of(cells[0], "metric"))
    in_unit = {"unit": unit}
    metrics = [
        DIVERGED.number(lost, n=len(cells), of=of),
        GUESS.model_copy(update=in_unit).number(float(cells[0]["guess"][0]), n=n, of=of),
    ]
    if "best" in cells[0]:
        best, spread = cells[0]["best"].tolist()
        metrics.append(BEST.estimate(Estimate(value=best, standard_error=spread, n=n), of=of))
    if not sound:
        return metrics
    doubts = [f"{lost} of {len(cells)} seeds diverged"] if lost else []
    others = [name for name in sound[0] if name.startswith("score.") and name != f"score.{unit}"]
    headline = FINETUNE.model_copy(update=in_unit | {"heading": f"{unit} after fine-tuning"})
    if "best" not in cells[0]:
        headline = headline.model_copy(update={"ceiling": None})
    first = _over_seeds(sound, f"score.{unit}")
    metrics.append(headline.mean(first, of=of, reservations=doubts))
    if len(sound) > 1:
        spread = float(first.std(ddof=1))
        metrics.append(STD.model_copy(update=in_unit).number(spread, n=len(sound), of=of))
    answers, labels = np.stack([cell["answers"] for cell in sound]), sound[0]["labels"]
    error = sentence_error(unit, answers, labels, classes=classes)
    if error is not None:
        metrics.append(SENTENCES.model_copy(update=in_unit).number(error, n=len(labels), of=of))
    for name in others:
        other = name.removeprefix("score.")
        quantity = OTHER.model_copy(update={"unit": other})
        metrics.append(quantity.mean(_over_seeds(sound, name), of={"metric": other, **of}))
    loss_unit = {"unit": "nats" if classes else "squared error"}
    metrics.append(TRAIN_LOSS.model_copy(update=loss_unit).mean(_over_seeds(sound, "train_loss"), of=of))
    if "rise" in sound[0]:
        metrics.append(FORGETTING.mean(_over_seeds(sound, "rise"), of=of, reservations=doubts))
        (loss,) = (name for name in AFTER if name in sound[0])
        metrics.append(AFTER[loss].mean(_over_seeds(sound, "after"), of=of))
    return metrics


def _over_seeds(cells: Sequence[Mapping[str, np.ndarray]], name: str) -> np.ndarray:
    """Return a number of each cell [S]."""
    return np.concatenate([cell[name] for cell in cells])
