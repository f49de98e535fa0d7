"""Training sentences that are stored, because drawing them costs more than reading them.

    <storage>/sentences/<language>-s<seed>/   a `ShardStore`; shard k has "ids" [n, T] from sentence 4096 k on

All sweeps, runs and launches of a storage share the sentences of a language and a seed of the data.
Sentence i is a function of (language, seed, i), so a run sees the same sentences whether they are stored or
not.  Where the rounding of float64 could still decide (`raysweep.languages.causal_lm.sampling`), the stored
ones are the truth for all runs.

`raysweep language generate --what training` fills a store by Ray tasks.  Besides, a run on one worker stores
what it draws itself, as soon as it has drawn all of a shard.  A rank of several draws its own rows, which
make no shard.  The last shard is shorter if the training ends in it; one that goes on stores a longer one.
"""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.base import Language, LanguageConfig
from raysweep.languages.training_set import TrainingSet
from raysweep.remote import RemotePath
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import DIGITS
from raysweep.sweep.run import RunSpec
from raysweep.sweep.shards import ShardStore
from raysweep.training.data import seed_of_sentences, training_set

log = logging.getLogger("raysweep.sentences")

#: Sentences of a shard: 192 kB of the language of `sweeps/opt.yaml`, some minutes of a CPU core.
SHARD = 4096

_NAME = "ids"
_MAPPED = 16_384  # shards that a process sees at once; a process may map some 65,000 files
_ABSENT = 60.0  # seconds until a shard that an object store lacks is asked for again
_UNFINISHED = 2  # shards that a process collects at once: its sentences come in order


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The sentences `0 .. total-1` of a language and a seed of the data, and the folder that holds them."""

    language: LanguageConfig
    fingerprint: str
    #: The seed of the data as the sweep file gives it, and the one that it makes of the sentences.
    seed: int
    drawn_by: int
    total: int
    storage: Path

    @property
    def folder(self) -> Path:
        """The folder of the shards."""
        return self.storage / "sentences" / f"{self.fingerprint[:DIGITS]}-s{self.seed}"

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that determine the shards."""
        return {
            "language": self.fingerprint,
            "part": "training",
            "seed": self.seed,
            "shard_size": SHARD,
        }

    @property
    def shards(self) -> range:
        """The numbers of the shards."""
        return range(-(-self.total // SHARD))

    def numbers(self, shard: int) -> range:
        """Return the numbers of the sentences of a shard."""
        return range(shard * SHARD, min((shard + 1) * SHARD, self.total))

    def make(self) -> ShardStore:
        """Return the store, made where it is new; errors are those of `ShardStore.make`."""
        return ShardStore.make(self.folder, self.identity)

    def stored(self) -> int:
        """Return how many of the shards are there, without reading them."""
        return len(self.shards) - len(ShardStore(self.folder).missing(len(self.shards)))


def training_of(spec: RunSpec, language: Language, storage: Path) -> TrainingSet:
    """Return the sentences that a run trains on, from their store if the language has one.

    Raises `ConfigError` where the language does not have so many.
    """
    found = training_set(language, spec.pretrain, seed=spec.seeds.data)
    if not language.stores_sentences:
        return found
    return replace(found, store=StoredSentences(language, _wanted(spec, storage)))


def wanted(sweep: Sweep) -> list[Wanted]:
    """Return the sets of sentences that the runs of a sweep train on and that are stored, in their order."""
    found: dict[Path, Wanted] = {}
    for spec in sweep.runs:
        if spec.trains and sweep.language(spec).stores_sentences:
            one = _wanted(spec, sweep.storage)
            before = found.setdefault(one.folder, one)
            found[one.folder] = max(before, one, key=lambda each: each.total)
    return list(found.values())


def with_sentences(facts: Mapping[str, Any], sweep: Sweep) -> dict[str, Any]:
    """Return the provenance of a launch with what it says of the sweep's stored sentences, if it has any."""
    sets = wanted(sweep)
    return {**facts, "sentences": described(sets)} if sets else dict(facts)


def described(sets: Iterable[Wanted]) -> list[dict[str, Any]]:
    """Return what the provenance of a launch says of its stored sentences, as plain data."""
    return [
        {"folder": str(one.folder), **one.identity, "sentences": one.total, "shards_stored": one.stored()}
        for one in sets
    ]


def _wanted(spec: RunSpec, storage: Path) -> Wanted:
    pretrain = spec.pretrain
    return Wanted(
        language=spec.language,
        fingerprint=spec.language_fingerprint,
        seed=spec.seeds.data,
        drawn_by=seed_of_sentences(spec.seeds.data),
        total=pretrain.sentences or pretrain.steps * pretrain.batch_size,
        storage=storage,
    )


def stored_rows(store: ShardStore, shard: int) -> int:
    """Return how many sentences of a shard are stored, intact."""
    arrays = store.read(shard)
    return 0 if arrays is None else len(arrays[_NAME])


def draw_shard(language: Language, one: Wanted, shard: int) -> dict[str, np.ndarray]:
    """Return the arrays of a shard."""
    numbers = one.numbers(shard)
    return _arrays(language, language.sample(len(numbers), seed=one.drawn_by, start=numbers.start))


def _arrays(language: Language, ids: Tensor) -> dict[str, np.ndarray]:
    # `pad_id` is the largest id.
    return {_NAME: ids.numpy().astype(np.int16 if language.pad_id < 1 << 15 else np.int32)}


class StoredSentences:
    """The sentences of a set: read where they are stored, else drawn, and stored once a shard is complete.

    Memory: two shards.  Stored ones are mapped, so the system keeps of them what there is room for, once
    for all processes of a node.
    """

    def __init__(self, language: Language, one: Wanted) -> None:
        self._language, self._wanted = language, one
        self._store: ShardStore | None = None
        self._mapped: OrderedDict[int, np.ndarray] = OrderedDict()
        self._absent: dict[int, float] = {}
        self._unfinished: OrderedDict[int, tuple[Tensor, Tensor]] = OrderedDict()

    def take(self, numbers: Tensor) -> Tensor:
        """Return sentences [n, max_length] by number.

        Raises `IdentityError` where the folder of the store holds something else, `OSError` where it cannot
        be read or written.
        """
        if self._store is None:
            self._store = self._wanted.make()
            log.info(
                "sentences come from %s, where %d of %d shards are stored",
                self._wanted.folder, self._wanted.stored(), len(self._wanted.shards),
            )  # fmt: skip
        out = torch.empty(len(numbers), self._language.max_length, dtype=torch.int64)
        absent = torch.zeros(len(numbers), dtype=torch.bool)
        for shard, at, rows in _by_shard(numbers):
            stored = self._rows(self._store, shard, 1 + int(rows.max()))
            there = rows < len(stored)
            out[at[there]] = torch.from_numpy(stored[rows[there].numpy()].astype(np.int64))
            absent[at[~there]] = True
        if absent.any():
            # Several epochs may ask at once.
            each, places = numbers[absent].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            drawn = self._language.sample_at(each, seed=self._wanted.drawn_by)
            self._collect(self._store, each, drawn)
            out[absent] = drawn[places]
        return out

    def _rows(self, store: ShardStore, shard: int, most: int) -> np.ndarray:
        """Return the stored sentences of a shard, mapped; none where there are none.

        They are looked up again where fewer than `most` were there before.
        """
        known = self._mapped.get(shard)
        if known is None or len(known) < most:
            known = self._asked(store, shard)
            if known is None:
                return np.empty((0, self._language.max_length), dtype=np.int16)
            self._mapped[shard] = known
            if len(self._mapped) > _MAPPED:
                self._mapped.popitem(last=False)
        return known

    def _asked(self, store: ShardStore, shard: int) -> np.ndarray | None:
        """Return the stored sentences of a shard; None where there are none."""
        if not isinstance(store.directory, RemotePath):
            return store.mapped(shard, _NAME)
        # A request for each batch would take longer than to draw it.
        if time.monotonic() < self._absent.get(shard, 0.0):
            return None
        found = store.mapped(shard, _NAME)
        if found is None:
            self._absent[shard] = time.monotonic() + _ABSENT
        return found

    def _collect(self, store: ShardStore, numbers: Tensor, ids: Tensor) -> None:
        """Keep sentences that were drawn, and store each shard that is complete with them."""
        for shard, at, rows in _by_shard(numbers):
            size = len(self._wanted.numbers(shard))
            if shard not in self._unfinished:
                known = torch.from_numpy(self._rows(store, shard, 0).astype(np.int64))[:size]
                kept = torch.cat([known, known.new_zeros(size - len(known), self._language.max_length)])
                self._unfinished[shard] = (kept, torch.arange(size) < len(known))
            kept, drawn = self._unfinished[shard]
            kept[rows], drawn[rows] = ids[at], True
            if drawn.all():
                # Another run may have been faster, or may go on further.
                if len(self._rows(store, shard, size)) < size:
                    store.write(shard, _arrays(self._language, kept))
                del self._unfinished[shard]
        while len(self._unfinished) > _UNFINISHED:
            self._unfinished.popitem(last=False)


def _by_shard(numbers: Tensor) -> Iterable[tuple[int, Tensor, Tensor]]:
    """Yield each shard of `numbers` [n], the places [m] that ask for it, and the rows [m] that they want."""
    shards = numbers // SHARD
    for shard in sorted(set(shards.tolist())):
        at = (shards == shard).nonzero()[:, 0]
        yield shard, at, numbers[at] % SHARD
