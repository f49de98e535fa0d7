"""Checkpoints: the state after a step, on disk, whole or not at all.

A checkpoint is a directory `checkpoints/step-00000500` with the weights (`model.safetensors`), the
optimizer's state (`optimizer.safetensors`) and `state.json` (step, seconds, losses not yet in the curve, and
the sha256 and size of the other files).  Where an algorithm averages weights, `model.safetensors` holds the
average, which is evaluated and exported, and `trained.safetensors` the weights that training resumes from.  A
checkpoint is written beside its place, flushed to disk file by file, and renamed, so a directory of that name
is complete.  In an object store, where nothing is renamed, it is complete once it has its `state.json`,
which is written last.  It counts once its `CheckpointRecord`, which holds the sha256 of all files, is
committed.  No file is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.optim import Optimizer

from raysweep.errors import CheckpointError, StorageError
from raysweep.files import make_directory, remove_tree, rename, sync_directory, write_new
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM, ModelConfig
from raysweep.remote import RemotePath, keep_blob, path_of, read_verified

MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
TRAINED = "trained.safetensors"


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FileDigest(_Plain):
    """The expected content of a file: `sha256` in hexadecimal, `size` in bytes."""

    sha256: str
    size: int

    @classmethod
    def of(cls, data: bytes) -> FileDigest:
        """Return the digest of `data`."""
        return cls(sha256=hashlib.sha256(data).hexdigest(), size=len(data))


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
) -> dict[str, FileDigest]:
    """Write a checkpoint and return the digests of its files; it is durable when this returns.

    `average` is the average of the model's parameters by name, None where the algorithm keeps none.
    Raises `StorageError` where the disk refuses; earlier checkpoints are then untouched.
    """
    place = checkpoint_directory(run, state.step)
    unfinished = place.with_name(f"unfinished-{place.name}")
    trained = named_tensors(model)
    contents = {
        MODEL: save(_to_cpu({**trained, **(average or {})})),
        OPTIMIZER: save(_optimizer_tensors(model, optimizer)),
    }
    if average is not None:
        contents[TRAINED] = save(_to_cpu(trained))
    digests = {name: FileDigest.of(data) for name, data in contents.items()}
    contents[STATE] = state.model_copy(update={"files": digests}).model_dump_json(indent=1).encode()
    digests[STATE] = FileDigest.of(contents[STATE])
    try:
        if isinstance(place, RemotePath):
            _upload(place, contents, digests)
            return digests
        # What an earlier attempt left here was never recorded.
        for leftover in (unfinished, place):
            if leftover.exists():
                shutil.rmtree(leftover)
        make_directory(unfinished.parent)
        unfinished.mkdir()
        for name, data in contents.items():
            write_new(unfinished / name, data)
        sync_directory(unfinished)
        rename(unfinished, place)
    except OSError as error:
        if not isinstance(unfinished, RemotePath):
            shutil.rmtree(unfinished, ignore_errors=True)
        raise StorageError(
            f"checkpoint of step {state.step} cannot be written to {place}: {error.strerror or error}; "
            "the previous one is intact: make room or choose other storage, and launch again to resume"
        ) from error
    return digests


def _upload(place: RemotePath, contents: Mapping[str, bytes], digests: Mapping[str, FileDigest]) -> None:
    """Write a checkpoint into an object store: it is whole from its last file on, which is the state's."""
    (place / STATE).unlink(missing_ok=True)
    for name in sorted(contents, key=lambda name: name == STATE):
        (place / name).write_bytes(contents[name])
        keep_blob(digests[name].sha256, contents[name])


def is_whole(folder: Path, name: str) -> bool:
    """Return whether a checkpoint's folder is complete: on a disk it always is, once it has its name."""
    return not isinstance(folder, RemotePath) or (folder / name / STATE).is_file()


def verify(directory: Path, files: Mapping[str, FileDigest]) -> None:
    """Read every file of a checkpoint; raise `CheckpointError` if one is missing, torn or altered."""
    for name, digest in files.items():
        _read_file(directory / name, digest)


def restore(
    directory: Path,
    files: Mapping[str, FileDigest],
    model: nn.Module,
    optimizer: Optimizer,
    average: Mapping[str, Tensor] | None = None,
) -> LoopState:
    """Set `model`, `optimizer` and `average` to a checkpoint's state, bit for bit; return the rest.

    Raises `CheckpointError` where a file is missing, damaged, or belongs to another model.
    """
    weights = MODEL if average is None else TRAINED
    for name in (MODEL, weights, OPTIMIZER, STATE):
        if name not in files:
            raise CheckpointError(f"{directory}: its record names no {name}")
    state = read_state(directory, files[STATE])
    load_tensors(directory / weights, files[weights], named_tensors(model))
    if average is not None:
        buffers = dict(model.named_buffers())
        load_tensors(directory / MODEL, files[MODEL], {**average, **buffers})
    load_optimizer(directory / OPTIMIZER, files[OPTIMIZER], model, optimizer)
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
    if MODEL not in state.files:
        raise CheckpointError(f"{directory / STATE}: names no {MODEL}; launch again to recompute it")
    # All initial weights are overwritten, so any seed does.
    built = model.build(language, seed=0)
    load_tensors(directory / MODEL, state.files[MODEL], named_tensors(built))
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


def _forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _to_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu").contiguous() for name, tensor in tensors.items()}


def _optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as "parameter/key" -> tensor."""
    tensors = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if value is None:
                continue
            if not isinstance(value, Tensor):
                raise CheckpointError(
                    f"{type(optimizer).__name__} keeps '{key}' as {type(value).__name__}, which a checkpoint "
                    "cannot hold; keep it as a tensor"
                )
            tensors[f"{name}/{key}"] = value
    return _to_cpu(tensors)


def load_tensors(path: Path, digest: FileDigest, wanted: Mapping[str, Tensor]) -> None:
    """Fill the tensors `wanted`, by name, from a file that must hold exactly these."""
    fill(wanted, _parse(path, digest), path)


@torch.no_grad()
def fill(wanted: Mapping[str, Tensor], stored: Mapping[str, Tensor], path: Path) -> None:
    """Fill the tensors `wanted`, by name, with those that are `stored` at a path, exactly these."""
    if _forms(stored) != _forms(wanted):
        raise CheckpointError(f"{path}: holds the weights of another model than the configured one")
    for name, tensor in wanted.items():
        tensor.copy_(stored[name])


def load_optimizer(path: Path, digest: FileDigest, model: nn.Module, optimizer: Optimizer) -> None:
    """Replace the optimizer's state by that in a file, which is of the same model's parameters."""
    parameters = dict(model.named_parameters())
    optimizer.state.clear()
    for full, tensor in _parse(path, digest).items():
        name, _, key = full.rpartition("/")
        parameter = parameters.get(name)
        if parameter is None:
            raise CheckpointError(
                f"{path}: holds the state of '{name}', a parameter that the model does not have"
            )
        optimizer.state[parameter][key] = tensor.to(parameter.device)


def _parse(path: Path, digest: FileDigest) -> dict[str, Tensor]:
    data = _read_file(path, digest)
    try:
        return load(data)
    except SafetensorError as error:
        raise CheckpointError(f"{path}: not a safetensors file: {error}") from error


def read_state(directory: Path, digest: FileDigest | None = None) -> LoopState:
    """Return the `LoopState` in the folder of a checkpoint; raises `CheckpointError` where there is none."""
    data = _read_file(directory / STATE, digest)
    try:
        return LoopState.model_validate(json.loads(data))
    except (ValueError, ValidationError) as error:
        raise CheckpointError(f"{directory / STATE}: damaged; launch again to recompute it") from error


def _read_file(path: Path, digest: FileDigest | None) -> bytes:
    """Return a file's bytes; raise `CheckpointError` unless they match `digest`."""
    try:
        if digest is None:
            return path.read_bytes()
        data, sha256 = read_verified(path, digest.sha256)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: missing; launch again to recompute it") from error
    if len(data) != digest.size:
        raise CheckpointError(f"{path}: {len(data)} bytes where {digest.size} were written; it is torn")
    if sha256 != digest.sha256:
        raise CheckpointError(f"{path}: its content is not what was written (sha256 differs)")
    return data
