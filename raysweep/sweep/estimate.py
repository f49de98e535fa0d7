"""Time and storage of the work that is left, estimated from measurements.

Seconds of a training step: the run's own history; else the caller's timing of the run; else the history of a
run with the same language, model, kind of algorithm and batch.  Seconds of an evaluation and bytes of a
checkpoint: the mean over runs with the same model.  Bytes without any history: three float32 numbers a
parameter (weights and the two moments of Adam), most of a checkpoint.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.missing import Missing
from raysweep.sweep.run import RunSpec
from raysweep.sweep.survey import RunRecords

_BYTES_PER_PARAMETER = 12


@dataclass(frozen=True)
class Cost:
    """Estimated seconds of work, bytes of checkpoints and seconds of a step; None if nothing was measured."""

    seconds: float | None = 0.0
    bytes: float | None = 0.0
    step: float | None = None


class History:
    """Measured costs of the runs of a sweep."""

    def __init__(
        self,
        sweep: Sweep,
        records: Mapping[str, RunRecords],
        step_seconds: Mapping[str, float],
    ) -> None:
        self.sweep = sweep
        self.timed = dict(step_seconds)
        self._texts: dict[int, str] = {}
        self._counts: dict[tuple[str, str], int] = {}
        own: dict[str, float] = {}
        alike: dict[tuple[str, str, str, int], list[float]] = {}
        sizes: dict[str, list[float]] = {}
        evaluations: dict[tuple[str, str], list[float]] = {}
        for spec in sweep.runs:
            held = records.get(spec.run_id)
            if held is None:
                continue
            if held.step_seconds is not None:
                own[spec.run_id] = held.step_seconds
                alike.setdefault(self._like(spec), []).append(held.step_seconds)
            if held.checkpoint_bytes is not None:
                sizes.setdefault(self._model(spec), []).append(held.checkpoint_bytes)
            for kind, seconds in held.evaluation_seconds:
                evaluations.setdefault((self._model(spec), kind), []).append(seconds)
        self.own = own
        self.alike = {key: statistics.fmean(values) for key, values in alike.items()}
        self.sizes = {key: statistics.fmean(values) for key, values in sizes.items()}
        self.evaluations = {key: statistics.fmean(values) for key, values in evaluations.items()}

    def _model(self, spec: RunSpec) -> str:
        if not spec.trains:
            return "none"
        if id(spec.model) not in self._texts:
            self._texts[id(spec.model)] = canonical(spec.model.encode())
        return self._texts[id(spec.model)]

    def _like(self, spec: RunSpec) -> tuple[str, str, str, int]:
        batch = spec.pretrain.batch_size
        return (spec.language_fingerprint, self._model(spec), spec.algorithm.kind, batch)

    def step(self, spec: RunSpec) -> float | None:
        """Return the seconds of a training step of a run; None if they are not known."""
        for known in (self.own, self.timed):
            if spec.run_id in known:
                return known[spec.run_id]
        return self.alike.get(self._like(spec))

    def _checkpoint_bytes(self, spec: RunSpec) -> float:
        model = self._model(spec)
        if model in self.sizes:
            return self.sizes[model]
        key = (model, spec.language_fingerprint)
        if key not in self._counts:
            self._counts[key] = spec.model.parameters(self.sweep.language(spec))
        return _BYTES_PER_PARAMETER * self._counts[key]

    def cost(self, spec: RunSpec, lacks: Missing) -> Cost:
        """Return the cost of what a run lacks.

        Evaluations that were never timed count as nothing: a total needs only the time of training.
        """
        known = self.step(spec)
        step = known if lacks.train_steps else 0.0
        seconds = None
        if step is not None:
            model = self._model(spec)
            measuring = sum(self.evaluations.get((model, kind), 0.0) for _, kind in lacks.evaluations)
            seconds = lacks.train_steps * step + measuring
        new = len(lacks.checkpoints)
        return Cost(seconds, new * self._checkpoint_bytes(spec) if new else 0.0, known)
