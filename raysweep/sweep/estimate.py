"""How long and how large what is left will be, from what was measured before: never from a guess.

Seconds a step of a run: its own history; else what the caller has timed for it; else the history of a run
with the same language, model, kind of algorithm and batch.  Seconds of an evaluation and bytes of a
checkpoint: the mean over runs with the same model.  Bytes without any history: three float32 numbers a
parameter (weights and the two moments of Adam), which is what a checkpoint is mostly made of.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import canonical
from raysweep.sweep.run import RunSpec
from raysweep.sweep.survey import RunRecords

_BYTES_PER_PARAMETER = 12


@dataclass(frozen=True)
class Cost:
    """Estimated seconds of work and bytes of checkpoints; None where nothing was measured."""

    seconds: float | None = 0.0
    bytes: float | None = 0.0


class History:
    """Measured costs by what they depend on."""

    def __init__(
        self,
        sweep: Sweep,
        states: Mapping[str, RunRecords],
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
            state = states.get(spec.run_id)
            if state is None:
                continue
            if state.step_seconds is not None:
                own[spec.run_id] = state.step_seconds
                alike.setdefault(self._like(spec), []).append(state.step_seconds)
            if state.checkpoint_bytes is not None:
                sizes.setdefault(self._model(spec), []).append(state.checkpoint_bytes)
            for kind, seconds in state.evaluation_seconds:
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
        """Return the seconds a training step of a run takes."""
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

    def cost(
        self, spec: RunSpec, steps: int, checkpoints: Sequence[int], evaluations: Sequence[tuple[int, str]]
    ) -> Cost:
        """Return the cost of training some steps, keeping some checkpoints and making some evaluations.

        Evaluations never timed count nothing: only training must have been timed for a total to be given.
        """
        step = self.step(spec) if steps else 0.0
        seconds = None
        if step is not None:
            model = self._model(spec)
            seconds = steps * step + sum(self.evaluations.get((model, kind), 0.0) for _, kind in evaluations)
        return Cost(seconds, len(checkpoints) * self._checkpoint_bytes(spec) if checkpoints else 0.0)
