"""Notes on what this machine and the storage have no room for: processors, memory and disk.

They are lower bounds by the sizes that a plan prints, so that nobody is warned of what would work.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from raysweep.remote import RemotePath
from raysweep.sweep.resources import Resources
from raysweep.sweep.units import count, size


def absent(resources: Resources) -> Iterator[str]:
    """Yield a note on each resource that processes want more of than this machine has.

    There is none if a cluster is named.  Training wants it for all workers at once, an evaluation for itself.
    """
    if os.environ.get("RAY_ADDRESS"):
        return
    for field, processes in (("per_worker", resources.workers), ("evaluate", 1)):
        for name, amount in getattr(resources, field).items():
            there = _there(name)
            if there is None or amount * processes <= there * (1 + 1e-9):
                continue
            wanted = f"resources.{field}: {{{name}: {amount:g}}}"
            if processes > 1:
                wanted += f" for each of {processes:,} workers"
            less = "ask for less, or " if there else ""
            has = f"no {name}" if not there else size(there) if name == "memory" else f"{there:g}"
            yield f"{wanted}, but this machine has {has}; {less}launch with --address HOST:PORT"


def short_memory(
    runs: Sequence[tuple[str, float]], resources: Resources, *, slots: int, memory: int | None = None
) -> Iterator[str]:
    """Yield a note where training needs more memory than this machine has, if no cluster is named.

    `runs` are the models of all runs that train, by label, each with the bytes of a training process without
    its activations, `slots` the number of runs at once, and `memory` the bytes that there are: by default
    those of this machine, or of a GPU where processes have one.
    """
    gpus = resources.per_worker.get("GPU", 0)
    there = memory if memory is not None else _gpu_memory(gpus) if gpus else _memory()
    if os.environ.get("RAY_ADDRESS") or there is None or not runs:
        return
    # Processes on GPUs have memories of their own.
    workers, at_once = (1, 1) if gpus else (resources.workers, slots)
    shared = ((label, bytes_ / resources.shards(resources.workers)) for label, bytes_ in runs)
    largest = sorted(shared, key=lambda run: -run[1])[:at_once]
    label, need = largest[0][0], workers * largest[0][1]
    has = f"{'its GPU' if gpus else 'this machine'} has {size(there)}"
    if need > there:
        yield (
            f"model {label}: training needs at least {size(need)} of memory, and {has}; a smaller `model`, "
            "or --address of a larger cluster, fits"
        )
    elif (together := workers * sum(bytes_ for _, bytes_ in largest)) > there:
        yield (
            f"the largest {count(len(largest), 'run')} need at least {size(together)} of memory at once, and "
            f"{has}; resources.max_concurrent: {int(there / need)} fits"
        )


def short_disk(bytes_: float | None, storage: Path, *, free: int | None = None) -> Iterator[str]:
    """Yield a note where new checkpoints need more than the file system of a storage has `free`.

    An object store has room for all.
    """
    if isinstance(storage, RemotePath):
        return
    there = next(place for place in (storage, *storage.parents) if place.is_dir())
    left = shutil.disk_usage(there).free if free is None else free
    if bytes_ is not None and bytes_ > left:
        yield (
            f"checkpoints need {size(bytes_)}, and the file system of {storage} has {size(left)} free; "
            "fewer pretrain.milestones, or another --storage, fits"
        )


def _there(name: str) -> float | None:
    """Return how much of a resource a Ray has that is started here; None where that is not known."""
    if name == "CPU":
        return os.cpu_count()
    if name == "GPU":
        import torch

        return torch.cuda.device_count()
    if name == "memory":
        return _memory()
    # Ray itself gives a node resources with such names: its address, and the type of its GPU.
    return None if name == "object_store_memory" or ":" in name else 0


def _memory() -> int | None:
    """Return the bytes of memory of this machine; None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return None


def _gpu_memory(share: float) -> int | None:
    """Return the bytes that a process with so many GPUs has of the first one; None where there is none."""
    import torch

    if not torch.cuda.device_count():
        return None
    return int(min(1.0, share) * torch.cuda.get_device_properties(0).total_memory)
