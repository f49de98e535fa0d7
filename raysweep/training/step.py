"""One update: forward, backward, gradients summed over workers, optimizer.

The loss of a step is the sum of -log f(x_t | visible words) over the masked words of the whole batch divided
by their number, in nats, whatever the number of workers: every rank divides by the global count, and
gradients are summed.  What an algorithm adds to it (`ExtraLoss`) is the same on every rank, so each adds its
share of it.  Dropout of step s on rank r is drawn from a generator seeded by (seed, s, r), and for a half of
the batch by (seed, s, r, half), so a step depends on nothing but the state before it.

The halves of a batch are its even and its odd sentences, counted over all ranks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from raysweep import seeding
from raysweep.algorithms.average import WeightAverage
from raysweep.algorithms.base import AlgorithmConfig, ExtraLoss
from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM
from raysweep.training.config import PretrainConfig
from raysweep.training.data import Batch, World


class MaskedLoss(nn.Module):
    """This rank's part of the objective: the masked-LM loss and what an algorithm adds to it.

    Returns (objective, loss), both scalars: the loss is the sum over masked words by the count of the whole
    batch, detached, and not finite where anything added to it is not.
    """

    def __init__(self, model: MaskedLM, extra: ExtraLoss | None, workers: int) -> None:
        super().__init__()
        self.model, self.extra, self.workers = model, extra, workers

    def forward(self, batch: Batch, step: int) -> tuple[Tensor, Tensor]:
        if batch.single:
            logits = self.model(batch.ids, batch.index)
        else:
            logits = self.model.logits_at(batch.ids, batch.index)
        loss = F.cross_entropy(logits, batch.targets, reduction="sum") / batch.count
        if self.extra is None:
            return loss, loss.detach()
        extra = self.extra(self.model, step)
        return loss + extra / self.workers, (loss + 0 * extra).detach()


class Stepper:
    """A model and its optimizer, on this rank's device, and the update that moves both.

    `average` is the moving average of weights, where the algorithm keeps one.  Raises `ConfigError` for a
    batch that does not give every worker what the algorithm needs.
    """

    def __init__(
        self,
        model: MaskedLM,
        algorithm: AlgorithmConfig,
        *,
        language: Language,
        pretrain: PretrainConfig,
        seed: int,
        world: World,
        device: torch.device,
    ) -> None:
        if algorithm.halves and pretrain.batch_size < 2 * world.size:
            raise ConfigError(
                f"pretrain.batch_size: {pretrain.batch_size} sentences do not give each of {world.size} "
                f"workers one of either half, as '{algorithm.kind}' needs; use at least {2 * world.size}"
            )
        self.model = model.to(device).train()
        self.algorithm, self.seed, self.world, self.device = algorithm, seed, world, device
        self.pretrain = pretrain
        self.optimizer = algorithm.build(self.model)
        decay = algorithm.average_decay
        self.average = None if decay is None else WeightAverage(self.model, decay)
        extra = algorithm.extra_loss(language, seed=seed, device=device)
        self._loss: nn.Module = MaskedLoss(self.model, extra, world.size)

    def connect(self, example: Batch) -> None:
        """Join the other workers, once the weights are those to start from.

        The gradient buckets of `DistributedDataParallel` are laid out anew after the first backward pass,
        and with three workers or more the order of a sum depends on the layout.  A pass over `example`
        whose gradients are thrown away puts that behind us, so that a resumed run sums as one never
        interrupted.
        """
        self._loss = DistributedDataParallel(self._loss)
        objective, _ = self._loss(example, 1)
        torch.autograd.backward(objective)
        self.optimizer.zero_grad()

    def update(self, batch: Batch, step: int) -> Tensor:
        """Do step `step`, counted from 1; return this rank's part of the loss, detached, on the device."""

        def backward(half: int | None = None) -> Tensor:
            return self._backward(batch, step, half)

        loss = self.algorithm.gradient(self.model, backward)
        self.algorithm.before_update(self.model)
        rate = self.algorithm.learning_rate(step, self.pretrain.steps)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(self.model, step)
        return loss

    def _backward(self, batch: Batch, step: int, half: int | None) -> Tensor:
        """Add the gradient of a batch, or of half of it, to `.grad`; return this rank's part of the loss."""
        key: tuple[str | int, ...] = ("dropout", step, self.world.rank)
        if half is not None:
            batch = self._half(batch, half)
            key += ("half", half)
        self._seed_dropout(seeding.derive(self.seed, *key))
        objective, loss = self._loss(batch, step)
        # DistributedDataParallel averages over workers; the parts are to be summed.
        torch.autograd.backward(objective if self.world.size == 1 else objective * self.world.size)
        return loss

    def _half(self, batch: Batch, half: int) -> Batch:
        """Return this rank's part of the even (0) or odd (1) sentences of a batch."""
        size = self.pretrain.batch_size
        first = (half - self.world.rows(size).start) % 2
        ids = batch.ids[first::2]
        if batch.single:
            count = (size + 1 - half) // 2
            return replace(
                batch, ids=ids, index=batch.index[first::2], targets=batch.targets[first::2], count=count
            )
        width = batch.ids.shape[1]
        row = batch.index // width
        mine = row % 2 == first
        index = batch.index[mine] - (row[mine] + first) // 2 * width
        targets = batch.targets[mine]
        whole = torch.tensor(len(targets), device=self.device)
        if self.world.size > 1:
            distributed.all_reduce(whole)
        return replace(batch, ids=ids, index=index, targets=targets, count=int(whole))

    def _seed_dropout(self, seed: int) -> None:
        if self.device.type == "cpu":
            # What torch.manual_seed does for a CPU, without the 70 microseconds of looking for others.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
