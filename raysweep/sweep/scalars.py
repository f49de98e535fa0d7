"""Plain scalars as the core schema of YAML 1.2 reads them (YAML 1.2.2, section 10.3.2).

One thing is different: a whole number may be written with an exponent, as in `1e3`.
`flow` writes values so that they are read as they were.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

Scalar = str | int | float | bool | None

#: The largest whole number of a sweep file: what 64 bits with a sign hold.
LARGEST = 2**63 - 1

_INTEGER = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
#: Whole numbers up to this one are exact in float64, so `1e15` means what it says.
EXACT = 2.0**53
#: Text that YAML reads as it stands, if it is no number, truth value or null.
_SAFE = re.compile(r"[A-Za-z0-9./~_][A-Za-z0-9./~_*?-]*\Z")
_INFINITE = re.compile(r"[-+]?\.(inf|Inf|INF)\Z")


def resolve(text: str) -> Scalar:
    """Return the value of a plain scalar in the core schema of YAML 1.2.

    Raises `ValueError` for a whole number beyond `LARGEST`.

    >>> [resolve(t) for t in ("1e-3", "on", "0o17", "~", "12:30", "True", "2.5e3", "2500.0")]
    [0.001, 'on', 15, None, '12:30', True, 2500, 2500.0]
    """
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text in ("true", "True", "TRUE"):
        return True
    if text in ("false", "False", "FALSE"):
        return False
    for pattern, base in ((_INTEGER, 10), (_OCTAL, 8), (_HEXADECIMAL, 16)):
        if pattern.match(text):
            return _whole(text, base)
    if _FLOAT.match(text):
        value = float(text)
        whole = "e" in text.lower() and value.is_integer() and abs(value) <= EXACT
        return int(value) if whole else value
    if _INFINITE.match(text):
        return -math.inf if text.startswith("-") else math.inf
    if text in (".nan", ".NaN", ".NAN"):
        return math.nan
    return text


def _whole(text: str, base: int) -> int:
    digits = text.lstrip("+-").removeprefix("0o").removeprefix("0x").lstrip("0")
    # Python takes long over thousands of digits, and refuses most of them.
    value = int(digits or "0", base) if len(digits) < 30 else LARGEST + 1
    if value > LARGEST:
        raise ValueError(f"{len(digits)} digits are too many: whole numbers end at {LARGEST:,}")
    return -value if text.startswith("-") else value


def flow(value: Any) -> str:
    """Return a value as a sweep file writes it on one line.

    >>> flow({"a": ["x/1", "1e3", "it's: so", 0.5, None]})
    '{a: [x/1, "1e3", "it\\'s: so", 0.5, null]}'
    """
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, str):
        plain = _SAFE.match(value) and isinstance(resolve(value), str)
        return value if plain else json.dumps(value, ensure_ascii=False)
    if isinstance(value, Sequence):
        return "[" + ", ".join(map(flow, value)) + "]"
    return json.dumps(value)
