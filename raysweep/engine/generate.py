"""Generation from a language on Ray: entropies, exact conditionals, statistics and labelled task sets.

The work has parts (`sentences`, and the task splits `train` and `test`), and a part has shards of consecutive
sentences.  A shard is a pure function of (language, seed, number).  A task computes it on one CPU, and the
driver adds up the reports of the shards in their order, so results are bitwise the same for any number of
workers.  With a folder, every finished shard is on disk, and a killed generation continues from there.

    <out>/sentences/   entropy [n] of each sentence; also conditionals, if they are asked for or stored
    <out>/train/, <out>/test/   ids [n, T] and labels.<task> [n] of the task splits
    <out>/summary.json    the content of `Generated.to_dict`

Memory: a worker holds its language, one block of conditionals (at most 64 MiB, a few times that while
entropies are computed in float64) and one shard to store (by default at most 64 MiB, about three times that
while it is written).  The driver holds counts.  Neither grows with the number of sentences.
"""

from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray

from raysweep.engine.cluster import Cluster, check_storage, connected
from raysweep.engine.interrupt import Interrupts
from raysweep.engine.lifeline import parts, watched
from raysweep.engine.outcome import in_a_line, is_trouble
from raysweep.engine.window import RETRIES, Window, task_options
from raysweep.engine.worker import built, device, prepare
from raysweep.errors import ConfigError, DataError, StorageError
from raysweep.files import write_atomic
from raysweep.generation import Generated, Part, Positions, Tally, Work, counts_of, make_shard, plan
from raysweep.languages.base import Language, LanguageConfig
from raysweep.sweep.lock import SweepLock
from raysweep.sweep.shards import ShardStore

log = logging.getLogger("raysweep.generate")

#: Called with the number of sentences that are done, and the number of all.
Progress = Callable[[int, int], None]

#: Attempts at a shard that lost its process, beyond those that Ray itself makes.
ATTEMPTS = 3


def generate(
    language: LanguageConfig,
    *,
    what: Sequence[str] | None = None,
    sentences: int = 1_000_000,
    train: int = 100_000,
    test: int = 100_000,
    seed: int = 0,
    positions: Positions | None = None,
    out: str | Path | None = None,
    shard_size: int | None = None,
    workers: int | None = None,
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
    progress: Progress | None = None,
) -> Generated:
    """Generate from a language in Ray tasks, and return the results.

    `what` holds any of these (by default all that the language has, except the conditionals):

    - `statistics`: counts of lengths and words over `sentences` sentences (part of the next two as well);
    - `entropy`: the entropy of the exact conditionals, mean and standard error over sentences, in nats;
    - `conditionals`: the exact conditionals themselves, stored in `out`, float32: [n, T, V] with NaN after
      the words, or [n, V] and their positions [n] for `positions="random"`;
    - `tasks`, or `tasks:A,B` for some of them: labelled sentences of the splits `train` and `test`.

    `positions="random"` masks one drawn position of each sentence, and `"all"` masks all in turn.  The
    default is "random" for languages that `stores_conditionals`, and "all" for others.  With an `out`, the
    conditionals of languages that `stores_conditionals` are always stored.  A task makes `shard_size`
    sentences (by default as many as `SHARD` and `SHARD_BYTES` allow).  `workers` tasks run at once (by
    default as many as the cluster has room for), each with `resources` (one CPU); a task with a GPU uses it.
    Every node must see `out`.

    A generation that was stopped or killed continues when it is started again with the same `out`.  A task is
    tried again if its process dies.

    Raises `ConfigError` for arguments that do not fit, `DataError` if the language lacks a task or is a
    different one on some node, `IdentityError` if `out` holds other shards, `LockedError` if another
    generation is writing there, `StorageError` if the cluster or the storage cannot be reached, and
    `KeyboardInterrupt` on Ctrl-C or SIGTERM.
    """
    started = time.monotonic()
    built.cache_clear()  # the files of a config may have changed since
    known = built(language)
    work = plan(
        language,
        known,
        what=what,
        sizes={"sentences": sentences, "train": train, "test": test},
        seed=seed,
        positions=positions,
        out=out,
        shard_size=shard_size,
    )
    need = need_of(resources, workers)
    lock = (
        nullcontext()
        if work.out is None
        else SweepLock(work.out, what="folder", remedy="wait for it, stop it, or name another folder")
    )
    with Interrupts() as interrupts, lock:
        for part in work.sizes:
            folder = work.folder(part)
            if folder is not None:
                ShardStore.make(folder, work.identity(part)).clean()
        known.prepare()
        with connected(address) as cluster, watched(parts()):
            interrupts.install()
            if work.out is not None:
                check_storage(work.out)
            tally = Tally(known, work.tasks)
            collect(_pieces(work, need), workers or room(cluster, need), tally.add, progress)
        found = tally.result(
            seed=seed, positions=work.positions, out=work.out, seconds=time.monotonic() - started
        )
        if work.out is not None:
            content = json.dumps({"language_config": language.encode(), **found.to_dict()}, indent=1)
            write_atomic(work.out / "summary.json", (content + "\n").encode())
    return found


def need_of(resources: Mapping[str, float] | None, workers: int | None) -> dict[str, float]:
    """Return the resources of a task; raises `ConfigError` for a number of workers that makes no sense."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers: {workers} is less than 1; leave it out to use the whole cluster")
    return {"CPU": 1.0} if resources is None else dict(resources)


def room(cluster: Cluster, need: Mapping[str, float]) -> int:
    """Return the number of tasks in flight: twice what fits now, so that no CPU waits for its next task."""
    fits = min((int(cluster.resources.get(name, 0.0) / n) for name, n in need.items() if n > 0), default=1)
    if fits < 1 and cluster.embedded:
        raise ConfigError(f"resources: {dict(need)} are more than this machine has")
    return max(2, 2 * fits)


def _pieces(work: Work, need: dict[str, float]) -> list[Piece]:
    """Return the shards of a generation, in the order in which they are combined."""
    task = store_shard.options(name="generate", **task_options(need))
    stored = ray.put(work)
    return [
        Piece(
            name=f"shard {shard} of {part}",
            sentences=len(work.numbers(part, shard)),
            submit=partial(task.remote, stored, part, shard),
        )
        for part, shard in work.shards()
    ]


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A shard that a task makes: its name for messages, its size, and how the task is started."""

    name: str
    sentences: int
    submit: Callable[[], ray.ObjectRef]


def collect(
    pieces: Sequence[Piece], size: int, add: Callable[[dict[str, Any]], None], progress: Progress | None
) -> None:
    """Have all shards made, `size` at once, and pass their reports to `add` in order."""
    total = sum(piece.sentences for piece in pieces)
    window: Window[int] = Window(size)
    for place, piece in enumerate(pieces):
        window.add(place, piece.submit)
    attempts: dict[int, int] = {}
    early: dict[int, dict[str, Any]] = {}
    done = following = 0
    if progress is not None:
        progress(0, total)
    try:
        while len(window):
            for place, reference in window.ready(timeout=1.0):
                piece = pieces[place]
                try:
                    early[place] = ray.get(reference)
                except ray.exceptions.RayError as error:
                    attempts[place] = attempts.get(place, 0) + 1
                    if not is_trouble(error):
                        raise
                    if attempts[place] >= ATTEMPTS:
                        raise StorageError(
                            f"{piece.name} was lost {attempts[place]} times: {in_a_line(error)}"
                        ) from error
                    log.warning("%s is tried again: %s", piece.name, in_a_line(error))
                    window.add(place, piece.submit)
                    continue
                done += piece.sentences
                while following in early:
                    add(early.pop(following))
                    following += 1
                if progress is not None:
                    progress(done, total)
    except BaseException:
        window.cancel()
        raise


def known_language(config: LanguageConfig, fingerprint: str) -> Language:
    """Return the language of a task, on its device; raises `DataError` if the driver's is another one."""
    prepare()
    language = built(config).to(device())
    if language.fingerprint != fingerprint:
        raise DataError(
            f"the language of node {socket.gethostname()} is another one than the driver's: give the node "
            "the same files"
        )
    return language


def _store_shard(work: Work, part: Part, shard: int) -> dict[str, Any]:
    """Make and store a shard unless it is stored already, and return its counts."""
    language = known_language(work.language, work.fingerprint)
    folder = work.folder(part)
    store = None if folder is None else ShardStore.find(folder)
    arrays = None if store is None else store.read(shard)
    reused = arrays is not None
    if arrays is None:
        arrays = make_shard(language, work, part, shard, device=device())
        if store is not None:
            store.write(shard, arrays)
    return {**counts_of(arrays), "reused": reused}


#: Ray tries a task again if its process dies, or if the storage is briefly out of reach.
_AS_TASK: Any = ray.remote(**RETRIES)
store_shard = _AS_TASK(_store_shard)
