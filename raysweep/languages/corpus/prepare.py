"""Preparation of a corpus: documents become rows of tokens, split, tokenised, packed and stored in parts.

The documents of a split, each followed by a separator, are concatenated and cut into rows of `length` tokens.
A row may therefore hold the end of one document and the beginning of the next, and there is no padding.  A
part is a run of documents of the source.  The tokens after its last whole row, less than a row per split, are
dropped, so that a part depends on its own documents alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import logging
import os
import time
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from raysweep.errors import DataError
from raysweep.files import write_atomic
from raysweep.languages.corpus import tokenizer
from raysweep.languages.corpus.fields import TrainedTokenizer
from raysweep.languages.corpus.source import Source
from raysweep.languages.corpus.store import SPLITS, Manifest, Part, Split, Store
from raysweep.languages.corpus.tokenizer import Words
from raysweep.languages.text_split import is_held_out

log = logging.getLogger("raysweep.corpus")

#: A part ends with the document that reaches either limit: about 30 MB of tokens, at most a minute of work.
PART_DOCUMENTS = 1 << 18
PART_CHARACTERS = 1 << 26

_BATCH_DOCUMENTS = 1024  # tokenised at once: enough for all cores,
_BATCH_CHARACTERS = 1 << 20  # and not more text than this, because a token takes a hundred bytes meanwhile
_REPORT_SECONDS = 10.0


def prepare(store: Store, source: Source, recipe: dict[str, Any], words: Words | None) -> Manifest:
    """Return the manifest of a corpus after making its missing parts.

    Finished parts are not made again.  Of several processes that prepare the same corpus, one makes it, and
    the others wait for it.  With `words` None, the tokenizer is trained.
    """
    found = store.manifest()
    if found is not None:
        return found
    store.folder.mkdir(parents=True, exist_ok=True)
    with _alone(store.folder):
        found = store.manifest()
        return _make(store, source, recipe, words) if found is None else found


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the lock of the folder; the system releases it when the process ends, even if it is killed."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.info("another process is preparing the corpus in %s; waiting for it", folder)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make(store: Store, source: Source, recipe: dict[str, Any], words: Words | None) -> Manifest:
    start = time.monotonic()
    store.remove_leftovers()
    words = words or trained(store, source)
    parts = store.parts()
    at = parts[-1].start + parts[-1].documents if parts else 0
    log.info("preparing the corpus of %s in %s%s", source.config.source, store.folder, _from(at))
    progress = _Progress(source, at)
    documents = source.documents(at)
    for k in itertools.count(len(parts)):
        part = _part(store, source, words, k, at, documents, progress)
        if part is None:
            break
        parts.append(part)
        at += part.documents
    manifest = Manifest(
        recipe=recipe,
        versions={name: version(name) for name in ("datasets", "tokenizers")},
        seconds=time.monotonic() - start,
        parts=tuple(parts),
    )
    config = source.config
    for split in SPLITS:
        if not manifest.total(split, "rows"):
            raise DataError(
                f"held_out: of {at} documents, {manifest.total(split, 'documents')} are in '{split}': not "
                f"one row of {config.length} tokens; take another share than {config.held_out}, shorter rows "
                "or more text"
            )
    write_atomic(store.folder / "manifest.json", manifest.model_dump_json(indent=1).encode())
    log.info(
        "corpus of %s: %s rows to train on, %s held out, in %.0f s",
        config.source,
        f"{manifest.total('train', 'rows'):,}",
        f"{manifest.total('held_out', 'rows'):,}",
        manifest.seconds,
    )
    return manifest


def _from(document: int) -> str:
    return f", from document {document} on" if document else ""


def trained(store: Store, source: Source) -> Words:
    """Return the tokenizer trained on the corpus; train it where the store has none yet."""
    config = source.config
    wanted = config.tokenizer
    if not isinstance(wanted, TrainedTokenizer):
        raise TypeError(f"{wanted} is not to be trained")
    path = store.folder / "tokenizer.json"
    if not path.is_file():
        log.info("training a tokenizer of %d word pieces", wanted.vocabulary)

        def texts() -> Iterator[str]:
            every = (text for text in source.documents() if text.strip())
            training = (t for t in every if not is_held_out(t, config.held_out, config.seed))
            return itertools.islice(training, wanted.documents)

        write_atomic(path, tokenizer.train(texts, wanted.vocabulary))
    return Words(path.read_bytes(), config.separator)


def _part(
    store: Store,
    source: Source,
    words: Words,
    k: int,
    start: int,
    documents: Iterator[str],
    progress: _Progress,
) -> Part | None:
    """Make part k from the next documents; None where there are none."""
    config = source.config
    tokens: dict[Split, list[np.ndarray]] = {split: [] for split in SPLITS}
    count = 0
    for batch in _batches(_one_part(documents)):
        count += len(batch)
        texts = [text for text in batch if text.strip()]
        sides = [is_held_out(text, config.held_out, config.seed) for text in texts]
        for held_out, ids in zip(sides, words.encode(texts), strict=True):
            tokens["held_out" if held_out else "train"].append(ids)
        progress.add(len(batch), sum(map(len, batch)))
    if not count:
        return None
    found: dict[Split, tuple[int, np.ndarray]] = {}
    for split in SPLITS:
        flat = np.concatenate([np.empty(0, dtype=words.dtype), *tokens[split]])
        whole = len(flat) // config.length
        rows = flat[: whole * config.length].reshape(whole, config.length)
        found[split] = (len(tokens[split]), rows)
        tokens[split] = []
    return store.write_part(k, start, count, found)


def _one_part(documents: Iterator[str]) -> Iterator[str]:
    """Yield documents up to the end of a part."""
    characters = 0
    for k, text in enumerate(documents, start=1):
        yield text
        characters += len(text)
        if k >= PART_DOCUMENTS or characters >= PART_CHARACTERS:
            return


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield texts in lists large enough to be tokenised efficiently."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        batch.append(text)
        characters += len(text)
        if len(batch) >= _BATCH_DOCUMENTS or characters >= _BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


class _Progress:
    """Logs the progress of the preparation now and then, with the time left where the size is known."""

    def __init__(self, source: Source, start: int) -> None:
        config = source.config
        rows = source.size() if config.documents is None else None
        self._total = config.documents if rows is None else -(-rows // config.rows_per_document)
        self._bytes = source.text_bytes() if self._total is None and not start else None
        self._start, self._documents, self._characters = start, start, 0
        self._began = self._said = time.monotonic()

    def add(self, documents: int, characters: int) -> None:
        """Count tokenised documents."""
        self._documents += documents
        self._characters += characters
        now = time.monotonic()
        if now - self._said < _REPORT_SECONDS:
            return
        self._said = now
        seconds = now - self._began
        share = None
        if self._total:
            share = (self._documents - self._start) / max(1, self._total - self._start)
        elif self._bytes:
            share = self._characters / self._bytes
        left = f", about {seconds * (1 / share - 1):.0f} s left" if share and share <= 1 else ""
        log.info(
            "%s documents tokenised, %.1f MB/s%s",
            f"{self._documents:,}",
            self._characters / seconds / 1e6,
            left,
        )
