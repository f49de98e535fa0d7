"""One update: forward, backward, gradients summed over workers, optimizer.

The loss of a step is the sum of -log f(x_t | visible words) over the masked words of the whole batch divided
by their number, in nats, whatever the number of workers: every rank divides by the global count, and
gradients are summed.  An algorithm's extra loss (`ExtraLoss`) is the same on every rank, so each rank adds
its share.  Where a model keys dropout by sentence (`MaskedLM.masked_loss`), the key in step s is (seed, s),
seed being that of the dropout; kernels of a GPU key it by (seed, s) and the sentences of the part, and other
models draw it from a generator seeded by (seed, s, rank), or (seed, s, rank, half) for half of the batch.  So
a step depends on nothing but the state before it.  Steps of one worker with a GPU may be recorded and
replayed (`raysweep.training.recorded`), and those of a small model on a processor may do without `.grad`
(`raysweep.training.direct`).

A batch that is too large for the memory is split into parts whose gradients add up (`micro_batch`).  Where
dropout is not keyed by sentence, other parts see other masks; a resumed run is then bitwise equal to an
uninterrupted one only if both use the same parts.

The halves of a batch are its even and its odd sentences, counted over all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

from raysweep import seeding
from raysweep.algorithms.average import WeightAverage
from raysweep.algorithms.base import AlgorithmConfig, ExtraLoss
from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.precision import Precision, multiplies_bfloat16
from raysweep.models.reproducible import reproducible, settle
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World
from raysweep.training.direct import DirectSteps
from raysweep.training.recorded import RecordedSteps
from raysweep.training.seeds import Seeds
from raysweep.training.sharding import shard

log = logging.getLogger(__name__)


def working_precision(model: MaskedLM, precision: Precision, device: torch.device) -> torch.dtype:
    """Return the precision of training; raise `ConfigError` for one that the device does not support."""
    if precision == "auto":
        return model.precision(device)
    if precision == "bfloat16" and not multiplies_bfloat16(device):
        raise ConfigError(
            f"pretrain.precision: {device.type} has no instructions for bfloat16 here; use float32, or auto"
        )
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


class MaskedLoss(nn.Module):
    """This rank's part of the objective: the masked-LM loss and the algorithm's extra loss.

    Returns (objective, loss), both scalars.  The loss is the sum over this rank's masked words divided by the
    count of the whole batch, detached; it is not finite where the extra loss is not.  `dtype` is the working
    precision.
    """

    def __init__(self, model: MaskedLM, extra: ExtraLoss | None, workers: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.model, self.extra, self.workers, self.dtype = model, extra, workers, dtype

    def forward(self, batch: Batch, step: int, seed: int, *, last: bool = True) -> tuple[Tensor, Tensor]:
        """Return both for a batch or a part of it; the extra loss is added to the `last` part."""
        loss = self.model.masked_loss(batch, seed=seed, dtype=self.dtype)
        if self.extra is None or not last:
            return loss, loss.detach()
        extra = self.extra(self.model, step)
        return loss + extra / self.workers, (loss + 0 * extra).detach()


class Stepper:
    """A model and its optimizer on this rank's device, and the update of both.

    `average` is the moving average of the weights, None where the algorithm keeps none.  With several
    `world.shards` model, optimizer and average hold this rank's rows of each tensor
    (`raysweep.training.sharding`).  Raises `ConfigError` for a batch, or parts of it, that are too small for
    the algorithm and the number of workers.
    """

    def __init__(
        self,
        model: MaskedLM,
        algorithm: AlgorithmConfig,
        *,
        language: Language,
        pretrain: PretrainConfig,
        seed: int | Seeds,
        world: World,
        device: torch.device,
    ) -> None:
        sharded = world.shards > 1
        if device.type == "cuda":
            settle()
        for field, message in pretrain.sharing_problems(world.size, halves=algorithm.halves, sharded=sharded):
            raise ConfigError(f"pretrain.{field}: {message}")
        self.model = model.train()
        seeds = Seeds.of(seed)
        self.algorithm, self.seed, self.world, self.device = algorithm, seeds.dropout, world, device
        self.pretrain = pretrain
        extra = algorithm.extra_loss(language, seed=seeds.data, device=device)
        self.dtype = working_precision(self.model, pretrain.precision, device)
        self._masked = MaskedLoss(self.model, extra, world.size, self.dtype)
        self._loss: nn.Module = self._masked
        #: Most sentences whose activations are in memory at once.
        self._most = pretrain.micro_batch or pretrain.batch_size
        if sharded:
            shard(self._masked, self.model, world, device)
        else:
            self.model.to(device)
        self.optimizer = algorithm.build(self.model)
        decay = algorithm.average_decay
        self.average = None if decay is None else WeightAverage(self.model, decay)
        alone = world.size == 1 and extra is None
        self._recorded = (
            RecordedSteps(self.model, self.optimizer, algorithm, self.dtype, device)
            if alone and RecordedSteps.serve(self.optimizer, algorithm, device)
            else None
        )
        self._direct = (
            DirectSteps(self.model, self.optimizer, self.dtype)
            if alone and DirectSteps.serve(self.model, self.optimizer, algorithm)
            else None
        )
        #: Called with the name of each part of a step when it is done (`raysweep.training.timing.StepTimes`).
        self.mark: Callable[[str], None] | None = None

    @property
    def micro_batch(self) -> int | None:
        """The largest number of sentences in memory at once; None if that is a whole batch."""
        return self._most if self._most < self.pretrain.batch_size else None

    def connect(self, example: Batch) -> None:
        """Join the other workers, after the weights have been set.

        `DistributedDataParallel` lays its gradient buckets out anew after the first backward pass, and with
        three workers or more the order of a sum depends on the layout.  One pass over `example`, whose
        gradients are dropped, settles the layout, so a resumed run sums in the same order as an uninterrupted
        one.  Sharded weights have joined already, and their layout does not change.

        The workers agree on one precision: if `auto` is float32 for one of them, it is float32 for all.
        """
        plain = torch.tensor(int(self.dtype == torch.float32), device=self.device)
        distributed.all_reduce(plain, op=distributed.ReduceOp.MAX)
        if plain and self.dtype != torch.float32:
            log.warning("another worker has no bfloat16 instructions, so all workers train in float32")
            self.dtype = self._masked.dtype = torch.float32
        if self.world.shards > 1:
            return
        self._loss = DistributedDataParallel(self._masked)
        # No more sentences than fit into memory at once.
        objective, _ = self._loss(example.split(self._most)[0], 1, 0)
        with reproducible(self.device):
            torch.autograd.backward(objective)
        self.optimizer.zero_grad()

    def update(self, batch: Batch, step: int) -> Tensor:
        """Make update number `step`, counted from 1; return this rank's part of the loss, detached."""

        def backward(half: int | None = None) -> Tensor:
            return self._backward(batch, step, half)

        rate = self.algorithm.learning_rate(step, self.pretrain.steps)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        loss = self._at_once(batch, step)
        if loss is None:
            loss = self.algorithm.gradient(self.model, backward)
            self.algorithm.before_update(self.model)
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.average is not None:
            self.average.update(step)
        if self.mark is not None:
            self.mark("optimizer")
        return loss

    def _at_once(self, batch: Batch, step: int) -> Tensor | None:
        """Make the update in one go; return None, with nothing done, where that does not serve."""
        if self.micro_batch is not None:
            return None
        seed, loss = seeding.derive(self.seed, "dropout", step), None
        # A recorded step has no parts whose time could be taken.
        if self._recorded is not None and self.mark is None:
            loss = self._recorded.update(batch, seed)
        if loss is None and self._direct is not None:
            loss = self._direct.update(batch, seed, self.mark)
        return loss

    def _backward(self, batch: Batch, step: int, half: int | None) -> Tensor:
        """Add the gradient of a batch, or of a half, to `.grad`; return this rank's part of the loss."""
        if half is not None:
            batch = self._half(batch, half)
        while True:
            try:
                return self._parts(batch, step, half)
            except torch.OutOfMemoryError:
                rows = min(self._most, len(batch.ids))
                # Other workers may wait in a collective and cannot start the step again.
                if rows == 1 or self.world.size > 1:
                    raise
                if self._recorded is not None:
                    self._recorded.stop()
                self._most = rows // 2
                log.warning(
                    "%d sentences do not fit into the memory of %s; training goes on with %d at a time "
                    "(pretrain.micro_batch), which adds up to the same gradient",
                    rows, self.device, self._most,
                )  # fmt: skip
            # Algorithms ask for a gradient when there is none yet, so the partial sum can be dropped.
            self.optimizer.zero_grad()
            torch.cuda.empty_cache()

    def _parts(self, batch: Batch, step: int, half: int | None) -> Tensor:
        """Do the work of `_backward` in as many parts as are set."""
        key: tuple[str | int, ...] = ("dropout", step)
        self._seed_dropout(
            seeding.derive(self.seed, *key, self.world.rank, *([] if half is None else [half]))
        )
        seed = seeding.derive(self.seed, *key)
        # Every part gathers weights from all workers, so all have the same number of them.
        sharded = self.world.shards > 1
        if sharded:
            parts = batch.parts(self.pretrain.parts(self.world.size, halves=half is not None))
        else:
            parts = batch.split(self._most)
        losses = []
        for k, part in enumerate(parts, start=1):
            last = k == len(parts)
            with nullcontext() if last else self._alone():
                losses.append(self._learn(part, step, seed, last=last))
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    def _learn(self, part: Batch, step: int, seed: int, *, last: bool) -> Tensor:
        """Add the gradient of a part to `.grad`; return its part of the loss."""
        fused = self.model.fused
        if fused and self.world.size == 1 and self._masked.extra is None:
            loss = self.model.learn(part, seed=seed, dtype=self.dtype)
        else:
            objective, loss = self._loss(part, step, seed, last=last)
            if self.mark is not None and not fused:
                self.mark("forward")
            # DistributedDataParallel averages over workers; the parts are to be summed.
            averaged = self.world.size > 1 and self.world.shards == 1
            with reproducible(self.device):
                torch.autograd.backward(objective * self.world.size if averaged else objective)
        if self.mark is not None:
            self.mark("forward+backward" if fused else "backward")
        return loss

    def _alone(self) -> AbstractContextManager[None]:
        """Return a context in which gradients are not summed over workers."""
        if isinstance(self._loss, DistributedDataParallel):
            alone: AbstractContextManager[None] = self._loss.no_sync()
            return alone
        return nullcontext()

    def _half(self, batch: Batch, half: int) -> Batch:
        """Return this rank's part of the even (0) or odd (1) sentences of a batch."""
        size = self.pretrain.batch_size
        first = (half - self.world.rows(size).start) % 2
        batch = replace(
            batch, ids=batch.ids[first::2], lengths=batch.lengths[first::2], rows=batch.rows[first::2]
        )
        if batch.single:
            count = (size + 1 - half) // 2
            return replace(batch, index=batch.index[first::2], targets=batch.targets[first::2], count=count)
        width = batch.ids.shape[1]
        row = batch.index // width
        mine = row % 2 == first
        index = batch.index[mine] - (row[mine] + first) // 2 * width
        targets = batch.targets[mine]
        whole = torch.tensor(len(targets), device=self.device)
        if self.world.size > 1:
            distributed.all_reduce(whole)
        return replace(batch, index=index, targets=targets, count=int(whole))

    def _seed_dropout(self, seed: int) -> None:
        if self.device.type == "cpu":
            # What torch.manual_seed does for a CPU, without looking for other devices.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
