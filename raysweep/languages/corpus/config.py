"""Configuration of a corpus."""

from __future__ import annotations

from pathlib import Path
from string import ascii_lowercase
from typing import TYPE_CHECKING, Literal, Self

import numpy as np

from raysweep.languages.corpus.fields import CorpusFields, TrainedTokenizer

if TYPE_CHECKING:
    from raysweep.languages.corpus.language import Corpus


class CorpusConfig(CorpusFields):
    """Text of a hub data set or of local files, in rows of `length` tokens.

    `source` is the name of a data set on the Hugging Face hub, or a local file, folder or pattern of .txt,
    .jsonl or .parquet files; `tokenizer` the name of a hub model, a folder with its `tokenizer.json`, or
    `{train: wordpiece, vocabulary: 30522}`.
    """

    kind: Literal["corpus"] = "corpus"

    @classmethod
    def example(cls, folder: Path) -> Self:
        """Return a hundred paragraphs of random words."""
        generator = np.random.default_rng(0)
        words = ["".join(generator.choice(list(ascii_lowercase), size=4)) for _ in range(300)]
        paragraphs = [" ".join(generator.choice(words, size=40)) for _ in range(100)]
        (folder / "text.txt").write_text("\n\n".join(paragraphs), encoding="utf-8")
        return cls(
            source=str(folder / "text.txt"),
            tokenizer=TrainedTokenizer(train="wordpiece", vocabulary=100),
            length=16,
            held_out=0.2,
            seed=0,
        )

    def build(self) -> Corpus:
        """Make the language; its tokens are made when they are first asked for, or by `prepare`.

        Raises `ConfigError` or `DataError` for a source or tokenizer that is not there.
        """
        from raysweep.languages.corpus.language import Corpus

        return Corpus(self)
