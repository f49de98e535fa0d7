"""Tokenizers of the `tokenizers` library: from the hub, from a folder, or trained on a corpus.

A tokenizer turns text into words 0 .. V-1.  Its own special tokens are words too, but occur only where the
corpus puts them: one separator after every document.  "[MASK]" in the text is ordinary text.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import tokenizers

from raysweep.errors import ConfigError, DataError
from raysweep.languages.labelled.sentences import OUTSIDE
from raysweep.languages.sources import brief

#: Tokens that end a document, in order of preference, where none is named.
SEPARATORS = ("[SEP]", "</s>", "<|endoftext|>", "<eos>", "<|end_of_text|>")
_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def fetch(name: str) -> bytes:
    """Return the `tokenizer.json` of a local folder or file, or of a hub model.

    Raises `ConfigError` for a folder that has none, `DataError` where the hub has none or cannot be reached.
    """
    path = Path(os.path.expanduser(name))
    if os.path.isdir(path):
        if not (path / "tokenizer.json").is_file():
            raise ConfigError(
                f"tokenizer: folder {path} has no tokenizer.json; the save_pretrained of a fast tokenizer of "
                "transformers writes one"
            )
        path = path / "tokenizer.json"
    if os.path.isfile(path):
        return path.read_bytes()
    import huggingface_hub

    try:
        return Path(huggingface_hub.hf_hub_download(name, "tokenizer.json")).read_bytes()
    except Exception as error:  # network, name, login and server each have errors of their own
        raise DataError(
            f"tokenizer: '{name}' is no local folder, and the hub gives no tokenizer.json of it "
            f"({brief(error)}); name a folder, or train one: {{train: wordpiece}}"
        ) from error


def train(texts: Callable[[], Iterable[str]], vocabulary: int) -> bytes:
    """Train a WordPiece tokenizer with BERT's lower-casing normaliser; return its `tokenizer.json`.

    `texts` is called twice and must return the same texts both times.  The same texts give the same bytes.
    Memory grows with the number of different words, not with the length of the text.  Raises `DataError`
    where the texts give fewer than `vocabulary` word pieces.
    """
    letters: Counter[str] = Counter()
    first = _untrained()
    first.train_from_iterator(_counted(texts(), letters), _trainer(len(_SPECIAL), _SPECIAL))
    # The first training numbers letters within words in the order of a hash table, and numbers decide ties
    # between merges.  A second training, with the letters in sorted order, gives the same result every time.
    most = sorted(letters, key=lambda c: (-letters[c], c))[: min(1000, vocabulary // 4)]
    within = sorted(f"##{c}" for c in most if first.token_to_id(f"##{c}") is not None)
    second = _untrained()
    second.train_from_iterator(texts(), _trainer(vocabulary, [*_SPECIAL, *within], most))
    pieces = second.get_vocab()
    if len(pieces) != vocabulary:
        raise DataError(
            f"tokenizer.vocabulary: the training documents give {len(pieces)} word pieces, not {vocabulary}; "
            f"use {len(pieces)} or fewer, or more documents"
        )
    made = _untrained(pieces)
    made.add_special_tokens(list(_SPECIAL))
    return made.to_str().encode()


def _untrained(pieces: dict[str, int] | None = None) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(pieces or {}, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.decoder = tokenizers.decoders.WordPiece()
    return made


def _trainer(
    vocabulary: int, special: Sequence[str], alphabet: Sequence[str] | None = None
) -> tokenizers.trainers.WordPieceTrainer:
    return tokenizers.trainers.WordPieceTrainer(
        vocab_size=vocabulary,
        special_tokens=list(special),
        initial_alphabet=list(alphabet or ()),
        limit_alphabet=sys.maxunicode if alphabet is None else len(alphabet),
        show_progress=False,
    )


def _counted(texts: Iterable[str], letters: Counter[str]) -> Iterator[str]:
    """Yield texts and count their letters after normalisation."""
    # A normaliser of its own, because that of a tokenizer in training is locked.
    normalizer = tokenizers.normalizers.BertNormalizer(lowercase=True)
    for text in texts:
        letters.update(normalizer.normalize_str(text))
        yield text
    for c in [c for c in letters if c.isspace()]:
        del letters[c]


class Words:
    """A tokenizer as a map from text to word ids."""

    def __init__(self, content: bytes, separator: str | None = None) -> None:
        """Read a `tokenizer.json`; raises `ConfigError` for a separator that it does not have."""
        self.digest = hashlib.sha256(content).hexdigest()
        try:
            self._tokenizer = tokenizers.Tokenizer.from_str(content.decode())
        except Exception as error:  # the library raises the bare class
            raise ConfigError(f"tokenizer: its tokenizer.json cannot be read: {error}") from error
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(vocabulary.values()) + 1
        known = [token for token in SEPARATORS if token in vocabulary]
        token = separator or (known[0] if known else None)
        if token is None or token not in vocabulary:
            missing = f"none of {', '.join(SEPARATORS)}" if token is None else f"no token '{token}'"
            raise ConfigError(f"separator: the tokenizer has {missing}; name the one that ends a document")
        self.separator = vocabulary[token]
        model = json.loads(content)["model"]
        #: The word for text outside the vocabulary; None where there is none, as for bytes.
        self.unknown: int | None = model.get("unk_id", vocabulary.get(model.get("unk_token")))
        #: The smallest type that holds all words.
        self.dtype = np.dtype(np.uint16 if self.size <= 1 << 16 else np.int32)

    def encode(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the word ids of each text, with the separator at the end."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array([*one.ids, self.separator], dtype=self.dtype) for one in found]

    def known(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Return the word ids of each text, int64, `OUTSIDE` for the unknown word."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        ids = [np.array(one.ids, dtype=np.int64) for one in found]
        return ids if self.unknown is None else [np.where(w == self.unknown, OUTSIDE, w) for w in ids]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of word ids, including special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))
