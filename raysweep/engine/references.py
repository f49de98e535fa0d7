"""Exact conditionals of evaluation sentences, made once for the whole cluster."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import ray

from raysweep.engine.window import RETRIES, task_options
from raysweep.engine.worker import built, device, prepare
from raysweep.evaluation import Evaluation
from raysweep.languages import Language, LanguageConfig
from raysweep.sweep import evaluation_identity
from raysweep.sweep.identity import DIGITS
from raysweep.sweep.shards import ShardStore

log = logging.getLogger("raysweep.tasks")


def _exact_conditionals(
    language: LanguageConfig,
    evaluation: Evaluation,
    shard: int,
    folder: Path | None,
    keep: bool,
    after: Any = None,
) -> np.ndarray | None:
    """Return the exact conditionals of one shard of an evaluation; None unless `keep`.

    `after` is the result of another shard, which this one waits for.

    With a `folder`, they are read from its `ShardStore`, or computed and stored there.
    """
    prepare()
    reference = stored_reference(built(language).to(device()), evaluation, shard, folder)
    return reference if keep else None


def stored_reference(
    language: Language, evaluation: Evaluation, shard: int, folder: Path | None
) -> np.ndarray:
    """Return the exact conditionals of a shard, from the `ShardStore` in `folder` if there is one."""
    if folder is None:
        return evaluation.reference(language, shard)
    store = ShardStore.find(folder)
    stored = store.read(shard)
    if stored is None:
        stored = {"log_probs": evaluation.reference(language, shard, device=device())}
        store.write(shard, stored)
    return stored["log_probs"]


def reference_folder(storage: Path, language: Language, evaluation: Evaluation) -> Path | None:
    """Return the folder of a storage that holds the exact conditionals of an evaluation's sentences.

    Return None if the language computes them faster than they are read.  All sweeps of a storage share them.
    """
    if not language.stores_conditionals:
        return None
    head = f"{language.fingerprint[:DIGITS]}-{evaluation.kind}-{evaluation_identity(evaluation)[:DIGITS]}"
    return storage / "conditionals" / head


_AS_TASK: Any = ray.remote(**RETRIES)
exact_conditionals = _AS_TASK(_exact_conditionals)


class _References:
    """The actor: starts the tasks of each set of exact conditionals once, and keeps their references."""

    def __init__(self, limit: int, storage: Path) -> None:
        self._left = limit
        self._storage = storage
        self._references: dict[tuple[LanguageConfig, Evaluation], list[ray.ObjectRef]] = {}
        self._kept: dict[tuple[LanguageConfig, Evaluation], int] = {}

    def get(
        self,
        language: LanguageConfig,
        evaluation: Evaluation,
        resources: Mapping[str, float],
        lost: bool = False,
    ) -> list[ray.ObjectRef]:
        key = (language, evaluation)
        if lost and _incomplete(self._references.get(key, [])):
            del self._references[key]
            self._left += self._kept.pop(key, 0)
        if key not in self._references:
            self._references[key] = self._start(language, evaluation, resources)
        return list(self._references[key])

    def _start(
        self, language: LanguageConfig, evaluation: Evaluation, resources: Mapping[str, float]
    ) -> list[ray.ObjectRef]:
        known = built(language)
        folder = reference_folder(self._storage, known, evaluation)
        size = evaluation.reference_bytes(known)
        keep = size <= self._left
        if keep:
            self._left -= size
            self._kept[language, evaluation] = size
        elif folder is None:
            log.warning("%s: %d bytes of exact conditionals are not shared", evaluation.key, size)
            return []
        if folder is not None:
            identity = {"language": known.fingerprint, "evaluation": evaluation.unnamed().encode()}
            ShardStore.make(folder, identity)
        task = exact_conditionals.options(**task_options(resources))
        made: list[ray.ObjectRef] = []
        # Of tasks that share the CPUs of training, Ray would start any number at once.
        shared = resources.get("CPU", 1.0) < 1
        most = max(1, int(ray.cluster_resources().get("CPU", 1))) if shared else evaluation.shards()
        for shard in range(evaluation.shards()):
            after = made[shard - most] if shard >= most else None
            made.append(task.remote(language, evaluation, shard, folder, keep, after))
        return made


def _incomplete(references: list[ray.ObjectRef]) -> bool:
    """Return whether one of some objects has ended as an error: its task failed, or it was lost for good."""
    ended, _ = ray.wait(references, num_returns=len(references), timeout=0) if references else ([], [])
    try:
        ray.get(ended)
    except ray.exceptions.RayError:
        return True
    return False


_ACTOR: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_References)


class References:
    """Exact conditionals of evaluation sentences, made once for the whole cluster.

    They are the same for every run and milestone of a language.  Tasks compute them when they are first asked
    for; after that they are read from the object store without a copy.  Once all sets together would exceed
    `limit` bytes, further sets are not kept, and the shards that need them compute their own.

    The conditionals of a language that `stores_conditionals` are also written into the folder `storage`,
    shard by shard.  Later launches, other sweeps, and the shards of a set that is not kept read them there.
    """

    def __init__(self, limit: int, storage: Path) -> None:
        self._actor = _ACTOR.remote(limit, storage)

    def get(
        self,
        language: LanguageConfig,
        evaluation: Evaluation,
        resources: Mapping[str, float],
        *,
        lost: bool = False,
    ) -> list[ray.ObjectRef]:
        """Return one object reference for each shard, or [] if the shards compute their own conditionals.

        The object is None if the shard finds its conditionals on disk.  With `lost`, a caller says that it
        could not get one of them: if an object has ended as an error, the whole set is made again.
        """
        found: list[ray.ObjectRef] = ray.get(self._actor.get.remote(language, evaluation, resources, lost))
        return found

    def close(self) -> None:
        """End the actor, and forget what it has kept."""
        ray.kill(self._actor)
