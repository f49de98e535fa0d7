"""The configuration of a model that starts from a Hugging Face folder (`raysweep.models.huggingface`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

import torch
from pydantic import Field, ValidationInfo, field_validator

from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.languages.hmm.config import HMMConfig
from raysweep.models.base import ModelConfig
from raysweep.models.encoder import Encoder, EncoderConfig
from raysweep.models.folder import Folder, check_folder, fingerprint
from raysweep.models.huggingface import from_huggingface, to_huggingface


class HuggingFaceConfig(ModelConfig):
    """The masked language model in folder `path`: its shape, its form and its weights.

    The folder's content, not its place, identifies the run: `sha256` is filled in when the folder exists, and
    a folder that has changed since is refused.  No seed draws the weights, so runs of several seeds differ in
    data and dropout alone.
    """

    seeded: ClassVar[bool] = False

    kind: Literal["huggingface"] = "huggingface"
    #: Folder of the model.
    path: Annotated[str, Field(min_length=1)]
    #: Dropout in training, whatever the folder says.
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    #: The backward pass computes the layers' activations again instead of keeping them.
    checkpointing: bool = False
    #: The content of the folder; filled in when the folder exists, and a folder that has changed is refused.
    sha256: str | None = None

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return an encoder with random weights for the language of `HMMConfig.example`."""
        language = HMMConfig.example(folder).build()
        model = EncoderConfig.example(folder).build(language, seed=5)
        to_huggingface(model, folder / "model")
        return cls(path=str(folder / "model"))

    @field_validator("path")
    @classmethod
    def _a_folder_that_is_there_holds_a_model(cls, path: str) -> str:
        # A missing folder is an error only when it is needed: stored results can be read without it.
        if os.path.exists(path):
            try:
                check_folder(Path(path))
            except ConfigError as error:
                raise ValueError(str(error)) from error
        return path

    @field_validator("sha256")
    @classmethod
    def _content_is_told(cls, value: str | None, info: ValidationInfo) -> str | None:
        path = info.data.get("path")
        if value is not None or path is None or not os.path.exists(path):
            return value
        try:
            return fingerprint(Path(path))
        except ConfigError as error:
            raise ValueError(str(error)) from error

    @property
    def label(self) -> str:
        """The folder's name, then what differs from the defaults."""
        parts = [Path(self.path).name]
        if self.dropout != type(self).model_fields["dropout"].default:
            parts.append(f"dropout{self.dropout:g}")
        return "-".join(parts)

    def content(self) -> dict[str, Any]:
        """Return what determines the weights: the folder's content, not its place."""
        return {"kind": self.kind, "sha256": self.sha256, "dropout": self.dropout}

    def problems(self, language: Language) -> list[tuple[str, str]]:
        if self.sha256 is None:  # the reader of the sweep file reports a missing folder
            return []
        try:
            misfit = Folder.read(self.path).misfit(language)
        except ConfigError as error:
            misfit = str(error)
        return [] if misfit is None else [("path", misfit)]

    def module(self, language: Language) -> Encoder:
        found = Folder.read(self.path)
        return found.module(language, dropout=self.dropout, checkpointing=self.checkpointing)

    def build(self, language: Language, *, seed: int) -> Encoder:
        """Return the model with the folder's weights, whatever the seed.

        Raises `ConfigError` where the folder is gone, has changed, or does not fit the language.
        """
        if fingerprint(Path(self.path)) != self.sha256:
            raise ConfigError(f"model.path: {self.path} has other content than when this run was configured")
        # The library draws weights before it loads them; the caller's draws are not to change by that.
        with torch.random.fork_rng(devices=[]):
            return from_huggingface(
                self.path, language, dropout=self.dropout, checkpointing=self.checkpointing
            )
