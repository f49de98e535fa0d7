"""Plain scalars as the core schema of YAML 1.2 reads them (YAML 1.2.2, section 10.3.2)."""

from __future__ import annotations

import math
import re

Scalar = str | int | float | bool | None

_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z")


def resolve(text: str) -> Scalar:
    """Return the value of a plain scalar in the core schema of YAML 1.2.

    >>> [resolve(t) for t in ("1e-3", "on", "0o17", "~", "12:30", "True")]
    [0.001, 'on', 15, None, '12:30', True]
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    if _INTEGER.match(text):
        return int(text)
    if _OCTAL.match(text):
        return int(text[2:], 8)
    if _HEXADECIMAL.match(text):
        return int(text[2:], 16)
    if _FLOAT.match(text):
        return float(text)
    if _INFINITE.match(text):
        return -math.inf if text.startswith("-") else math.inf
    if text in (".nan", ".NaN", ".NAN"):
        return math.nan
    return text
