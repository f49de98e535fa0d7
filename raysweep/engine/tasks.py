"""Ray tasks: exact conditionals and evaluation shards, under a bounded window.

A task is a pure function of its arguments and writes its result under a name that depends on them alone, so
a retry, a repeat after a crash, or two tasks doing the same thing give the same files.
"""

from __future__ import annotations

import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import ray
import torch
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from raysweep.errors import StorageError
from raysweep.evaluation import Evaluation
from raysweep.languages import Language
from raysweep.models.subject import ModelSubject
from raysweep.sweep import RunLedger, RunSpec, evaluation_identity
from raysweep.sweep.identity import DIGITS
from raysweep.sweep.shards import ShardStore
from raysweep.training import load_model

log = logging.getLogger("raysweep.tasks")

K = TypeVar("K", bound=Hashable)


class Window(Generic[K]):
    """Submits work lazily so that at most `size` tasks are in flight.

    Results come back in order of completion, as (key, object reference): the caller fetches, and so sees
    the task's own exception.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._waiting: deque[tuple[K, Callable[[], ray.ObjectRef]]] = deque()
        self._flying: dict[ray.ObjectRef, K] = {}

    def add(self, key: K, submit: Callable[[], ray.ObjectRef]) -> None:
        """Queue one piece of work; `submit` is called when there is room."""
        self._waiting.append((key, submit))

    def __len__(self) -> int:
        return len(self._waiting) + len(self._flying)

    def ready(self, timeout: float) -> Iterator[tuple[K, ray.ObjectRef]]:
        """Submit what fits, wait up to `timeout` seconds for something to end, and yield what has."""
        while self._waiting and len(self._flying) < self.size:
            key, submit = self._waiting.popleft()
            self._flying[submit()] = key
        if not self._flying:
            return
        done, _ = ray.wait(list(self._flying), num_returns=len(self._flying), timeout=0)
        if not done:
            done, _ = ray.wait(list(self._flying), num_returns=1, timeout=timeout)
        for reference in done:
            yield self._flying.pop(reference), reference

    def cancel(self) -> None:
        """Drop what waits and cancel what flies."""
        self._waiting.clear()
        for reference in self._flying:
            ray.cancel(reference, force=False)
        self._flying.clear()


@lru_cache(maxsize=4)
def built(config: Any) -> Language:
    """Return the language of a config, built once a process."""
    return config.build()


def check_visible(run: RunLedger) -> None:
    """Raise `StorageError` on a node that does not see the storage, e.g. one that joined later."""
    if not (run.directory / "run.json").is_file():
        raise StorageError(
            f"storage {run.directory.parent.parent} is not visible on node {socket.gethostname()}: use "
            "--storage (or RAYSWEEP_STORAGE) with a folder that all nodes mount, e.g. NFS"
        )


def one_thread() -> None:
    """One task is one CPU: two one-thread processes beat one two-thread process."""
    torch.set_num_threads(1)


def device() -> str:
    """Return where a task computes: on the GPU where it was given one."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def _exact_conditionals(
    language: Any, evaluation: Evaluation, shard: int, folder: Path | None, keep: bool
) -> np.ndarray | None:
    """Return the exact conditionals that one shard of an evaluation asks for; None unless `keep`.

    With a `folder` they are read from its `ShardStore`, or computed and stored there.
    """
    one_thread()
    reference = _reference(built(language), evaluation, shard, folder)
    return reference if keep else None


def _reference(language: Language, evaluation: Evaluation, shard: int, folder: Path | None) -> np.ndarray:
    if folder is None:
        return evaluation.reference(language, shard)
    store = ShardStore.find(folder)
    stored = store.read(shard)
    if stored is None:
        stored = {"log_probs": evaluation.reference(language, shard, device=device())}
        store.write(shard, stored)
    return stored["log_probs"]


def reference_folder(storage: Path, language: Language, evaluation: Evaluation) -> Path | None:
    """Return where a storage keeps the exact conditionals of an evaluation's sentences.

    None where the language computes them faster than they are read.  All sweeps of the storage share them.
    """
    if not language.stores_conditionals:
        return None
    head = f"{language.fingerprint[:DIGITS]}-{evaluation.kind}-{evaluation_identity(evaluation)[:DIGITS]}"
    return storage / "conditionals" / head


def _measure_shard(
    spec: RunSpec, run: RunLedger, step: int, kind: str, shard: int, reference: np.ndarray | None
) -> float:
    """Measure one shard of one evaluation at one milestone and store its arrays in the ledger.

    Returns the seconds of work it took.
    """
    one_thread()
    check_visible(run)
    start = time.perf_counter()
    evaluation = spec.evaluations[kind]
    language = built(spec.language)
    subject: Any
    if spec.trains:
        subject = ModelSubject(language, _model(run, spec, step, device()))
    else:
        subject = spec.algorithm.subject(language)
    if reference is None and evaluation.needs_reference:
        # Where nothing is stored, `measure` computes the conditionals itself, in smaller pieces.
        folder = reference_folder(run.directory.parents[2], language, evaluation)
        if folder is not None:
            reference = _reference(language, evaluation, shard, folder)
    arrays = evaluation.measure(subject, shard, reference)
    run.save_arrays(step, kind, evaluation_identity(evaluation), shard, arrays)
    return time.perf_counter() - start


#: `max_retries` covers the death of a process, `retry_exceptions` a storage that is away for a moment.
RETRIES: dict[str, Any] = {"max_retries": 3, "retry_exceptions": [OSError]}
_AS_TASK: Any = ray.remote(**RETRIES)
exact_conditionals = _AS_TASK(_exact_conditionals)
measure_shard = _AS_TASK(_measure_shard)


@lru_cache(maxsize=2)
def _cached_model(path: str, model: Any, language: Any, device: str) -> Any:
    return load_model(Path(path), model, built(language), device=device)


def _model(run: RunLedger, spec: RunSpec, step: int, device: str) -> Any:
    return _cached_model(str(run.checkpoint_directory(step)), spec.model, spec.language, device)


class _ReferenceStore:
    """Makes the exact conditionals of evaluation sentences once for the whole cluster.

    They are the same for every run and milestone of a language, so they are computed by tasks when first
    asked for and then read from the object store without a copy.  Where all sets together would exceed
    `limit` bytes, further ones are not kept: their shards compute their own.  Those of a language that
    `stores_conditionals` are also written into the folder `storage`, shard by shard, and read from there by
    later launches, by other sweeps, and by the shards of a set that is not kept.
    """

    def __init__(self, limit: int, storage: Path) -> None:
        self._left = limit
        self._storage = storage
        self._references: dict[tuple[Any, Evaluation], list[ray.ObjectRef]] = {}

    def get(self, language: Any, evaluation: Evaluation, resources: dict[str, float]) -> list[Any]:
        """Return one object reference a shard, or [] where the shards compute their own.

        What a reference stands for is None where the shard finds its conditionals on disk.
        """
        key = (language, evaluation)
        if key not in self._references:
            self._references[key] = self._start(language, evaluation, resources)
        return list(self._references[key])

    def _start(self, language: Any, evaluation: Evaluation, resources: dict[str, float]) -> list[Any]:
        known = built(language)
        folder = reference_folder(self._storage, known, evaluation)
        size = evaluation.reference_bytes(known)
        keep = size <= self._left
        if keep:
            self._left -= size
        elif folder is None:
            log.warning("%s: %d bytes of exact conditionals are not shared", evaluation.kind, size)
            return []
        if folder is not None:
            identity = {"language": known.fingerprint, "evaluation": evaluation.encode()}
            ShardStore.make(folder, identity)
        task = exact_conditionals.options(**task_options(resources))
        return [
            task.remote(language, evaluation, shard, folder, keep) for shard in range(evaluation.shards())
        ]


ReferenceStore: Any = ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=-1)(_ReferenceStore)


#: Ray documents None for "no placement group"; its types do not.
_NO_GROUP: Any = None
_ANYWHERE = PlacementGroupSchedulingStrategy(placement_group=_NO_GROUP)


def task_options(resources: dict[str, float]) -> dict[str, Any]:
    """Translate `{CPU: 1, GPU: 0.25, name: n}` into the options of a task.

    The task is placed anywhere in the cluster: by default it would have to fit into the placement group of
    the trial that submits it, which has no CPU.
    """
    rest = {name: amount for name, amount in resources.items() if name not in ("CPU", "GPU")}
    return {
        "num_cpus": resources.get("CPU", 0),
        "num_gpus": resources.get("GPU", 0),
        "scheduling_strategy": _ANYWHERE,
        **({"resources": rest} if rest else {}),
    }
