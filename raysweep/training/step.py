"""One update: forward, backward, gradients summed over workers, optimizer.

The loss of a step is the sum of -log f(x_t | visible words) over the masked words of the whole batch divided
by their number, in nats, whatever the number of workers: every rank divides by the global count, and
gradients are summed.  Dropout of step s on rank r is drawn from a generator seeded by (seed, s, r), so a step
depends on nothing but the state before it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from raysweep import seeding
from raysweep.algorithms.base import AlgorithmConfig
from raysweep.models.base import MaskedLM
from raysweep.training.data import Batch, World


class MaskedLoss(nn.Module):
    """This rank's part of the loss, a scalar: its sum over masked words by the count of the whole batch."""

    def __init__(self, model: MaskedLM) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> Tensor:
        if batch.single:
            logits = self.model(batch.ids, batch.index)
        else:
            logits = self.model.logits_at(batch.ids, batch.index)
        return F.cross_entropy(logits, batch.targets, reduction="sum") / batch.count


class Stepper:
    """A model and its optimizer, on this rank's device, and the update that moves both."""

    def __init__(
        self, model: MaskedLM, algorithm: AlgorithmConfig, *, seed: int, world: World, device: torch.device
    ) -> None:
        self.model = model.to(device).train()
        self.algorithm, self.seed, self.world, self.device = algorithm, seed, world, device
        self.optimizer = algorithm.build(self.model)
        self._loss: nn.Module = MaskedLoss(self.model)

    def connect(self, example: Batch) -> None:
        """Join the other workers, once the weights are those to start from.

        The gradient buckets of `DistributedDataParallel` are laid out anew after the first backward pass,
        and with three workers or more the order of a sum depends on the layout.  A pass over `example`
        whose gradients are thrown away puts that behind us, so that a resumed run sums as one never
        interrupted.
        """
        self._loss = DistributedDataParallel(self._loss)
        loss: Tensor = self._loss(example)
        torch.autograd.backward(loss)
        self.optimizer.zero_grad()

    def update(self, batch: Batch, step: int) -> Tensor:
        """Do step `step`, counted from 1; return this rank's part of the loss, detached, on the device."""
        self._seed_dropout(seeding.derive(self.seed, "dropout", step, self.world.rank))
        loss: Tensor = self._loss(batch)
        # DistributedDataParallel averages over workers; the parts are to be summed.
        torch.autograd.backward(loss if self.world.size == 1 else loss * self.world.size)
        self.algorithm.before_update(self.model)
        rate = self.algorithm.learning_rate(step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def _seed_dropout(self, seed: int) -> None:
        if self.device.type == "cpu":
            # What torch.manual_seed does for a CPU, without the 70 microseconds of looking for others.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
