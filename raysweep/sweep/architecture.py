"""Compares architectures: a model can take up the weights of one that has the same."""

from __future__ import annotations

from pathlib import Path

import torch

from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM, ModelConfig
from raysweep.models.encoder import Encoder
from raysweep.models.folder import Folder
from raysweep.training.checkpoint import named_tensors

#: Fields of a model's configuration that may change from one phase of training to the next.
_FREE = frozenset({"dropout"})


def misfit(model: ModelConfig, language: Language, other: ModelConfig, others: Language) -> str | None:
    """Return why a model for `language` cannot take the weights of the `other` one, for `others`; or None."""
    if model.kind != other.kind:
        return f"its model.kind is '{other.kind}', this run's '{model.kind}'; use one kind for both"
    ours, theirs = model.content(), other.content()
    for name in sorted((ours.keys() | theirs.keys()) - _FREE):
        if ours.get(name) != theirs.get(name):
            values = f"{theirs.get(name)!r}, this run's {ours.get(name)!r}"
            return f"its model.{name} is {values}; use one value for both"
    if language is others:
        return None
    return _other_tensors(_module(model, language), _module(other, others))


def folder_misfit(model: ModelConfig, language: Language, folder: Path) -> str | None:
    """Return why a model for `language` cannot take the weights of a folder of transformers; or None."""
    try:
        found = Folder.read(folder)
        fault = found.misfit(language)
    except ConfigError as error:
        return str(error)
    if fault is not None:
        return fault
    ours = _module(model, language)
    if not isinstance(ours, Encoder):
        return "it holds an encoder; use model.kind: encoder without cls, or huggingface"
    with torch.device("meta"):
        theirs = found.module(language, dropout=0.0, checkpointing=False)
    for name in ("shape", "norm"):
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            return f"its model.{name} is '{there}', this run's '{here}'; use one value for both"
    here, there = ours.embedding_norm.eps, theirs.embedding_norm.eps
    if here != there:
        return f"its model.layer_norm_eps is {there:g}, this run's {here:g}; use one value for both"
    fault = _other_tensors(ours, theirs)
    return None if fault is None else f"{fault}; or use model: {{kind: huggingface, path: {folder}}}"


def _module(model: ModelConfig, language: Language) -> MaskedLM:
    with torch.device("meta"):
        return model.module(language)


def _other_tensors(ours: MaskedLM, theirs: MaskedLM) -> str | None:
    if (ours.vocabulary_size, ours.total_vocabulary) != (theirs.vocabulary_size, theirs.total_vocabulary):
        return (
            f"it has {theirs.vocabulary_size} words in {theirs.total_vocabulary} rows, this run "
            f"{ours.vocabulary_size} in {ours.total_vocabulary}; use languages of as many words"
        )
    if ours.max_length != theirs.max_length:
        return (
            f"it reads {theirs.max_length} positions, this run {ours.max_length}; use languages with longest "
            "sentences of as many words"
        )
    here, there = ({name: tuple(t.shape) for name, t in named_tensors(m).items()} for m in (ours, theirs))
    for name in dict.fromkeys((*here, *there)):
        if here.get(name) != there.get(name):
            return f"its {name} has shape {there.get(name)}, this run's {here.get(name)}"
    return None
