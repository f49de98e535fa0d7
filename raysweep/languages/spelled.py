"""A language as text: sentences as lines of a file, and its tasks as tables of labelled texts.

A corpus reads the lines and the tables (`source` and `tasks` of `raysweep.languages.corpus`), so the whole
path of real text can be run on text whose grammar is known.

The sentences of the text and of the tables are different draws.  Training and test rows share no sentence
(`raysweep.languages.splits`).  The text is a sample of the whole language, without labels, so rows may be
lines of it too.  The smaller the grammar, the more of them are.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.files import write_atomic
from raysweep.languages.base import Language
from raysweep.languages.splits import Split, draw_split

#: The splits of a task and their files, named as those of GLUE.
FILES: dict[Split, str] = {"train": "train.jsonl", "test": "validation.jsonl"}

_SYLLABLES = tuple(c + v for c in "bdfghjklmnprstvwxyzc" for v in "aeiou")
# Coprime to 100, so different numbers stay different; neighbours get different syllables.
_SPREAD = 3571
_BLOCK = 4096  # sentences in memory at once


def made_up(word: int, words: int) -> str:
    """Return a pronounceable name for word number `word` of `words`; different words have different names.

    >>> [made_up(k, 24) for k in range(4)]
    ['baba', 'vela', 'mive', 'fodi']
    """
    syllables = 2
    while len(_SYLLABLES) ** syllables < words:
        syllables += 1
    number, name = word * _SPREAD % len(_SYLLABLES) ** syllables, ""
    for _ in range(syllables):
        number, k = divmod(number, len(_SYLLABLES))
        name += _SYLLABLES[k]
    return name


def word_names(language: Language) -> tuple[str, ...]:
    """Return a name of letters for each word: its own where all words have one, else made-up ones.

    >>> from raysweep.languages.hmm import HMM
    >>> word_names(HMM.random(states=2, vocabulary=3, length=4, blocks=1, tasks=(2,)))
    ('baba', 'vela', 'mive')
    """
    words = range(language.vocabulary_size)
    own = tuple(language.text(torch.tensor([word])) for word in words)
    if all(name.isalpha() for name in own) and len({name.casefold() for name in own}) == len(own):
        return own
    return tuple(made_up(word, len(words)) for word in words)


def write_text(
    language: Language, folder: Path, *, sentences: int, train: int, test: int, seed: int = 0
) -> list[Path]:
    """Write a language into `folder` as text, and return the files.

    `text.txt` has a sentence a line.  Each task of the language has a folder with `train.jsonl` and
    `validation.jsonl`: rows with `sentence`, `label` (the name of the class) and `idx`, as GLUE's tasks of
    one text.  The same arguments give the same bytes.  Raises `ConfigError` for a language without tasks of
    its own.
    """
    if not language.tasks:
        raise ConfigError(
            f"{language.no_tasks}, so there are no tables to write; name the file of a pcfg or an hmm"
        )
    names = word_names(language)
    lines = [
        line
        for k in range(0, sentences, _BLOCK)
        for line in _texts(language, names, language.sample(min(_BLOCK, sentences - k), seed=seed, start=k))
    ]
    made = {folder / "text.txt": lines}
    rows_of: dict[Split, int] = {"train": train, "test": test}
    for split, n in rows_of.items():
        made |= _tables(language, names, folder, split, n, seed)
    for path, rows in made.items():
        write_atomic(path, "".join(f"{row}\n" for row in rows).encode())
    return list(made)


def _tables(
    language: Language, names: Sequence[str], folder: Path, split: Split, n: int, seed: int
) -> dict[Path, list[str]]:
    """Return the rows of one split, JSON by file."""
    sample = draw_split(language, split, n, seed=seed)
    sentences, made = list(_texts(language, names, sample.ids)), {}
    for name, task in language.tasks.items():
        labels = (task.classes[k] for k in language.labels(name, sample).tolist())
        rows = zip(sentences, labels, strict=True)
        made[folder / name / FILES[split]] = [
            json.dumps({"sentence": sentence, "label": label, "idx": k})
            for k, (sentence, label) in enumerate(rows)
        ]
    return made


def _texts(language: Language, names: Sequence[str], ids: Tensor) -> Iterator[str]:
    """Yield each sentence of ids [n, T] as its words, parted by blanks."""
    for row in ids.tolist():
        yield " ".join(names[word] for word in row if word != language.pad_id)
