"""The fields of a first sweep file that follow from what its language is read from: text, model or rules."""

from __future__ import annotations

import glob
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any

from raysweep.errors import ConfigError
from raysweep.languages.corpus.source import FORMATS
from raysweep.languages.sources import local_files
from raysweep.sweep.starter import TEMPLATES

Fields = dict[str, Any]

#: Bytes of text for a token, rather too many, so that a corpus has no fewer rows than are asked for.
_BYTES = 8
#: Lengths of rows that are tried, the usual one first.
_LENGTHS = (64, 16)
#: Fewest and most held-out rows that a loss is measured on.
_FEWEST, _MOST = 16, 4096
#: Characters of a text that are looked at for blank lines and words.
_LOOKED_INTO = 1_000_000


def placed(source: str, folder: Path) -> str:
    """Return a source as a sweep file in `folder` must name it; paths start from the current directory.

    What is no file, folder or pattern here may be a name on the Hugging Face hub, and is left as it is.
    """
    if source.startswith(("/", "~")):
        return source
    if not (source.startswith(("./", "../")) or os.path.exists(source) or glob.glob(source, recursive=True)):
        return source
    path = os.path.relpath(source, folder)
    return path if path.startswith("..") else f"./{path}"


def read_from(kind: str, source: str, folder: Path) -> tuple[Fields, dict[str, Fields]]:
    """Return fields of the language and of evaluations for a language of a kind that is read from `source`.

    A text decides the length of rows and how many are held out; a model how many words there are.  Raises
    `ConfigError` for a kind that is read from nowhere, and for a text that is too short.
    """
    template = TEMPLATES[kind]
    if template.source is None:
        raise ConfigError(f"--source: a {kind} is drawn at random and read from nowhere; leave --source out")
    named: Fields = {template.source: placed(source, folder)}
    if kind == "pcfg":
        return dict.fromkeys(template.language) | {"structure": "file"} | named, {}
    if kind == "causal_lm":
        return named | _words(source), {}
    language, sentences = _rows(source)
    return named | language, {"held_out_loss": {"sentences": sentences}}


def _words(source: str) -> Fields:
    """Return the fields that a local model limits; {} for one on the hub."""
    path = os.path.expanduser(source)
    if not os.path.isdir(path):
        return {}
    from raysweep.languages.causal_lm import loading, vocabulary

    usual = TEMPLATES["causal_lm"].language
    model = loading.load(os.path.abspath(path), None)
    words = vocabulary.choice(model, loading.beginning(model, None))
    positions = getattr(model.config, "max_position_embeddings", None) or usual["length"]
    return {"keep": min(usual["keep"], len(words)), "length": min(usual["length"], positions)}


def _rows(source: str) -> tuple[Fields, int]:
    """Return the fields of a corpus of local text, and the number of held-out rows to measure on."""
    usual = TEMPLATES["corpus"].language
    texts = [path for path in local_files(source, FORMATS) if not path.endswith(".parquet")]
    if not texts:
        # A data set of the hub, or compressed: its size is not seen, and rarely small.
        return {}, _MOST
    size = sum(map(os.path.getsize, texts))
    with open(texts[0], encoding="utf-8", errors="replace") as file:
        text = file.read(_LOOKED_INTO)
    written: Fields = {
        "document": _document(text) if texts[0].endswith(".txt") else None,
        "tokenizer": usual["tokenizer"]
        | {"vocabulary": min(usual["tokenizer"]["vocabulary"], _pieces(text))},
    }
    for length in _LENGTHS:
        for share in (usual["held_out"], 0.1):
            rows = int(size / _BYTES / length * share)
            if rows >= (_MOST if share < 0.1 and length == _LENGTHS[0] else _FEWEST):
                found = written | {"length": length, "held_out": share}
                return found, min(_MOST, 1 << (rows.bit_length() - 1))
    least = -(-_FEWEST * _LENGTHS[-1] * _BYTES * 10 // 1000)
    raise ConfigError(
        f"--source: {source} has {size:,} bytes of text, which leave too little for the held-out loss; "
        f"give at least {least} kB, or name more files by a folder or a pattern in quotes"
    )


def _document(text: str) -> str:
    """Return what a document of a text file is: what blank lines part, or a line where there are none."""
    return "line" if "\n" in text.strip() and "\n\n" not in text.strip() else "paragraph"


def _pieces(text: str) -> int:
    """Return a number of word pieces that a text has for certain: each repeated word becomes one."""
    words = Counter(re.findall(r"[^\W\d_]{2,}", text.lower()))
    repeated = sum(1 for times in words.values() if times > 2)
    return max(100, 1 << (repeated.bit_length() - 1) if repeated else 0)
