"""Oracles of fused training: keyed dropout in plain Python, and gradients in float64."""

import math
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.languages import PCFG
from raysweep.models import MaskedLM
from raysweep.models.batch import Batch
from raysweep.seeding import derive
from raysweep.training.config import PretrainConfig
from raysweep.training.data import batches

LANGUAGE = PCFG.random(seed=3)
#: A language with so few words that most stand in one place many times.
SMALL = PCFG.random(seed=3, roots=2, layers=3, symbols=2, rules=2, words=2, vocabulary=4)
WORDS = 2**64 - 1


def draw(mask: Any = "one", size: int = 33, language: PCFG = LANGUAGE) -> Batch:
    config = PretrainConfig(steps=1, batch_size=size, mask=mask)
    return next(batches(language, config, seed=5, first=1, last=1))


def levels(key: int, first: int, count: int) -> list[int]:
    """Return 16-bit levels from SplitMix64 (Steele, Lea and Flood, 2014), from its word `first` on."""
    found: list[int] = []
    for word in range(first, first + -(-count // 4)):
        x = (key + (word + 1) * 0x9E3779B97F4A7C15) & WORDS
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORDS
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORDS
        x ^= x >> 31
        found += [(x >> shift) & 0xFFFF for shift in (0, 16, 32, 48)]
    return found[:count]


class Oracle:
    """Loss and gradients in float64 by one sentence's `logits` at a time, which kinds of models add."""

    def __init__(self, model: MaskedLM, seed: int) -> None:
        self.seed = seed
        self.p = {name: p.detach().double().requires_grad_() for name, p in model.named_parameters()}
        self.cut = round(model.dropout.p * 2**16)

    def dropped(self, x: Tensor, site: int, numbers: list[int], words: int) -> Tensor:
        """Drop elements of x [n, K]: row i has the levels from word numbers[i] * words on."""
        if self.cut == 0:
            return x
        key = derive(self.seed, "site", site)
        keep = [[level >= self.cut for level in levels(key, n * words, x.shape[1])] for n in numbers]
        return x * torch.tensor(keep) * (2**16 / (2**16 - self.cut))

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.p[f"{name}.weight"], self.p[f"{name}.bias"])

    def logits(self, ids: Tensor, row: int) -> Tensor:
        """Return logits [T, total_vocabulary] of sentence number `row` of the batch."""
        raise NotImplementedError

    def gradients(self, batch: Batch) -> tuple[float, dict[str, Tensor]]:
        index = (
            batch.index + torch.arange(len(batch.ids)) * batch.ids.shape[1] if batch.single else batch.index
        )
        total = torch.zeros((), dtype=torch.float64)
        for k, number in enumerate(batch.rows):
            logits = self.logits(batch.ids[k, : batch.lengths[k]], number)
            for at, target in zip(index.tolist(), batch.targets.tolist(), strict=True):
                row, position = divmod(at, batch.ids.shape[1])
                if row == k:
                    total = total - logits[position].log_softmax(dim=-1)[target]
        loss = total / batch.count
        names = list(self.p)
        found = torch.autograd.grad(loss, [self.p[n] for n in names])
        return loss.item(), dict(zip(names, found, strict=True))


def ours(
    fused: ModuleType, model: MaskedLM, batch: Batch, seed: int, dtype: torch.dtype
) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of the `masked_loss` of a module of raysweep.models.fused, and its gradients."""
    loss = fused.step(model, batch, seed=seed, dtype=dtype).differentiable()
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters)
    return loss.item(), dict(zip(names, found, strict=True))


def assert_close(found: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    whole = math.sqrt(sum(g.double().square().sum().item() for g in wanted.values()))
    for name, gradient in wanted.items():
        # A key's bias moves all scores of a query alike: its gradient is nothing but rounding.
        scale = whole if name.endswith("key.bias") else gradient.norm().item()
        assert (found[name].double() - gradient).norm().item() <= tolerance * scale, name


def distance(found: dict[str, Tensor], wanted: dict[str, Tensor]) -> float:
    return math.sqrt(sum((found[n] - g).square().sum().item() for n, g in wanted.items()))
