"""Batches with their masks: pure functions of (seed, step).

Step s, counted from 1, trains on the sentences at places (s-1)·B .. s·B-1 of the training.  Fresh sentences
have these as their numbers under the seed derived for "train"; for a finite set, `TrainingSet` says which
sentence is where.  The masked positions of a sentence, and what the model sees there, are keyed by its place
under the seed derived for "mask", so each epoch has other masks.  Every masked word is to be predicted.  Rank
r of W takes rows B·r/W .. B·(r+1)/W of every batch, so the batches do not depend on the number of workers.

Sentences are drawn for many steps at once, without communication.  A rank draws its own rows; only where
sentences differ in length and a share of their words is masked, it draws whole batches, to know how many
words these have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import chain
from typing import Literal

import torch
from torch import Tensor

from raysweep import seeding
from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.languages.training_set import TrainingSet
from raysweep.models.batch import Batch
from raysweep.training.config import PretrainConfig

_MANY = 4  # times as many sentences are drawn at once on a GPU


@dataclass(frozen=True)
class World:
    """This process among the workers of a run.

    `shards` neighbours hold one copy of the weights together (`raysweep.training.sharding`); with 1 each
    worker has a copy of its own.
    """

    rank: int = 0
    size: int = 1
    shards: int = 1

    @property
    def shard(self) -> int:
        """The number of this worker among those that hold a copy together."""
        return self.rank % self.shards

    @property
    def writes(self) -> bool:
        """Whether this worker writes a part of the weights: those of the first copy do."""
        return self.rank < self.shards

    def rows(self, batch_size: int) -> slice:
        """Return the rows of a batch that belong to this rank."""
        return slice(batch_size * self.rank // self.size, batch_size * (self.rank + 1) // self.size)


def seed_of_sentences(seed: int) -> int:
    """Return the seed of the sentences that a run trains on, given its seed of the data."""
    return seeding.derive(seed, "train")


def training_set(language: Language, pretrain: PretrainConfig, *, seed: int) -> TrainingSet:
    """Return the sentences that a run trains on, given its seed of the data.

    Raises `ConfigError` where the language does not have so many; prepares the language to know that.
    """
    if pretrain.sentences is not None:
        language.prepare()
    for field, message in pretrain.problems(language):
        raise ConfigError(f"pretrain.{field}: {message}")
    return TrainingSet(language=language, seed=seed_of_sentences(seed), sentences=pretrain.sentences)


def masked_words(lengths: Tensor, mask: Literal["one"] | float) -> Tensor:
    """Return the number of masked words [n] in sentences of `lengths` [n]."""
    if mask == "one":
        return torch.ones_like(lengths)
    return (lengths * mask).round().clamp(min=1).to(lengths.dtype)


def some_positions(lengths: Tensor, width: int, rate: float, *, seed: int, sentences: Tensor) -> Tensor:
    """Return a mask [n, width] with max(1, round(rate · length)) True positions a row, uniformly drawn."""
    wanted = masked_words(lengths, rate)
    draws = seeding.words(seed, "position", sentences, width)
    real = torch.arange(width, device=lengths.device) < lengths[:, None]
    # Draws are below 2^32, so padding comes last; ties go to the earlier position.
    order = draws.masked_fill(~real, 2**32).argsort(dim=1, stable=True)
    rank = torch.empty_like(order).scatter_(
        1, order, torch.arange(width, device=lengths.device).expand_as(order)
    )
    return rank < wanted[:, None]


def replaced(ids: Tensor, marked: Tensor, language: Language, *, seed: int, sentences: Tensor) -> Tensor:
    """Return `ids` [n, T] with the `marked` words hidden as in BERT, keyed by (seed, sentence number).

    A marked word becomes the mask token with probability 0.8 and a uniformly drawn word with probability 0.1;
    else it stays (Devlin, Chang, Lee and Toutanova, "BERT", NAACL 2019, section 3.1).
    """
    width = ids.shape[1]
    fate = seeding.uniforms(seed, "fate", sentences, width)
    other = (seeding.words(seed, "other word", sentences, width) * language.vocabulary_size) >> 32
    new = torch.where(fate < 0.8, language.mask_id, torch.where(fate < 0.9, other, ids))
    return torch.where(marked, new, ids)


def chunks(
    language: Language,
    pretrain: PretrainConfig,
    *,
    seed: int,
    first: int,
    last: int,
    world: World | None = None,
    device: str | torch.device = "cpu",
    training: TrainingSet | None = None,
) -> Iterator[list[Batch]]:
    """Yield the items of `batches` in lists; the sentences of a list are drawn at once.

    On a GPU they are drawn on a stream of their own, beside the work of the default stream, which is to use
    them.
    """
    world = world or World()
    size = pretrain.batch_size
    for field, message in pretrain.sharing_problems(world.size):
        raise ConfigError(f"pretrain.{field}: {message}")
    drawn_from = training or training_set(language, pretrain, seed=seed)
    ranks = 1 if _whole(language, pretrain) else world.size
    where = torch.device(device)
    # A GPU draws many sentences in the time of few.
    there = where.type == "cuda" and type(language).sample_on is not Language.sample_on
    at_once = language.drawn_at_once * (_MANY if there else 1)
    steps = max(1, at_once * ranks // size)
    stream = _stream(where) if where.type == "cuda" else None
    for start in range(first, last + 1, steps):
        stop = min(start + steps, last + 1)
        with nullcontext() if stream is None else torch.cuda.stream(stream):
            made = list(
                _chunk(drawn_from, pretrain, seed, (start - 1) * size, stop - start, size, world, where)
            )
        if stream is not None:
            stream.synchronize()
            for batch in made:
                batch.used_on(torch.cuda.default_stream(where))
        yield made


def batches(
    language: Language,
    pretrain: PretrainConfig,
    *,
    seed: int,
    first: int,
    last: int,
    world: World | None = None,
    device: str | torch.device = "cpu",
    training: TrainingSet | None = None,
) -> Iterator[Batch]:
    """Yield this rank's part of the batches of steps `first` .. `last` on `device`.

    `training` are the sentences, if they are known already.  Raises `ConfigError` if a rank would have no
    rows.
    """
    return chain.from_iterable(
        chunks(
            language,
            pretrain,
            seed=seed,
            first=first,
            last=last,
            world=world,
            device=device,
            training=training,
        )
    )


def _chunk(
    drawn_from: TrainingSet,
    pretrain: PretrainConfig,
    seed: int,
    offset: int,
    steps: int,
    size: int,
    world: World,
    device: torch.device,
) -> Iterator[Batch]:
    """Yield `steps` batches of `size` sentences, from place `offset` of the training on."""
    language, rows = drawn_from.language, world.rows(size)
    numbers = range(size)[rows]
    places = torch.arange(offset, offset + steps * size, device=device).view(steps, size)[:, rows].flatten()
    counts = [size] * steps
    if _whole(language, pretrain) or world.size == 1:
        ids = drawn_from.drawn(offset, steps * size, device)
        if pretrain.mask != "one":
            counts = masked_words(language.lengths(ids), pretrain.mask).view(steps, size).sum(dim=1).tolist()
        ids = ids.view(steps, size, -1)[:, rows].flatten(0, 1)
    else:
        ids = drawn_from.at(places)
        if pretrain.mask != "one":
            counts = [size * int(masked_words(torch.tensor(language.max_length), pretrain.mask))] * steps
    lengths = language.lengths(ids)
    key = seeding.derive(seed, "mask")
    width = ids.shape[1]
    mine = lengths.view(steps, -1).cpu()

    def hide(marked: Tensor) -> Tensor:
        if pretrain.replace == "mask":
            return ids.masked_fill(marked, language.mask_id)
        return replaced(ids, marked, language, seed=key, sentences=places)

    if pretrain.mask == "one":
        positions = seeding.one_position(key, places, lengths)
        targets = ids.gather(1, positions[:, None])[:, 0]
        marked = torch.arange(width, device=device) == positions[:, None]
        made = [t.view(steps, -1, *t.shape[1:]) for t in (hide(marked), positions, targets)]
        for step, (seen, index, wanted) in enumerate(zip(*(t.unbind() for t in made), strict=True)):
            yield Batch(
                ids=seen,
                index=index,
                targets=wanted,
                lengths=mine[step],
                count=counts[step],
                rows=numbers,
                single=True,
            )
        return
    marked = some_positions(lengths, width, pretrain.mask, seed=key, sentences=places)
    hidden = hide(marked).view(steps, -1, width)
    each = marked.view(steps, -1).sum(dim=1).tolist()
    index = marked.view(steps, -1).nonzero()[:, 1]
    words_hidden = ids[marked]
    parts = zip(torch.split(index, each), torch.split(words_hidden, each), strict=True)
    for step, (at, targets) in enumerate(parts):
        yield Batch(
            ids=hidden[step],
            index=at,
            targets=targets,
            lengths=mine[step],
            count=counts[step],
            rows=numbers,
            single=False,
        )


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream on which a process draws.

    Its priority is high, so that a few small kernels do not wait for a whole step.  Streams of that priority
    are also apart from those that torch records graphs on.
    """
    return torch.cuda.Stream(device, priority=-1)


def _whole(language: Language, pretrain: PretrainConfig) -> bool:
    """Return whether the number of masked words of a batch is known only where all of it is drawn."""
    return pretrain.mask != "one" and not language.fixed_length
