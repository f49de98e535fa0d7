"""The choice of a model's tokens that are words: the most frequent ones, special tokens aside."""

from __future__ import annotations

import hashlib
import json
import logging
from collections import Counter
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.files import write_atomic
from raysweep.languages.cache import cache_directory
from raysweep.languages.causal_lm.loading import Source
from raysweep.languages.causal_lm.network import Network
from raysweep.languages.causal_lm.sampling import block_size, draw_block

_log = logging.getLogger(__name__)

_LINES = 4096  # of a corpus, tokenised at a time


def by_corpus(source: Source, bos: int, keep: int, path: Path) -> Tensor:
    """Return the `keep` most frequent tokens of a text file, ascending [keep].

    Every line that is not blank is a separate text; of equally frequent tokens the lower id is taken.
    Raises `DataError` for a file with fewer different tokens.
    """
    allowed = set(_allowed(source, bos, keep).tolist())
    counts: Counter[int] = Counter()
    try:
        with path.open(encoding="utf-8") as file:
            lines = (text for line in file if (text := line.rstrip("\n")).strip())
            while batch := list(islice(lines, _LINES)):
                for ids in source.tokenizer(batch, add_special_tokens=False)["input_ids"]:
                    counts.update(ids)
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"path: {path} is no text file that can be read: {error}") from error
    found = sorted(((-count, token) for token, count in counts.items() if token in allowed))[:keep]
    if len(found) < keep:
        raise DataError(
            f"path: only {len(found)} different tokens of {source.name} occur in {path}, fewer than "
            f"keep: {keep}; keep fewer, or give more text"
        )
    return torch.tensor(sorted(token for _, token in found))


def by_samples(source: Source, bos: int, keep: int, *, samples: int, length: int, seed: int) -> Tensor:
    """Return the `keep` tokens that the model itself writes most, ascending [keep].

    The model writes `samples` sentences (rounded up to whole blocks) of `length` tokens with all of its
    vocabulary but the special tokens.  A token's frequency is the mean of the probabilities that the model
    gives it there, which is less noisy than its count.  All in float64, so that rounding does not decide.
    The result is kept in the user's cache folder: it takes as many passes of the model as a sentence has
    words.
    """
    allowed = _allowed(source, bos, keep)
    file = _cache_file(source, repr((1, bos, keep, samples, length, seed, len(allowed))))
    if file.is_file():
        return torch.tensor(json.loads(file.read_text(encoding="utf-8")))
    network = Network(source, allowed).moved(allowed.device, torch.float64)
    total = torch.zeros(len(allowed), dtype=torch.float64)
    with torch.no_grad():
        for block in range(-(-samples // block_size(network))):
            total += draw_block(network, bos, length, seed=seed, purpose="causal_lm keep", block=block)[1]
    order = torch.argsort(total, descending=True, stable=True)[:keep]
    kept = allowed[order].sort().values
    try:
        write_atomic(file, json.dumps(kept.tolist()).encode())
    except OSError as error:
        _log.warning("the kept tokens are computed again next time: %s cannot be written: %s", file, error)
    return kept


def choice(source: Source, bos: int) -> list[int]:
    """Return the ids of the tokens that may be words, ascending."""
    # The weights may have rows behind the tokenizer's last token.
    size = min(source.config.vocab_size, len(source.tokenizer))
    return [token for token in range(size) if token not in source.special and token != bos]


def _allowed(source: Source, bos: int, keep: int) -> Tensor:
    """Return the ids that may be words, ascending; raises `ConfigError` where there are not `keep`."""
    allowed = choice(source, bos)
    if keep > len(allowed):
        raise ConfigError(
            f"keep: {keep} words, but {source.name} has {len(allowed)} tokens that are not special; "
            f"keep at most {len(allowed)}"
        )
    return torch.tensor(allowed)


def _cache_file(source: Source, what: str) -> Path:
    special = repr(sorted(source.special)).encode()
    name = hashlib.sha256(source.digest + special + what.encode()).hexdigest()
    return cache_directory() / "causal_lm" / f"{name}.json"
