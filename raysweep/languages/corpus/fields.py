"""The fields of a corpus: its source, its tokenizer, and the making of rows."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, ValidationError, field_validator

from raysweep.languages.base import LanguageConfig
from raysweep.languages.labelled.config import DataTasks
from raysweep.registry import Config


class TrainedTokenizer(Config):
    """A lower-casing WordPiece tokenizer, as BERT's, trained on the corpus."""

    #: The kind of tokenizer.
    train: Literal["wordpiece"]
    #: Word pieces, special ones included.
    vocabulary: int = Field(default=30522, ge=100)
    #: Number of training documents, the first ones, that it is trained on; held-out ones are never used.
    documents: int = Field(default=100_000, ge=1)


class CorpusFields(LanguageConfig):
    """The fields of a corpus, for all that read them; see `CorpusConfig`."""

    hub_or_path: ClassVar[frozenset[str]] = frozenset({"source", "tokenizer"})

    #: The name of a data set on the Hugging Face hub, or a local file, folder or pattern of .txt, .jsonl or
    #: .parquet files.
    source: str = Field(min_length=1)
    #: Configuration of a data set on the hub.
    subset: str | None = None
    #: Split of a data set on the hub.
    split: str = "train"
    #: Branch, tag or commit of a data set on the hub; None: `main`.
    revision: str | None = None
    #: The column or key that holds the text; .txt files have none.
    text_field: str = "text"
    #: A document of a .txt file: the text between blank lines, a line, or the file.
    document: Literal["paragraph", "line", "file"] = "paragraph"
    #: Rows of the source per document, for sources with shorter rows (BookCorpus: a sentence).
    rows_per_document: int = Field(default=1, ge=1)
    #: Number of documents used, the first ones; None: all.
    documents: int | None = Field(default=None, ge=2)
    #: The name of a model on the hub, a folder with its `tokenizer.json`, or `{train: wordpiece, vocabulary:
    #: 30522}`.
    tokenizer: str | TrainedTokenizer = "google-bert/bert-base-uncased"
    #: Token put behind every document; None: the tokenizer's own, such as [SEP] or </s>.
    separator: str | None = None
    #: Tokens of a row.
    length: int = Field(default=128, ge=2, le=8192)
    #: Share of the documents that training never sees.
    held_out: float = Field(default=0.01, gt=0, lt=1, allow_inf_nan=False)
    #: Decides which documents are held out.
    seed: int = Field(default=0, ge=0)
    #: Downstream tasks of labelled texts; no part of the language's identity.
    tasks: DataTasks = ()

    @field_validator("tokenizer", mode="before")
    @classmethod
    def _tokenizer_is_named_or_trained(cls, value: object) -> object:
        if isinstance(value, dict):
            try:
                return TrainedTokenizer.decode(value)
            except ValidationError as error:
                problem = error.errors()[0]
                field = ".".join(map(str, problem["loc"]))
                raise ValueError(f"{field}: {problem['msg']}") from None
        if isinstance(value, TrainedTokenizer) or (isinstance(value, str) and value):
            return value
        raise ValueError(
            f"{value!r} is neither a hub name nor a folder nor a mapping such as "
            "{train: wordpiece, vocabulary: 30522}"
        )
