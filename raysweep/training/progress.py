"""Progress reports and requests to stop, a few times a second during training."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import distributed

from raysweep.training.data import World

LOOK_SECONDS = 0.5  # between two looks at progress (and, with several workers, at `stop`)


@dataclass(frozen=True)
class Progress:
    """The progress of a run: `step` out of `steps`, and the mean `loss` (nats) of the latest steps.

    `tokens_per_second` and `mfu` are means up to the newest point of the curve, of the steps of this process;
    None before its first point.
    """

    step: int
    steps: int
    loss: float
    tokens_per_second: float | None = None
    mfu: float | None = None


class Watched(Protocol):
    """A run in progress on this rank, as `Looks` sees it."""

    world: World
    device: torch.device
    step: int
    steps: int
    latest: float
    tokens_per_second: float | None
    mfu: float | None

    def recent_losses(self) -> list[float]:
        """Return the losses of the latest steps; all ranks call this together."""


class Looks:
    """Decides when to report and ask: about twice a second, or with several workers at agreed steps."""

    def __init__(
        self, run: Watched, on_progress: Callable[[Progress], None] | None, stop: Callable[[], bool] | None
    ) -> None:
        self.run, self.on_progress, self.stop = run, on_progress, stop
        self.last_time, self.last_step = time.monotonic(), run.step
        self.next_step = run.step + 1

    def look(self) -> bool:
        """Report progress if it is due; return whether to stop."""
        if self.run.world.size == 1:
            if time.monotonic() - self.last_time >= LOOK_SECONDS:
                self._report()
            return self.stop is not None and self.stop()
        # Asking the other ranks costs as much as a small step, so all ask at the same, agreed steps.
        if self.run.step < self.next_step:
            return False
        speed = self._report()
        ask = 0 if self.stop is None else int(self.stop())
        pause = max(1, min(1000, round(speed * LOOK_SECONDS))) if self.run.world.rank == 0 else 0
        agreed = torch.tensor([ask, pause], device=self.run.device)
        distributed.all_reduce(agreed, op=distributed.ReduceOp.MAX)
        stop, pause = agreed.tolist()
        self.next_step = self.run.step + pause
        return bool(stop)

    def _report(self) -> float:
        """Check and report the latest losses; return the steps a second since the last report."""
        run, now = self.run, time.monotonic()
        speed = (run.step - self.last_step) / max(now - self.last_time, 1e-9)
        self.last_time, self.last_step = now, run.step
        values = run.recent_losses()
        loss = math.fsum(values) / len(values) if values else run.latest
        if self.on_progress is not None and run.world.rank == 0:
            self.on_progress(
                Progress(
                    step=run.step,
                    steps=run.steps,
                    loss=loss,
                    tokens_per_second=run.tokens_per_second,
                    mfu=run.mfu,
                )
            )
        return speed
