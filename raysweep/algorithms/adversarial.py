"""The adversarial algorithm: a language model trained for the same loss and the worst transfer.

    minimise over ψ    L(ψ) - strength · 1/|D2| Σ_(x,y)∈D2 ‖g_φ̂(h_ψ(x)) - e_y‖²

where h_ψ(x) is the concatenation of the sentence's token representations, zero at padding, and φ̂ = φ̂(ψ) is
the linear head that a downstream user would fit on D1 (Liu, Xie, Li and Ma, "Same pre-training loss, better
downstream", ICML 2023, appendix A.5).  The head is ridge regression on one-hot labels e_y with a free
intercept, in closed form: with A the features of D1 less their mean, R the labels less theirs,

    φ̂ = (AᵀA + μ I)⁻¹ AᵀR  =  Aᵀ(AAᵀ + μ I)⁻¹ R,    μ = ridge · n · (mean square entry of A)

so the model cannot escape the head by making its features small.  The gradient goes through the solve, which
is a Cholesky factorisation in float64, because in float32 the gradient of nearly dependent features is
mostly rounding.  The smaller one of the two matrices is factorised.

D1 and D2 are disjoint draws from the downstream training set D: `examples` sentences of the task split
`train`, shuffled anew each time it is used up, all keyed by the run's seed and the step.  (A sentence that is
probable enough to be drawn twice may be in both.)  Test sentences are never seen.  Dropout is off in the
term, as it is where representations are read.  The idea of a head in closed form that gradients go through:
Bertinetto, Henriques, Torr and Vedaldi, "Meta-learning with differentiable closed-form solvers", ICLR 2019.

The paper gives neither strength nor ridge nor the sizes of D1 and D2, and leaves the loss of the head open.
With a strength that is too large the pre-training loss stays behind: compare it with AdamW's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from pydantic import BeforeValidator, Field, field_validator, model_validator
from torch import Tensor

from raysweep import seeding
from raysweep.algorithms.adamw import AdamWBase
from raysweep.algorithms.base import ExtraLoss
from raysweep.languages.base import Language
from raysweep.languages.splits import draw_split
from raysweep.models.base import MaskedLM
from raysweep.registry import suggest

_TINY = 1e-12  # keeps the head of features that do not vary at all solvable


def _as_name(value: Any) -> Any:
    """Take a whole number for a name: tasks of hidden Markov models are called "6", "10"."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


class AdversarialConfig(AdamWBase):
    """AdamW on the adversarial objective against `tasks` (all when None; the mean over several).

    `train` and `validation` are |D1| and |D2| of a step.

    >>> AdversarialConfig().label, AdversarialConfig(tasks=("A",), strength=0.5).label
    ('adversarial', 'adversarial-strength0.5-tasksA')
    """

    kind: Literal["adversarial"] = "adversarial"
    #: Weight of the term against transfer.
    strength: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.03
    #: Penalty of the linear head, relative to the mean square of its features.
    ridge: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    #: Tasks that the model is to be bad at; None: all.
    tasks: tuple[Annotated[str, BeforeValidator(_as_name, json_schema_input_type=str | int)], ...] | None = (
        None
    )
    #: Sentences that the linear head is fitted on in a step.
    train: Annotated[int, Field(ge=2)] = 256
    #: Sentences that its error is measured on in a step.
    validation: Annotated[int, Field(ge=1)] = 256
    #: Labelled sentences of each task that both are drawn from.
    examples: Annotated[int, Field(ge=3)] = 100_000

    short: ClassVar[dict[str, str]] = {
        **AdamWBase.short,
        "strength": "strength",
        "ridge": "ridge",
        "tasks": "tasks",
        "train": "train",
        "validation": "validation",
        "examples": "examples",
    }

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(lr=1e-2, warmup_steps=10, train=24, validation=16, examples=100)

    @field_validator("tasks", mode="before")
    @classmethod
    def _tasks_may_be_a_list(cls, tasks: object) -> object:
        return tuple(tasks) if isinstance(tasks, list) else tasks

    @field_validator("tasks")
    @classmethod
    def _tasks_are_named_once(cls, tasks: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if tasks is not None and not tasks:
            raise ValueError("names no task; leave it out to work against all tasks")
        if tasks is not None and len(set(tasks)) != len(tasks):
            raise ValueError(f"a task is named twice in {list(tasks)}")
        return tasks

    @model_validator(mode="after")
    def _there_are_examples_for_both(self) -> AdversarialConfig:
        if self.train + self.validation > self.examples:
            raise ValueError(
                f"examples: {self.examples} do not suffice for disjoint sets of {self.train} (train) and "
                f"{self.validation} (validation); use at least {self.train + self.validation}"
            )
        return self

    def problems(self, language: Language) -> list[tuple[str, str]]:
        known = list(language.tasks)
        if not known:
            return [("kind", "'adversarial' works against downstream tasks, and the language has none")]
        return [
            (
                f"tasks.{k}",
                f"unknown task '{task}'{suggest(task, known)}; the language has {', '.join(known)}",
            )
            for k, task in enumerate(self.tasks or ())
            if task not in known
        ]

    def extra_loss(self, language: Language, *, seed: int, device: torch.device) -> AdversarialLoss:
        return AdversarialLoss(self, language, seed=seed, device=device)


class AdversarialLoss(ExtraLoss):
    """-strength times the mean over tasks of the head's squared error on D2."""

    def __init__(
        self, config: AdversarialConfig, language: Language, *, seed: int, device: torch.device
    ) -> None:
        super().__init__()
        self.config, self.pad_id, self.max_length = config, language.pad_id, language.max_length
        self._seed = seeding.derive(seed, "adversarial")
        names = tuple(language.tasks) if config.tasks is None else config.tasks
        sample = draw_split(language, "train", config.examples, seed=self._seed)
        self._ids = sample.ids.to(device)
        #: Labels of each task, and its number of classes.
        self._labels = [
            (language.labels(name, sample).to(device), len(language.tasks[name].classes)) for name in names
        ]
        self._round, self._order = -1, torch.empty(0, dtype=torch.int64)

    def rows(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the rows of D1 and those of D2, among the examples, at step `step`."""
        size = self.config.train + self.config.validation
        number, at = divmod(step - 1, self.config.examples // size)
        if number != self._round:
            generator = seeding.generator(self._seed, "order", number)
            order = torch.randperm(self.config.examples, generator=generator)
            self._round, self._order = number, order.to(self._ids.device)
        first, second = self._order[at * size : (at + 1) * size].split(
            [self.config.train, self.config.validation]
        )
        return first, second

    def forward(self, model: MaskedLM, step: int) -> Tensor:
        training = model.training
        model.eval()
        try:
            rows = torch.cat(self.rows(step))
            features = representations(model, self._ids[rows], self.max_length).double()
        finally:
            model.train(training)
        targets = torch.cat(
            [F.one_hot(labels[rows], classes) for labels, classes in self._labels], dim=1
        ).double()
        sizes = [self.config.train, self.config.validation]
        error = ridge_error(*features.split(sizes), *targets.split(sizes), ridge=self.config.ridge)
        return -self.config.strength / len(self._labels) * error


def representations(model: MaskedLM, ids: Tensor, max_length: int) -> Tensor:
    """Return the concatenated hidden states [B, max_length * D] of `ids` [B, T], zero at padding."""
    hidden = model.encode(ids).masked_fill((ids == model.pad_id)[:, :, None], 0.0)
    return F.pad(hidden, (0, 0, 0, max_length - ids.shape[1])).flatten(1)


def ridge_error(train: Tensor, validation: Tensor, wanted: Tensor, truth: Tensor, *, ridge: float) -> Tensor:
    """Return the mean over rows of ‖prediction - truth‖² on `validation`, of the head fitted to `train`.

    `train` [n, F] and `validation` [m, F] are features, `wanted` [n, C] and `truth` [m, C] their targets; all
    are float64.  The result is NaN if the equations of the head cannot be solved.
    """
    centre, guess = train.mean(dim=0), wanted.mean(dim=0)
    a, b, residual = train - centre, validation - centre, wanted - guess
    n, width = a.shape
    small = min(n, width)
    matrix = a.T @ a if width <= n else a @ a.T
    penalty = ridge * n * a.square().mean() + _TINY
    factor, failed = torch.linalg.cholesky_ex(matrix + penalty * torch.eye(small).to(matrix))
    if width <= n:
        scores = guess + b @ torch.cholesky_solve(a.T @ residual, factor)
    else:
        scores = guess + (b @ a.T) @ torch.cholesky_solve(residual, factor)
    error = (scores - truth).square().sum(dim=1).mean()
    # NaN shows as a loss that is not finite, without a synchronisation with the device in every step.
    return torch.where(failed == 0, error, torch.nan)
