"""The state that training starts from in place of drawn weights: that of another run, or a model's folder.

    θ_0 = the weights of the source;   optimizer: fresh: no state, as ever;   keep: the source's state too

A source is the folder of a checkpoint (`.../checkpoints/step-00000500`) or one that transformers'
`save_pretrained` or `raysweep export-model` has written.  Where an algorithm averages weights (`ema`), a
fresh optimizer starts from the average, which is what is measured and exported, and a kept one from the
weights that it has trained.  Everything else is new: steps count from 0, schedule and warm-up begin again, an
average begins anew, and sentences, masks and dropout are drawn from the run's own seeds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer

from raysweep.errors import CheckpointError
from raysweep.languages.base import Language
from raysweep.models.folder import fingerprint
from raysweep.models.huggingface import from_huggingface
from raysweep.registry import Config
from raysweep.training import checkpoint as disk
from raysweep.training.data import World
from raysweep.training.pieces import part_names


class InitFrom(Config):
    """The state that a run starts from: `run` is RUN@STEP, SWEEP/RUN@STEP or a folder.

    RUN is a run's id, or a pattern (`*` and `?`) that only one run matches.  `optimizer` keeps the state of
    the source's optimizer, or starts a fresh one.
    """

    #: The source: RUN@STEP, SWEEP/RUN@STEP, or the folder of a checkpoint or model.
    run: Annotated[str, Field(min_length=1)]
    #: Keep the state of the source's optimizer, or start a fresh one.
    optimizer: Literal["keep", "fresh"] = "fresh"


@dataclass(frozen=True)
class Start:
    """A source on disk.

    With `keep` the optimizer's state is taken too.  `content` is what `state_content` said of the folder when
    the run was configured; None takes the folder as it is.
    """

    folder: Path
    keep: bool = False
    content: Mapping[str, str] | None = None

    def check(self) -> None:
        """Raise `CheckpointError` where the folder has gone, or has changed since the run was configured."""
        if not self.folder.is_dir():
            raise CheckpointError(f"init_from: {self.folder} is not there any more; launch its sweep again")
        if self.content is not None and state_content(self.folder, keep=self.keep) != self.content:
            raise CheckpointError(
                f"init_from: {self.folder} has other content than when this run was configured"
            )

    def set_weights(self, model: nn.Module, language: Language) -> None:
        """Set the weights of `model`, bit for bit; raises `CheckpointError` for those of another model."""
        self.check()
        if not is_checkpoint(self.folder):
            # The library draws weights before it loads them; the caller's draws are not to change by that.
            with torch.random.fork_rng(devices=[]):
                found = disk.named_tensors(from_huggingface(self.folder, language))
            _copy(found, disk.named_tensors(model), self.folder)
            return
        files = disk.read_state(self.folder).files
        disk.load_weights(self.folder, files, weights_file(files, keep=self.keep), model)

    def set_optimizer(self, model: nn.Module, optimizer: Optimizer, world: World) -> None:
        """Give the optimizer of `model` the source's state, where it is kept."""
        if self.keep:
            files = disk.read_state(self.folder).files
            disk.load_optimizer(self.folder, files, model, optimizer, world)


@torch.no_grad()
def _copy(found: Mapping[str, Tensor], wanted: Mapping[str, Tensor], folder: Path) -> None:
    """Copy tensors by name; raise `CheckpointError` for those of another model."""

    def forms(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
        return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}

    if forms(found) != forms(wanted):
        raise CheckpointError(f"{folder}: holds the weights of another model than the configured one")
    for name, tensor in wanted.items():
        tensor.copy_(found[name])


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder is that of a checkpoint, and not a model's in the format of transformers."""
    return (folder / disk.STATE).is_file()


def weights_file(files: Mapping[str, disk.FileDigest], *, keep: bool) -> str:
    """Return the file of a checkpoint with the weights to start from; sharded, it is several."""
    return disk.TRAINED if keep and part_names(files, disk.TRAINED) else disk.MODEL


def state_content(folder: Path, *, keep: bool) -> dict[str, str]:
    """Return what identifies the state in a folder: the sha256 of its weights, and of a kept optimizer.

    Raises `CheckpointError` or `ConfigError` for a folder that holds none.
    """
    if not is_checkpoint(folder):
        return {"folder": fingerprint(folder)}
    files = disk.read_state(folder).files
    return file_content(files, folder, keep=keep)


def file_content(files: Mapping[str, disk.FileDigest], folder: Path, *, keep: bool) -> dict[str, str]:
    """Return what identifies the state in the files of a checkpoint: of several, the sha256 of theirs."""

    def digest(name: str) -> str:
        found = [files[part].sha256 for part in part_names(files, name)]
        if not found:
            raise CheckpointError(f"{folder}: its record names no {name}; launch its sweep again")
        return found[0] if len(found) == 1 else hashlib.sha256("".join(found).encode()).hexdigest()

    wanted = {"weights": weights_file(files, keep=keep)} | ({"optimizer": disk.OPTIMIZER} if keep else {})
    return {key: digest(name) for key, name in wanted.items()}
