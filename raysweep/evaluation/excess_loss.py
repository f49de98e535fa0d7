"""Excess loss: the distance of a model's conditionals from the language's own.

    loss        = E_{x,t} −log f(x_t | x_-t) = entropy + excess loss
    entropy     = E_{x,t} H(Pr(x_t = · | x_-t))
    excess loss = E_{x,t} KL(Pr(x_t = · | x_-t) ‖ f(x_t = · | x_-t))

over sentences x of the language and one uniformly drawn masked position t each.  Because the conditionals are
exact, the mean over the word at the masked position is taken exactly: the noise of a sampled loss is gone,
and only the spread over sentences is left.  All sums are in float64.

The training set is given, words and all, so no mean over words is taken there:

    excess loss in training = mean over x of the set and t of log Pr(x_t | x_-t) - log f(x_t | x_-t)

Its mean is the excess loss for a model that has not seen the sentences; the difference is what it gained from
seeing these very words.  A model that has learned them by heart can go below zero.

Source: Liu, Xie, Li and Ma, "Same pre-training loss, better downstream", ICML 2023, section 3.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from raysweep.algorithms.lookup_table import LookupTable
from raysweep.evaluation.base import Arrays, Subject
from raysweep.evaluation.metric import Metric, Quantity
from raysweep.evaluation.operations import Operations, forward
from raysweep.evaluation.sharding import draw_sentences, shard_count, shard_range
from raysweep.evaluation.split import SplitFields, gap
from raysweep.flatness.trace.fisher import draw_positions
from raysweep.languages.base import Language
from raysweep.models.subject import normalise
from raysweep.seeding import derive

EXCESS_LOSS = Quantity(
    name="excess_loss", heading="excess loss", short="excess", unit="nats", kind="loss", better="less",
    least=0.0, live=True, report=True,
)  # fmt: skip
LOSS = Quantity(name="loss", heading="loss", unit="nats", kind="loss", better="less")
ENTROPY = Quantity(name="entropy", heading="entropy", unit="nats")
TRAIN_EXCESS_LOSS = Quantity(
    name="train_excess_loss", heading="excess loss in training", short="train", unit="nats", better="less",
    report=True,
)  # fmt: skip
GAP = Quantity(name="excess_gap", heading="gap of the excess loss", short="gap", unit="nats", report=True)

_BLOCK = 256  # sentences at a time, so that [block * T, V] in float64 stays within tens of MB


class ExcessLossConfig(SplitFields):
    """Excess loss, entropy and loss over a fixed set of sentences, the same for every run.

    `positions: all` masks every position in turn and averages over each sentence; `random` masks one drawn
    position a sentence: T times cheaper, and noisier.  With `split: both` it is measured on as many sentences
    of the training set too (`train_excess_loss`), and `excess_gap` is the excess loss less that (see
    `raysweep.evaluation.split`); their exact conditionals are computed for each checkpoint.
    """

    kind: Literal["excess_loss"] = "excess_loss"
    needs_reference: ClassVar[bool] = True

    sentences: int = Field(default=4096, gt=0)
    #: Mask every position in turn, or one drawn position a sentence, which is cheaper and noisier.
    positions: Literal["all", "random"] = "all"
    seed: int = Field(default=0, ge=0)
    #: Sentences a shard.
    shard_size: int = Field(default=1024, gt=0)

    @classmethod
    def example(cls, folder: Path) -> Self:
        return cls(sentences=40, shard_size=16)

    def operations(self, parameters: int, language: Language) -> Operations:
        """Return sentences · positions · 2·P·T, for each of the splits."""
        positions = language.max_length if self.positions == "all" else 1
        return Operations.fixed(self.measured * positions * forward(parameters, language))

    def shards(self) -> int:
        return shard_count(self.sentences, self.shard_size)

    def draw(self, language: Language, shard: int) -> Tensor:
        """Return the sentences [n, T] of a shard."""
        numbers = shard_range(self.sentences, self.shard_size, shard)
        return draw_sentences(language, numbers, seed=self.seed, purpose="excess_loss")

    def reference(self, language: Language, shard: int, *, device: str = "cpu") -> np.ndarray:
        """Return the conditionals of the shard's masked positions: [n, T, V] (`all`) or [n, V] (`random`)."""
        start = shard_range(self.sentences, self.shard_size, shard).start
        return self._exact(language, self.draw(language, shard).to(device), start).cpu().numpy()

    def reference_bytes(self, language: Language) -> int:
        positions = language.max_length if self.positions == "all" else 1
        return self.sentences * positions * language.vocabulary_size * 4

    def _exact(self, language: Language, ids: Tensor, start: int, given: bool = False) -> Tensor:
        if self.positions == "all":
            return language.conditionals(ids)
        return language.conditionals_at(ids, self._drawn(language, ids, start, given))

    def _drawn(self, language: Language, ids: Tensor, start: int, given: bool) -> Tensor:
        # Sentences of training have positions of their own, so that the two losses are independent.
        seed = derive(self.seed, "training positions") if given else self.seed
        return draw_positions(ids, language.pad_id, seed=seed, start=start)

    def measure(self, subject: Subject, shard: int, reference: np.ndarray | None = None) -> Arrays:
        """Return `entropy` and `excess_loss` [n] of the shard's sentences, float64, in nats.

        The excess loss of training sentences stands beside them.  Raises `ConfigError` as
        `training_sentences` does.
        """
        ids = self.draw(subject.language, shard)
        numbers = shard_range(self.sentences, self.shard_size, shard)
        entropy, excess = self._terms(subject, ids, numbers.start, reference)
        found = {"entropy": entropy, "excess_loss": excess}
        own = self.training_sentences(subject, numbers)
        if own is not None:
            _, found["train_excess_loss"] = self._terms(subject, own, numbers.start, None, given=True)
        return found

    def _terms(
        self,
        subject: Subject,
        ids: Tensor,
        first: int,
        reference: np.ndarray | None,
        *,
        given: bool = False,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return mean entropy and divergence of sentences `first ..` [n], from their exact conditionals.

        Where the words are `given`, they take the place of the mean over words.
        """
        parts = []
        for k in range(0, len(ids), _BLOCK):
            block = ids[k : k + _BLOCK]
            if reference is None:
                exact = self._exact(subject.language, block, first + k, given)
            else:
                # A copy: what comes from the object store cannot be written, which tensors do not know.
                exact = torch.from_numpy(reference[k : k + _BLOCK].copy())
            parts.append(self._divergence(subject, block, exact, first + k, given))
        entropy, excess = torch.cat(parts, dim=1).numpy()
        return entropy, excess

    def _divergence(self, subject: Subject, ids: Tensor, exact: Tensor, start: int, given: bool) -> Tensor:
        """Return mean entropy and KL over the masked positions of each sentence: [2, n]."""
        if self.positions == "all":
            rows, columns = (ids != subject.language.pad_id).nonzero(as_tuple=True)
            exact = exact[rows, columns]
        else:
            rows, columns = torch.arange(len(ids)), self._drawn(subject.language, ids, start, given)
        log_p = normalise(exact)
        # The table's answer is the exact conditional itself: there is nothing to compute a second time.
        own = isinstance(subject, LookupTable)
        log_q = log_p if own else subject.log_probs(ids[rows], columns).to(log_p)
        p = F.one_hot(ids[rows, columns], log_p.shape[1]).to(log_p) if given else log_p.exp()
        # A word of probability zero adds nothing, whatever the model says of it.
        terms = torch.stack([-log_p, log_p - log_q]).masked_fill(p == 0, 0.0)
        values = (p * terms).sum(dim=-1)
        totals = torch.zeros(2, len(ids), dtype=torch.float64).index_add_(1, rows, values)
        return totals / rows.bincount(minlength=len(ids))

    def quantities(self) -> Sequence[Quantity]:
        return (EXCESS_LOSS, LOSS)

    def combine(self, shards: Sequence[Mapping[str, np.ndarray]]) -> list[Metric]:
        entropy = np.concatenate([shard["entropy"] for shard in shards])
        excess = np.concatenate([shard["excess_loss"] for shard in shards])
        metrics = [
            EXCESS_LOSS.mean(excess),
            ENTROPY.mean(entropy),
            # Of the sums, not of the parts: entropy and excess of a sentence are correlated.
            LOSS.mean(entropy + excess),
        ]
        if "train_excess_loss" in shards[0]:
            training = TRAIN_EXCESS_LOSS.mean(
                np.concatenate([shard["train_excess_loss"] for shard in shards])
            )
            metrics += [training, gap(GAP, metrics[0], training)]
        return metrics
