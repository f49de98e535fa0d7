"""Configuration of a causal language model: which model, which of its tokens, how many words a sentence."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from raysweep.languages.base import LanguageConfig
from raysweep.languages.labelled.config import DataTasks

if TYPE_CHECKING:
    from raysweep.languages.causal_lm.language import CausalLM


class CausalLMConfig(LanguageConfig):
    """A causal LM of Hugging Face; the defaults are those of Liu et al. 2023, appendix A.

    `keep_by` says which tokens are words: the `keep` most frequent ones (`samples`) among what the model
    itself writes, or (`corpus`) in the text file `path`, each of its lines a text.  Special tokens are never
    words.
    """

    hub_or_path: ClassVar[frozenset[str]] = frozenset({"model"})

    kind: Literal["causal_lm"] = "causal_lm"
    #: Name on the Hugging Face hub, or a folder.
    model: str = Field(default="facebook/opt-125m", min_length=1)
    #: Branch, tag or commit of a model on the hub; None: its main branch.
    revision: str | None = None
    #: Words of the language: the most frequent tokens of the model's vocabulary.
    keep: int = Field(default=2000, ge=2)
    keep_by: Literal["samples", "corpus"] = "samples"
    #: Sentences that the model writes for `keep_by: samples`.
    samples: int = Field(default=256, ge=1, le=100_000)
    #: Decides the sentences that the model writes for `keep_by: samples`.
    seed: int = Field(default=0, ge=0)
    #: Text file of `keep_by: corpus`.
    path: Path | None = None
    #: Words of every sentence, behind the token of its beginning.
    length: int = Field(default=24, ge=1, le=4096)
    #: Token that every sentence begins with; None: the one that the model or its tokenizer names.
    bos: str | None = None
    #: Downstream tasks of labelled texts; no part of the language's identity.
    tasks: DataTasks = ()

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return a model of two layers and eight words, with random weights."""
        from raysweep.languages.causal_lm.example import write_model

        write_model(folder)
        return cls(model=str(folder), keep=4, length=3)

    @field_validator("model")
    @classmethod
    def _model_is_somewhere(cls, model: str) -> str:
        folder = Path(os.path.expanduser(model))
        if os.path.isdir(folder):
            # Worker processes have other working directories.
            return os.path.abspath(folder)
        if folder.is_absolute() or model.startswith((".", "~")) or model.count("/") > 1:
            raise ValueError(
                f"there is no folder '{model}'; give a folder made by `save_pretrained`, make one first (the "
                f"comment at the top of the sweep file may say how; `raysweep language model GRAMMAR.yaml -o "
                f"FOLDER` trains a small one), or give a name on the Hugging Face hub such as "
                f"facebook/opt-125m"
            )
        return model

    @field_validator("revision")
    @classmethod
    def _revision_fits(cls, revision: str | None, info: ValidationInfo) -> str | None:
        model = info.data.get("model")
        if revision is not None and model is not None and os.path.isabs(model):
            raise ValueError(f"'{revision}' belongs to a model on the hub, not to folder {model}; remove it")
        return revision

    @field_validator("path")
    @classmethod
    def _path_fits(cls, path: Path | None, info: ValidationInfo) -> Path | None:
        by = info.data.get("keep_by")
        if by == "corpus":
            if path is None:
                raise ValueError("missing; keep_by 'corpus' counts the tokens of the text file there")
            if not os.path.isfile(path):
                raise ValueError(f"there is no file '{path}'")
        elif path is not None and by is not None:
            raise ValueError(f"belongs to keep_by 'corpus', not '{by}'; remove it or change keep_by")
        return path

    def build(self) -> CausalLM:
        """Load the model, choose its words and make the language.

        Raises `ConfigError` for a field that does not fit the model, `DataError` for a model that cannot be
        reached, read, or used as a language.
        """
        from raysweep.languages.causal_lm import loading, vocabulary
        from raysweep.languages.causal_lm.language import CausalLM

        source = loading.load(self.model, self.revision)
        bos = loading.beginning(source, self.bos)
        loading.check_length(source, self.length)
        if self.path is not None:
            kept = vocabulary.by_corpus(source, bos, self.keep, self.path)
        else:
            kept = vocabulary.by_samples(
                source, bos, self.keep, samples=self.samples, length=self.length, seed=self.seed
            )
        return CausalLM(source, kept=kept, bos=bos, length=self.length, tasks=self.tasks)
