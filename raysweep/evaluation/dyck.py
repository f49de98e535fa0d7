"""Solutions of the bracket task: their trace beside the least possible one, and their use of few examples.

Downstream, as in theorem 5.1 of the paper (see `raysweep.models.dyck`), the features σ(V h(x)) stay and the
output weights are the least that fit n examples of (x, g*(x)), x of independent fair brackets.  The measures
are exact: over all masked sentences, and over all 2^T strings downstream; only the n examples are drawn.  A
string counts as right where g*, which takes every second value, is the nearest to f.

The two neurons are right as soon as both signs of g* have been seen, so their expected accuracy is known:

    E accuracy(n) = p_0 + (1 − p_0)(1 − (1 − (1 − p_0)/2)^n),        p_0 = C(T, T/2) / 2^T

(`raysweep.models.dyck.expected_accuracy`).

According to the paper they fail with probability at most 2^−n.  That forgets the strings with g* = 0, which
say nothing: only (1 − p_0)/2 < 1/2 of all strings have a given sign.

Random features lack transfer of the features: their number of examples grows with T.  With the output weights
of pre-training, which are fitted to many more sentences, they too are right downstream.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field

from raysweep.algorithms.base import AlgorithmConfig
from raysweep.algorithms.dyck import DyckSolution, Solution
from raysweep.errors import ConfigError
from raysweep.evaluation.base import Arrays, Evaluation
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations
from raysweep.evaluation.sharding import shard_range
from raysweep.languages.base import Language
from raysweep.languages.dyck import Dyck
from raysweep.models.dyck import bound, hessian_trace, least_output
from raysweep.models.subject import Subject
from raysweep.seeding import derive

LOSS = Quantity(name="dyck/loss", heading="loss", unit="squared error", kind="loss", better="less", least=0.0)
TRACE = Quantity(
    name="dyck/trace", heading="trace of the Hessian", unit="squared error", kind="flatness", better="less"
)
BOUND = Quantity(name="dyck/bound", heading="least possible trace", unit="squared error")
TRACE_OVER_BOUND = Quantity(
    name="dyck/trace_over_bound", heading="trace over least possible", unit="fraction", kind="flatness",
    better="less",
)  # fmt: skip
ACCURACY = Quantity(
    name="dyck/accuracy/examples-{examples}",
    heading="accuracy",
    unit="accuracy",
    kind="accuracy",
    better="more",
)
ERROR = Quantity(
    name="dyck/error/examples-{examples}", heading="downstream error", unit="fraction", better="less"
)

#: Brackets of the longest strings that are all listed.
_LONGEST = 12


class DyckConfig(Evaluation):
    """Trace and transfer of a solution of the bracket task, for `sets` training sets of each size.

    - `dyck/loss`: mean squared error on all masked sentences; `dyck/trace`: of its Hessian;
      `dyck/bound`: the least trace of a model of so many neurons; `dyck/trace_over_bound`;
    - `dyck/accuracy/examples-<n>` and `dyck/error/examples-<n>`: share of all strings that are right, and
      mean squared error as a share of that of 0, after n examples; for n = 0 with the weights as they are.

    Standard errors are over training sets, which are nested and the same for all solutions.
    """

    kind: Literal["dyck"] = "dyck"
    needs_parameters: ClassVar[bool] = True

    #: Sizes of the training sets.
    examples: tuple[Annotated[int, Field(ge=0, le=4096)], ...] = Field(
        default=(0, 1, 2, 4, 8, 16, 32, 64), min_length=1
    )
    #: Training sets of each size.
    sets: int = Field(default=100, gt=1)
    #: Decides the training sets.
    seed: int = Field(default=0, ge=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(examples=(0, 3), sets=5)

    def applies_to(self, algorithm: AlgorithmConfig) -> bool:
        return isinstance(algorithm, DyckSolution)

    def problems(self, language: Language) -> list[tuple[str, str]]:
        if not isinstance(language, Dyck):
            return [("", f"measures the bracket task, not a {type(language).__name__}; leave it out")]
        if language.max_length > _LONGEST:
            return [("", f"lists all strings of up to {_LONGEST} brackets, not of {language.max_length}")]
        return []

    def quantities(self) -> Sequence[Quantity]:
        return TRACE, TRACE_OVER_BOUND

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return sets · numbers of examples · 2^T strings · 2·T²: the answers of about T neurons."""
        answers = 2.0 ** (language.max_length + 1) * language.max_length**2
        return Operations.fixed(self.sets * len(self.examples) * answers)

    def shards(self) -> int:
        return 1

    @torch.no_grad()
    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return `facts` [3] (loss, trace, bound), `accuracy` and `error` [sets, len(examples)], float64."""
        shard_range(1, 1, shard)
        if not isinstance(subject, Solution):
            raise ConfigError(f"dyck: measures solutions of the bracket task, not a {type(subject).__name__}")
        language, model = subject.language, subject.model
        population, strings = language.population(), language.downstream_population()
        x = language.encode(population.ids, population.mask_signs)
        loss = float((model(x) - population.targets).square().mean())
        trace = hessian_trace(model, x, targets=population.targets)
        features, targets = model.features(language.encode(strings.ids)), strings.targets
        accuracy = np.empty((self.sets, len(self.examples)))
        error = np.empty_like(accuracy)
        for row in range(self.sets):
            drawn = language.sample_downstream(max(*self.examples, 1), seed=derive(self.seed, "dyck", row))
            known = model.features(language.encode(drawn.ids))
            for column, n in enumerate(self.examples):
                u = least_output(known[:n], drawn.targets[:n]) if n else model.output
                off = features @ u / model.neurons - targets
                accuracy[row, column] = (off.abs() < 1).double().mean()
                error[row, column] = off.square().mean() / targets.square().mean()
        facts = np.array([loss, trace, bound(language.max_length, model.neurons)])
        return {"facts": facts, "accuracy": accuracy, "error": error}

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        (found,) = shards
        loss, trace, least = found["facts"].tolist()
        metrics = [
            LOSS.number(loss, n=1),
            TRACE.number(trace, n=1),
            BOUND.number(least, n=1),
            TRACE_OVER_BOUND.number(trace / least, n=1),
        ]
        for column, n in enumerate(self.examples):
            metrics.append(ACCURACY.mean(found["accuracy"][:, column], of={"examples": n}))
            metrics.append(ERROR.mean(found["error"][:, column], of={"examples": n}))
        return metrics
