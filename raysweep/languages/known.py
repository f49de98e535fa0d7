"""A language as the key of a cache in this process."""

from __future__ import annotations

from raysweep.languages.base import Language


class Known:
    """A language, equal to another with the same fingerprint."""

    def __init__(self, language: Language) -> None:
        self.language = language

    def __hash__(self) -> int:
        return hash(self.language.fingerprint)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Known) and self.language.fingerprint == other.language.fingerprint
