"""The descent of the trace under SGD's noise, beside the ODE that predicts it.

The model of a milestone is brought to exact saturation on the whole of a small language.  From there SGD with
fresh samples runs for a time K, which is K/η² steps, at every rate η and batch size B; the ODE says where the
trace should be (`raysweep.flatness.theory.descent`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.evaluation.base import Arrays, Evaluation, Subject
from raysweep.evaluation.labels import model_of
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations, gradient
from raysweep.evaluation.sharding import shard_count, shard_range
from raysweep.flatness.theory.descent import RESOLUTION, descend, noisy_descent, stationary_loss
from raysweep.flatness.theory.population import Population
from raysweep.flatness.theory.valley import Valley
from raysweep.languages.base import Language
from raysweep.models.base import ModelConfig

START = Quantity(
    name="descent/start", heading="trace of the saturated model", unit="nats", kind="flatness", better="less"
)
RANK = Quantity(name="descent/rank", heading="rank of the Hessian", unit="directions")
LARGEST = Quantity(
    name="descent/largest_eigenvalue", heading="largest eigenvalue", unit="nats", kind="flatness"
)
SMALLEST = Quantity(
    name="descent/smallest_eigenvalue", heading="smallest eigenvalue", unit="nats", kind="flatness"
)
OBSERVED = Quantity(
    name="descent/observed/lr-{lr:g}/batch-{batch}/time-{time:g}", heading="observed trace", unit="nats",
    kind="flatness", better="less",
)  # fmt: skip
PREDICTED = Quantity(
    name="descent/predicted/batch-{batch}/time-{time:g}", heading="predicted trace", unit="nats",
    kind="flatness", better="less",
)  # fmt: skip
RATIO = Quantity(
    name="descent/ratio/lr-{lr:g}/batch-{batch}", heading="observed fall over predicted", unit="fraction"
)
EXCESS_LOSS = Quantity(
    name="descent/excess_loss/lr-{lr:g}/batch-{batch}", heading="excess loss", unit="nats", kind="loss",
    better="less", least=0.0,
)  # fmt: skip
STATIONARY_LOSS = Quantity(
    name="descent/stationary_loss/lr-{lr:g}/batch-{batch}", heading="predicted excess loss", unit="nats"
)

log = logging.getLogger("raysweep.evaluation")


class DescentConfig(Evaluation):
    """SGD from the saturated model at all `lrs` and `batches`, `replicates` times each, for a `time`.

    Time is steps · lr², the same for all, and traces are measured `points` times.  Traces and losses are in
    nats:

    - `descent/start`: the trace of the saturated model; `descent/rank`, `descent/largest_eigenvalue` and
      `descent/smallest_eigenvalue` of its Hessian where it is not zero;
    - `descent/observed/lr-<η>/batch-<B>/time-<t>` and `descent/predicted/batch-<B>/time-<t>`: the trace;
    - `descent/ratio/lr-<η>/batch-<B>`: the observed fall at the end as a share of the predicted one; left out
      where the predicted fall is too small, and the log and the record's notes then say so;
    - `descent/excess_loss/lr-<η>/batch-<B>` at the end, and `descent/stationary_loss/...`, the η Tr H/(4B)
      that the noise should hold up.

    Standard errors are over replicates.  The ratios tend to one as rates and lr/batch fall.  The defaults
    suit the small encoders of `sweeps/theory_descent.yaml`: rates should be small against 2 over the largest
    eigenvalue, and the time long against lr over twice the smallest.
    """

    kind: Literal["descent"] = "descent"
    needs_parameters: ClassVar[bool] = True

    #: Learning rates of SGD.
    lrs: tuple[Annotated[float, Field(gt=0)], ...] = Field(default=(0.01, 0.02), min_length=1)
    #: Batch sizes of SGD.
    batches: tuple[Annotated[int, Field(gt=0)], ...] = Field(default=(8, 32), min_length=1)
    #: Length of the descent: steps · lr².
    time: float = Field(default=1.0, gt=0)
    #: Times at which the trace is measured.
    points: int = Field(default=5, gt=0)
    #: Descents of each rate and batch size, with other draws.
    replicates: int = Field(default=16, gt=1)
    #: Decides all draws.
    seed: int = Field(default=0, ge=0)
    #: Replicates a shard.
    shard_size: int = Field(default=16, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(lrs=(0.01,), batches=(4,), time=2e-4, points=1, replicates=2, shard_size=1)

    @model_validator(mode="after")
    def _steps_are_whole(self) -> DescentConfig:
        for name in ("lrs", "batches"):
            # As the names of metrics give them.
            values = [f"{value:g}" for value in getattr(self, name)]
            if len(set(values)) < len(values):
                raise ValueError(f"{name}: {', '.join(values)} holds a value twice; leave one out")
        steps = self.time / self.points / max(self.lrs) ** 2
        if steps < 1:
            raise ValueError(
                f"time: at lr {max(self.lrs):g} there are {steps:.2g} steps from one point to the next; "
                "take a longer time, fewer points or lower rates"
            )
        return self

    def problems(self, language: Language) -> list[tuple[str, str]]:
        try:
            population = Population.of(language)
        except ConfigError as error:
            return [("", str(error))]
        if bool((population.truth == 0).any()):
            return [
                ("", "some words have probability zero in their place, so no finite weights are saturated")
            ]
        return []

    def model_problems(self, model: ModelConfig, language: Language) -> list[tuple[str, str]]:
        try:
            Valley.of(model.build(language, seed=0), Population.of(language))
        except ConfigError as error:
            return [("", str(error))]
        return []

    @property
    def times(self) -> Tensor:
        """The times [points + 1] of the measurements, from 0 on."""
        return torch.linspace(0, self.time, self.points + 1, dtype=torch.float64)

    def quantities(self) -> Sequence[Quantity]:
        return START, LARGEST, SMALLEST, OBSERVED, PREDICTED

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return replicates · time / lr² · batch · 6·P·T over all pairs, the main part."""
        sentences = sum(self.time / lr**2 * batch for lr, batch in self._pairs())
        return Operations.fixed(self.replicates * sentences * gradient(parameters, language))

    def shards(self) -> int:
        return shard_count(self.replicates, self.shard_size)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return [n, points + 1] traces and losses of the shard's replicates, and the prediction in each row.

        The prediction and the `spectrum` [n, 4] (start, rank, largest and smallest eigenvalue) are the same
        in all rows.
        """
        replicates = shard_range(self.replicates, self.shard_size, shard)
        valley, theta = Valley.of(model_of(self.kind, subject), Population.of(subject.language))
        theta = valley.saturate(theta)
        eigenvalues = valley.spectrum(theta)
        facts = [valley.trace(theta), len(eigenvalues), eigenvalues[0], eigenvalues[-1]]
        found = {"spectrum": torch.tensor(facts, dtype=torch.float64)}
        # The batch size enters the ODE only as a factor of time, so one solution serves all.
        asked = torch.cat([self.times / batch for batch in self.batches])
        moments, place = asked.unique(return_inverse=True)
        predicted = descend(valley, theta, moments)[place].split(len(self.times))
        for batch, traces in zip(self.batches, predicted, strict=True):
            found[f"predicted-{batch}"] = traces
        found = {key: values.expand(len(replicates), -1) for key, values in found.items()}
        pairs = self._pairs()
        seen = noisy_descent(valley, theta, self.times, pairs, replicates=replicates, seed=self.seed)
        for (lr, batch), traces, losses in zip(pairs, *seen, strict=True):
            found |= {f"trace-{lr!r}-{batch}": traces, f"loss-{lr!r}-{batch}": losses}
        return {key: values.numpy() for key, values in found.items()}

    def _pairs(self) -> list[tuple[float, int]]:
        return [(lr, batch) for lr in self.lrs for batch in self.batches]

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        found = {key: np.concatenate([shard[key] for shard in shards]) for key in shards[0]}
        start, rank, largest, smallest = found["spectrum"][0].tolist()
        metrics = [
            START.number(start, n=1),
            RANK.number(rank, n=1),
            LARGEST.number(largest, n=1),
            SMALLEST.number(smallest, n=1),
        ]
        times = self.times.tolist()
        for batch in self.batches:
            for time, trace in zip(times, found[f"predicted-{batch}"][0].tolist(), strict=True):
                metrics.append(PREDICTED.number(trace, n=1, of={"batch": batch, "time": time}))
        for lr, batch in self._pairs():
            of = {"lr": lr, "batch": batch}
            traces, losses = found[f"trace-{lr!r}-{batch}"], found[f"loss-{lr!r}-{batch}"]
            metrics += [OBSERVED.mean(traces[:, k], of=of | {"time": time}) for k, time in enumerate(times)]
            fall = _predicted_fall(found, batch)
            if fall is not None:
                shares = (traces[:, 0] - traces[:, -1]) / fall
                metrics.append(RATIO.mean(shares, of=of))
            held = stationary_loss(float(traces[:, -1].mean()), lr=lr, batch=batch)
            metrics += [
                EXCESS_LOSS.mean(losses[:, -1], of=of),
                STATIONARY_LOSS.number(held, n=1, of=of),
            ]
        for note in self.notes(shards).values():
            log.warning("%s", note)
        return metrics

    def notes(self, shards: Sequence[Mapping[str, np.ndarray]]) -> dict[str, str]:
        """Return the reason for which a ratio is left out, {} where none is."""
        flat = [batch for batch in self.batches if _predicted_fall(shards[0], batch) is None]
        if not flat:
            return {}
        start = shards[0]["predicted-" + str(flat[0])][0, 0]
        batches = ", ".join(map(str, flat))
        return {
            "no_ratio": f"descent: no ratio for batches of {batches}: in a time of {self.time:g} the trace "
            f"of {start:.4g} nats is predicted to fall by no more than {RESOLUTION:g} of it, which is too "
            "little to measure; take a longer time (as many steps at a larger rate) or smaller batches"
        }


def _predicted_fall(found: Mapping[str, np.ndarray], batch: int) -> float | None:
    """Return the predicted fall of the trace over the whole time, None where it is too small to measure."""
    traces = found[f"predicted-{batch}"][0]
    fall = float(traces[0] - traces[-1])
    return fall if fall > RESOLUTION * float(traces[0]) else None
