"""The split of texts into those that training sees and those held out, by a keyed hash.

The side of a document depends neither on its place in the source nor on other documents.  Copies of a
document, even if they differ in case, spaces or Unicode form, are on the same side.
"""

from __future__ import annotations

import hashlib
import unicodedata


def normalised(text: str) -> str:
    """Return text in the form that is compared: Unicode NFKC, case folded, one space for any white space.

    >>> normalised(" The\\n CAT ") == normalised("the cat")
    True
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text)
    return " ".join(text.casefold().split())


def is_held_out(text: str, share: float, seed: int) -> bool:
    """Return whether a document is in the `share` that training never sees."""
    key = seed.to_bytes(32, "little")
    digest = hashlib.blake2b(normalised(text).encode(), digest_size=8, key=key).digest()
    return int.from_bytes(digest, "little") < share * 2.0**64
