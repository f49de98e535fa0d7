"""The content of a Hugging Face model folder, and whether it fits a language; weights are not read."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.languages.quiet import quiet
from raysweep.models.base import total_vocabulary
from raysweep.models.encoder import Encoder
from raysweep.models.shapes import Shape

#: model_type -> (norm, whether positions begin behind the id of padding).
_FORMS: dict[str, tuple[Literal["pre", "post"], bool]] = {
    "bert": ("post", False),
    "roberta": ("post", True),
    "roberta-prelayernorm": ("pre", True),
}


@dataclass(frozen=True)
class Folder:
    """The facts in a folder's config.json and tokenizer, without its weights."""

    path: Path
    config: Any
    norm: Literal["pre", "post"]
    #: The row of the position table for the first word of a sentence.
    first_position: int
    #: Number of words, including special tokens among them.
    words: int
    #: Rows of padding, mask and sentence-level token among the words; None where they follow the words.
    special: tuple[int, int, int] | None
    #: The folder's tokenizer; None where its ids are those of the language.
    tokenizer: Any

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Folder:
        """Read a folder; raise `ConfigError` unless it holds a masked language model of a known form."""
        import transformers

        path = Path(folder)
        check_folder(path)
        with quiet():
            try:
                config: Any = transformers.AutoConfig.from_pretrained(path, trust_remote_code=False)
            except Exception as error:  # the library raises errors of many classes
                raise ConfigError(f"{path}: its config.json cannot be read: {brief(error)}") from error
        if config.model_type not in _FORMS:
            raise ConfigError(
                f"{path}: '{config.model_type}' is not a known type of encoder; known: {', '.join(_FORMS)}"
            )
        wanted = {
            "hidden_act": "gelu",
            "tie_word_embeddings": True,
            "is_decoder": False,
            "position_embedding_type": "absolute",
        }
        for name, value in wanted.items():
            have = getattr(config, name, value)
            if have != value:
                raise ConfigError(f"{path}: its {name} is {have!r}; an encoder's is {value!r}")
        norm, behind = _FORMS[config.model_type]
        first = config.pad_token_id + 1 if behind else 0
        ours = getattr(config, "raysweep", None)
        if ours is not None:
            return cls(path, config, norm, first, ours["vocabulary_size"], None, None)
        return cls(path, config, norm, first, *_tokenizer(path))

    @property
    def shape(self) -> Shape:
        """The shape of its encoder."""
        c = self.config
        return Shape(c.hidden_size, c.num_attention_heads, c.num_hidden_layers, c.intermediate_size)

    @property
    def dropout(self) -> float:
        """The dropout that its model was trained with."""
        return float(self.config.hidden_dropout_prob)

    @property
    def positions(self) -> int:
        """The largest number of words in a sentence."""
        return int(self.config.max_position_embeddings) - self.first_position

    def misfit(self, language: Language) -> str | None:
        """Return why the model cannot read the language; None if it can."""
        if self.words != language.vocabulary_size:
            remedy = "use the language it was trained on"
            if self.special is not None:
                remedy = f"use a corpus with the model's own tokenizer (language.tokenizer: {self.path})"
            return f"the model has {self.words} words, the language {language.vocabulary_size}; {remedy}"
        if self.words > self.config.vocab_size:
            return f"its tokenizer has {self.words} tokens, but its embedding {self.config.vocab_size} rows"
        if self.positions < language.max_length:
            return (
                f"the model reads {self.positions} positions, sentences of the language have up to "
                f"{language.max_length}; make them shorter"
            )
        return None

    def check_words(self, language: Language) -> None:
        """Raise `ConfigError` where the folder's tokenizer gives a word of the language another text.

        A few dozen words are compared: two different tokenizers of one size differ in nearly all.
        """
        if self.tokenizer is None:
            return
        for k in range(0, self.words, max(1, self.words // 64)):
            ours = language.text(torch.tensor([k]))
            theirs = self.tokenizer.backend_tokenizer.decode([k], skip_special_tokens=False)
            if ours != theirs:
                raise ConfigError(
                    f"{self.path}: word {k} is '{theirs}' to its tokenizer, but '{ours}' in the language; "
                    f"use a corpus with the model's own tokenizer (language.tokenizer: {self.path})"
                )

    def module(self, language: Language, *, dropout: float, checkpointing: bool) -> Encoder:
        """Return the encoder, its weights not initialised."""
        words = language.vocabulary_size
        model = Encoder(
            self.shape,
            vocabulary_size=words,
            total_vocabulary=self.config.vocab_size if self.special is None else total_vocabulary(words),
            pad_id=language.pad_id,
            max_length=self.positions,
            norm=self.norm,
            dropout=dropout,
            layer_norm_eps=self.config.layer_norm_eps,
            checkpointing=checkpointing,
        )
        # Models from elsewhere were pre-trained with their tokenizer's form of a sentence.
        model.reads_cls = self.special is not None
        return model


def check_folder(path: Path) -> None:
    """Raise `ConfigError` where a folder has no config.json or no weights."""
    if not os.path.isdir(path):
        raise ConfigError(f"there is no folder {path}")
    if not (path / "config.json").is_file():
        raise ConfigError(f"there is no config.json in {path}; a model's save_pretrained writes one")
    if not weight_files(path):
        raise ConfigError(f"there are no weights in {path} (model*.safetensors or pytorch_model*.bin)")


def weight_files(path: Path) -> list[Path]:
    """Return the weight files of a folder that transformers reads."""
    return sorted(path.glob("model*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))


def fingerprint(path: Path) -> str:
    """Return the sha256 of what determines a folder's model: configuration, weights, special tokens.

    The text of config.json is not part of it, because it names the library's version.
    """
    total = hashlib.sha256()
    found = Folder.read(path)
    total.update(repr((found.config.model_type, found.shape, found.words, found.special)).encode())
    total.update(repr((found.first_position, found.positions, found.config.layer_norm_eps)).encode())
    for file in weight_files(path):
        with file.open("rb") as content:
            total.update(hashlib.file_digest(content, "sha256").digest())
    return total.hexdigest()


def _tokenizer(path: Path) -> tuple[int, tuple[int, int, int], Any]:
    """Return a folder's number of words, its special ids, and its tokenizer."""
    import transformers

    if not any((path / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        raise ConfigError(
            f"{path}: there is no tokenizer, so the mask token is unknown; add one with "
            "`tokenizer.save_pretrained`"
        )
    with quiet():
        try:
            tokenizer: Any = transformers.AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        except Exception as error:  # as above
            raise ConfigError(f"{path}: its tokenizer cannot be loaded: {brief(error)}") from error
    found = []
    for name in ("pad_token", "mask_token", "cls_token"):
        if getattr(tokenizer, name) is None:
            raise ConfigError(
                f"{path}: its tokenizer has no {name}; use the tokenizer of a masked language model"
            )
        found.append(int(getattr(tokenizer, f"{name}_id")))
    pad, mask, cls = found
    return max(tokenizer.get_vocab().values()) + 1, (pad, mask, cls), tokenizer


def brief(error: Exception) -> str:
    """Return the first line of a library's error message."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
