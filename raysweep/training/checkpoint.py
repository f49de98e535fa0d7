"""Checkpoints: the state after a step, on disk, whole or not at all.

A checkpoint is a directory `checkpoints/step-00000500` with the weights (`model.safetensors`), the
optimizer's state (`optimizer.safetensors`) and `state.json` (step, seconds, losses not yet in the curve, and
the sha256 and size of the other files).  Where an algorithm averages weights, `model.safetensors` holds the
average, which is evaluated and exported, and `trained.safetensors` the weights that training resumes from.
Where weights are sharded, each of these is in several files, one a worker (`raysweep.training.pieces`).

A checkpoint is written beside its place, flushed to disk file by file, and renamed, so a directory of that
name is complete.  In an object store, where nothing is renamed, it is complete once it has its `state.json`,
which is written last.  It counts once its `CheckpointRecord`, which holds the sha256 of all files, is
committed.  No file is unpickled.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors.torch import save
from torch import Tensor, nn
from torch.optim import Optimizer

from raysweep.errors import CheckpointError, ConfigError, StorageError
from raysweep.files import make_directory, remove_tree, rename, sync_directory, write_new
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM, ModelConfig
from raysweep.remote import RemotePath, keep_blob, path_of
from raysweep.training.data import World
from raysweep.training.pieces import Parts, fill, form, is_sharded, nearest, part_name, pieces
from raysweep.training.verified import FileDigest, check_file, read_file
from raysweep.training.workers import on_all, on_first

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
TRAINED = "trained.safetensors"


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CurvePoint(_Plain):
    """The mean training loss (nats) of the steps since the previous point; `time_ms` since the epoch.

    `tokens_per_second` and `mfu` are the speed of these steps (`raysweep.training.throughput`), without the
    time for checkpoints; None where it is not known.
    """

    step: int
    loss: float
    time_ms: int
    tokens_per_second: float | None = None
    mfu: float | None = None


class CheckpointRecord(_Plain):
    """The journal's record of a checkpoint.

    `curve` has the points since the checkpoint before the previous one, so that one lost record loses none;
    `time` is in seconds since the epoch, `train_seconds` counts all training up to this step over all
    attempts, and `micro_batch` is the largest number of sentences in memory at once, None if that is a whole
    batch.  `train_cpu_seconds` is the processor time of the worker that writes, None where an older raysweep
    has trained.
    """

    step: int
    milestone: bool
    files: dict[str, FileDigest]
    curve: tuple[CurvePoint, ...]
    time: float
    train_seconds: float
    train_cpu_seconds: float | None = None
    micro_batch: int | None = None


class LoopState(_Plain):
    """The state that a run needs besides weights and optimizer.

    `losses` are those of the steps since the last curve point; `precision` is the working precision of the
    training up to here.
    """

    step: int
    train_seconds: float
    losses: tuple[float, ...]
    precision: str
    train_cpu_seconds: float | None = None
    files: dict[str, FileDigest] = {}


def checkpoints_directory(run: Path) -> Path:
    """Return the directory of the checkpoints of a run, given that of the run."""
    return run / "checkpoints"


def checkpoint_directory(run: Path, step: int) -> Path:
    """Return the directory of the checkpoint after `step`, given the directory of its run."""
    return checkpoints_directory(run) / f"step-{step:08d}"


def write_checkpoint(
    run: Path,
    model: nn.Module,
    optimizer: Optimizer,
    state: LoopState,
    average: Mapping[str, Tensor] | None = None,
    world: World | None = None,
) -> dict[str, FileDigest]:
    """Write a checkpoint and return the digests of its files; it is durable when this returns.

    `average` is the average of the model's parameters by name, None where the algorithm keeps none.  All
    ranks of `world` call this together; where weights are sharded, each writes the rows that it holds.
    Raises `StorageError` where the disk refuses; earlier checkpoints are then untouched.
    """
    world = world or World()
    place = checkpoint_directory(run, state.step)
    remote = isinstance(place, RemotePath)
    beside = place if remote else place.with_name(f"unfinished-{place.name}")

    @contextmanager
    def told() -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"checkpoint of step {state.step} cannot be written to {place}: {error.strerror or error}; "
                "the previous one is intact: make room or choose other storage, and launch again to resume"
            ) from error

    def begin() -> None:
        with told():
            if remote:
                # It is whole from its last file on, which is the state's.
                (place / STATE).unlink(missing_ok=True)
                return
            # What an earlier attempt left here was never recorded.
            for leftover in (beside, place):
                if leftover.exists():
                    shutil.rmtree(leftover)
            make_directory(beside.parent)
            beside.mkdir()

    def write() -> dict[str, FileDigest]:
        with told():
            return _write(beside, _contents(model, optimizer, average, world) if world.writes else {})

    def finish() -> dict[str, FileDigest]:
        with told():
            whole = state.model_copy(update={"files": digests}).model_dump_json(indent=1).encode()
            last = _write(beside, {STATE: whole})
            if not remote:
                sync_directory(beside)
                rename(beside, place)
            return {**digests, **last}

    try:
        on_first(world, begin)
        digests = {name: digest for each in on_all(world, write) for name, digest in each.items()}
        return on_first(world, finish)
    except StorageError:
        if not remote and world.rank == 0:
            shutil.rmtree(beside, ignore_errors=True)
        raise


def _contents(
    model: nn.Module, optimizer: Optimizer, average: Mapping[str, Tensor] | None, world: World
) -> dict[str, bytes]:
    """Return the files that this worker writes, by name."""
    trained = named_tensors(model)
    tensors = {MODEL: {**trained, **(average or {})}, OPTIMIZER: _optimizer_tensors(model, optimizer)}
    if average is not None:
        tensors[TRAINED] = trained
    part = world.shard, world.shards
    return {part_name(name, *part): save(pieces(each, world)) for name, each in tensors.items()}


def _write(place: Path, contents: Mapping[str, bytes]) -> dict[str, FileDigest]:
    """Write new files into the folder of a checkpoint and return their digests."""
    digests = {name: FileDigest.of(data) for name, data in contents.items()}
    for name, data in contents.items():
        if isinstance(place, RemotePath):
            (place / name).write_bytes(data)
            keep_blob(digests[name].sha256, data)
        else:
            write_new(place / name, data)
    return digests


def is_whole(folder: Path, name: str) -> bool:
    """Return whether a checkpoint's folder is complete: on a disk it always is, once it has its name."""
    return not isinstance(folder, RemotePath) or (folder / name / STATE).is_file()


def verify(directory: Path, files: Mapping[str, FileDigest]) -> None:
    """Read every file of a checkpoint; raise `CheckpointError` if one is missing, torn or altered."""
    for name, digest in files.items():
        check_file(directory / name, digest)


def restore(
    directory: Path,
    files: Mapping[str, FileDigest],
    model: nn.Module,
    optimizer: Optimizer,
    average: Mapping[str, Tensor] | None = None,
    world: World | None = None,
) -> LoopState:
    """Set `model`, `optimizer` and `average` to a checkpoint's state, bit for bit; return the rest.

    Where weights are sharded over `world`, each rank reads its rows, whatever number of workers has written.
    Raises `CheckpointError` where a file is missing, damaged, or belongs to another model.
    """
    world = world or World()
    if STATE not in files:
        raise CheckpointError(f"{directory}: its record names no {STATE}")
    state = read_state(directory, files[STATE])
    trained = MODEL if average is None else TRAINED
    fill(named_tensors(model), Parts(directory, files, trained), world)
    if average is not None:
        buffers = dict(model.named_buffers())
        fill({**average, **buffers}, Parts(directory, files, MODEL), world)
    load_optimizer(directory, files, model, optimizer, world)
    return state


def load_model(
    directory: str | os.PathLike[str],
    model: ModelConfig,
    language: Language,
    device: str | torch.device = "cpu",
) -> MaskedLM:
    """Return the model of a checkpoint in evaluation mode on `device`, its weights verified.

    `directory` is the checkpoint's own folder (`.../checkpoints/step-00000500`).
    Raises `CheckpointError` where the checkpoint is missing, torn, altered or of another shape.
    """
    directory = path_of(directory)
    if not directory.is_dir():
        raise CheckpointError(
            f"{directory}: there is no such folder; name that of a checkpoint, .../checkpoints/step-00000500"
        )
    state = read_state(directory)
    # All initial weights are overwritten, so any seed does.
    built = model.build(language, seed=0)
    load_weights(directory, state.files, MODEL, built)
    return built.to(device).eval()


def remove(run: Path, step: int) -> None:
    """Remove the checkpoint after `step`, if it is there; killed at any moment, it is there whole or not."""
    place = checkpoint_directory(run, step)
    if isinstance(place, RemotePath):
        with suppress(OSError):
            (place / STATE).unlink(missing_ok=True)
            remove_tree(place)
        return
    gone = place.with_name(f"unfinished-removed-{place.name}-{secrets.token_hex(4)}")
    with suppress(OSError):
        os.replace(place, gone)
    shutil.rmtree(gone, ignore_errors=True)


def remove_unfinished(run: Path) -> None:
    """Remove the half-written checkpoints that a killed process left."""
    if isinstance(run, RemotePath):
        return  # of those without a state, the next attempt writes each file anew
    for place in (run / "checkpoints").glob("unfinished-*"):
        shutil.rmtree(place, ignore_errors=True)


def named_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name, tied ones once, under their first name."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as "parameter/key" -> tensor."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise ConfigError(
                    f"{type(optimizer).__name__} keeps '{key}' as {type(value).__name__}, which a checkpoint "
                    "cannot hold; keep it as a tensor"
                )
            if is_sharded(parameter) and value.ndim and value.shape != parameter.shape:
                raise ConfigError(
                    f"{type(optimizer).__name__} keeps '{key}' in another shape than its parameter's, which "
                    "no sharded checkpoint can hold; train with resources.sharding: none"
                )
            tensors[f"{name}/{key}"] = value
    return tensors


def load_weights(directory: Path, files: Mapping[str, FileDigest], name: str, model: nn.Module) -> None:
    """Set the weights of a model that is whole from the files of a checkpoint that `name` stands for."""
    fill(named_tensors(model), Parts(directory, files, name), World())


def load_optimizer(
    directory: Path,
    files: Mapping[str, FileDigest],
    model: nn.Module,
    optimizer: Optimizer,
    world: World | None = None,
) -> None:
    """Replace the optimizer's state by that of a checkpoint, which is of the same model's parameters."""
    world = world or World()
    parameters = dict(model.named_parameters())
    parts = Parts(directory, files, OPTIMIZER)
    part = nearest(parts, world)
    optimizer.state.clear()
    tensors = {}
    for full, stored in parts.open(part).items():
        name, _, key = full.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None:
            raise CheckpointError(
                f"{parts.paths[part]}: holds the state of '{name}', a parameter that the model does not have"
            )
        shape, dtype = form(stored)
        if shape and (len(parts.paths) > 1 or is_sharded(parameter)):
            tensor = torch.empty_like(parameter, dtype=dtype, requires_grad=False)
        else:
            tensor = torch.empty(shape, dtype=dtype, device=parameter.device)
        tensors[full] = optimizer.state[parameter][key] = tensor
    fill(tensors, parts, world)


def read_state(directory: Path, digest: FileDigest | None = None) -> LoopState:
    """Return the `LoopState` in the folder of a checkpoint; raises `CheckpointError` where there is none."""
    data = read_file(directory / STATE, digest)
    try:
        return LoopState.model_validate(json.loads(data))
    except (ValueError, ValidationError) as error:
        raise CheckpointError(f"{directory / STATE}: damaged; launch again to recompute it") from error
