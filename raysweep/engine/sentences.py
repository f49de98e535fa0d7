"""Training sentences drawn by Ray tasks, a shard each, so that training reads them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray

from raysweep.engine.cluster import check_storage, connected
from raysweep.engine.generate import Piece, Progress, collect, known_language, need_of, room
from raysweep.engine.interrupt import Interrupts
from raysweep.engine.lifeline import parts, watched
from raysweep.engine.window import RETRIES, task_options
from raysweep.engine.worker import built
from raysweep.errors import ConfigError
from raysweep.sweep import Sweep
from raysweep.sweep.sentences import Wanted, draw_shard, stored_rows, wanted
from raysweep.sweep.shards import ShardStore


@dataclass(frozen=True, kw_only=True)
class Filled:
    """The stores of a sweep's training sentences, which hold all of them."""

    sets: tuple[Wanted, ...]
    #: Number of shards that this call made, and of those that were stored before.
    made: int
    reused: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "training": [
                {"folder": str(one.folder), "sentences": one.total, "seed": one.seed} for one in self.sets
            ],
            "shards": {"made": self.made, "reused": self.reused},
            "seconds": self.seconds,
        }

    def lines(self) -> list[str]:
        """Return the results as lines for a terminal."""
        lines = [f"{one.total:,} training sentences of seed {one.seed}: {one.folder}" for one in self.sets]
        return [*lines, f"shards: {self.made} made, {self.reused} there before"]


def fill(
    sweep: Sweep,
    *,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Filled:
    """Draw and store all sentences that the runs of a sweep train on, in Ray tasks.

    `workers`, `resources`, `address` and `progress` are as in `generate`.  A call that was stopped or
    killed continues when it is repeated.  Sweeps that share a set may fill it at the same time.

    Raises `ConfigError` where no sentences are stored or the arguments do not fit, and else as `generate`.
    """
    started = time.monotonic()
    sets = wanted(sweep)
    if not sets:
        raise ConfigError(
            f"what: training: sweep '{sweep.name}' trains on no sentences that are stored; only those of a "
            "causal_lm are, others cost less to draw than to read"
        )
    need = need_of(resources, workers)
    built.cache_clear()  # the files of a config may have changed since
    reused: list[bool] = []
    with Interrupts() as interrupts:
        for one in sets:
            one.make()
        with connected(address) as cluster, watched(parts()):
            interrupts.install()
            check_storage(sweep.storage)
            task = store_sentences.options(name="generate", **task_options(need))
            pieces = [
                Piece(
                    name=f"shard {shard} of {one.folder.name}",
                    sentences=len(one.numbers(shard)),
                    submit=partial(task.remote, one, shard),
                )
                for one in sets
                for shard in one.shards
            ]
            collect(
                pieces,
                workers or room(cluster, need),
                lambda report: reused.append(report["reused"]),
                progress,
            )
    return Filled(
        sets=tuple(sets), made=reused.count(False), reused=sum(reused), seconds=time.monotonic() - started
    )


def _store_sentences(one: Wanted, shard: int) -> dict[str, Any]:
    """Draw and store a shard of training sentences unless all of it is stored already."""
    store = ShardStore.find(one.folder)
    reused = stored_rows(store, shard) >= len(one.numbers(shard))
    if not reused:
        store.write(shard, draw_shard(known_language(one.language, one.fingerprint), one, shard))
    return {"reused": reused}


_AS_TASK: Any = ray.remote(**RETRIES)
store_sentences = _AS_TASK(_store_sentences)
