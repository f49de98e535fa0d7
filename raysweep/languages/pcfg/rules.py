"""Grammars from files, in either of two notations.

**NLTK's PCFG text** (a file with `->`): `S -> NP VP [0.9] | 'yes' [0.1]`, words in quotes, `%start S` or the
first left-hand side, a backslash at a line's end goes on in the next line.

**The table** released with Liu, Xie, Li and Ma (ICML 2023): one rule a line, `LHS RHS1 [RHS2] probability`.
The start symbol is `S`.  Three fields make a word, or, for `S`, a symbol where one of that name has rules.

A field in quotes is a word, which may then hold blanks.

In both, blank lines and lines that start with `#` are skipped, spaces and tabs are alike, the same rule given
twice is summed, and a symbol's rules may miss 1 by one per cent (rounded figures) and are normalised.
Anything else is a `DataError` naming file and line.  The result is in Chomsky normal form: a right-hand side
of three or more is cut into pairs by helper symbols named `A|B-C`, a word beside others gets a symbol named
`'word'`, and a symbol with a rule to a single symbol takes over that symbol's rules, which is exact as long
as such rules form no cycle; a cycle is an error.

Symbols that cannot be reached from the start symbol, and symbols that derive no string of words, are no
errors but seldom intended: they are logged as warnings and kept as the `notes` of the grammar.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from pathlib import Path

from raysweep.errors import DataError
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.normal_form import Side, natural, normal_form, reached, singles

_log = logging.getLogger(__name__)

#: Largest distance from 1 of the sum of a symbol's rules that is taken for rounding.
TOLERANCE = 0.01

_SYMBOL = re.compile(r"\s*([\w/](?:(?!->)[\w/^<>-])*)\s*")
_ARROW = re.compile(r"\s*->\s*")
_NUMBER = re.compile(r"[\d.]+(e-?\d+)?")
_ELEMENT = re.compile(
    r"\s*(?:\[\s*(?P<probability>[^\]\s]+)\s*\]|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\""
    r"|(?P<bar>\|)|(?P<symbol>[\w/](?:(?!->)[\w/^<>-])*))\s*"
)

#: A field of the table: a word in quotes, or what stands between blanks (such as the words 's and '').
_FIELD = re.compile(r"""'[^']+'(?!\S)|"[^"]+"(?!\S)|\S+""")
#: Names that a note lists before it only counts them.
_NAMED = 10


@dataclass(frozen=True)
class _Rule:
    line: int
    lhs: str
    rhs: Side
    probability: float


def read(path: str | Path, *, unreached: bool = False) -> Grammar:
    """Read a grammar; raises `DataError` naming file, line and remedy.  Notes are logged once a process.

    With `unreached`, symbols that the start symbol never reaches stay in the grammar, with their words.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text") from None
    lines = list(_lines(text))
    if any(_is_text(line) for _, line in lines):
        rules, start = _parse_text(path, lines)
    else:
        rules, start = _parse_table(path, lines)
    if not rules:
        raise DataError(f"{path}: holds no rules")
    summed = _summed(path, rules, start)
    notes = tuple(_notes(rules, summed, start, unreached))
    try:
        grammar = normal_form(summed, start, notes, unreached=unreached)
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    for note in notes:
        _warn(f"{path}: {note}")
    return grammar


@cache
def _warn(message: str) -> None:
    _log.warning(message)


def _is_text(line: str) -> bool:
    """Return whether a line is of NLTK's notation; `A -> 0.5` is a table's rule for the word '->'."""
    lhs = _SYMBOL.match(line)
    arrow = _ARROW.match(line, lhs.end()) if lhs else None
    return line.startswith("%") or (arrow is not None and not _NUMBER.fullmatch(line[arrow.end() :]))


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Number the lines from 1, without blanks and comments, continued lines joined to their first."""
    begun, held = 0, ""
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip()
        if not held and (not line or line.startswith("#")):
            continue
        begun = begun if held else number
        held += line
        if held.endswith("\\"):
            held = held[:-1].rstrip() + " "
        else:
            yield begun, held
            held = ""
    if held:
        yield begun, held


def _number(path: Path, line: int, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise DataError(f"{path}:{line}: '{text}' is not a probability") from None
    if not 0.0 <= value <= 1.0 + TOLERANCE:
        raise DataError(f"{path}:{line}: {text} is not a probability between 0 and 1")
    return value


def _parse_text(path: Path, lines: list[tuple[int, str]]) -> tuple[list[_Rule], str]:
    rules: list[_Rule] = []
    start = ""
    for number, line in lines:
        if line.startswith("%"):
            words = line.split()
            if len(words) != 2 or words[0] != "%start":
                raise DataError(f"{path}:{number}: '{line}' is not understood; only '%start SYMBOL' is")
            start = words[1]
            continue
        lhs = _SYMBOL.match(line)
        arrow = _ARROW.match(line, lhs.end()) if lhs else None
        if not lhs or not arrow:
            raise DataError(f"{path}:{number}: expected 'SYMBOL -> ...', found '{line}'")
        rules.extend(_alternatives(path, number, lhs[1], line, arrow.end()))
    return rules, start or (rules[0].lhs if rules else "")


def _alternatives(path: Path, number: int, lhs: str, line: str, at: int) -> Iterator[_Rule]:
    side: list[tuple[bool, str]] = []
    probability: float | None = None
    while at <= len(line):
        found = _ELEMENT.match(line, at) if at < len(line) else None
        if at < len(line) and not found:
            raise DataError(f"{path}:{number}: not understood from '{line[at:]}' on")
        if found is None or found["bar"]:
            if probability is None:
                raise DataError(f"{path}:{number}: a rule of {lhs} has no [probability]")
            if not side:
                raise DataError(f"{path}:{number}: a rule of {lhs} is empty; empty words are not supported")
            yield _Rule(number, lhs, tuple(side), probability)
            side, probability = [], None
        elif probability is not None:
            raise DataError(f"{path}:{number}: expected '|' or the line's end before '{line[at:]}'")
        elif found["probability"]:
            probability = _number(path, number, found["probability"])
        elif found["symbol"]:
            side.append((False, found["symbol"]))
        else:
            word = found["single"] if found["single"] is not None else found["double"]
            if not word:
                raise DataError(f"{path}:{number}: a rule of {lhs} has an empty word; it is not supported")
            side.append((True, word))
        at = found.end() if found else len(line) + 1


def _parse_table(path: Path, lines: list[tuple[int, str]]) -> tuple[list[_Rule], str]:
    rules: list[_Rule] = []
    fields = [(number, _FIELD.findall(line)) for number, line in lines]
    symbols = {parts[0] for _, parts in fields}
    for number, parts in fields:
        if len(parts) not in (3, 4):
            raise DataError(
                f"{path}:{number}: {len(parts)} fields where 'LHS WORD probability' or "
                "'LHS RHS1 RHS2 probability' is expected"
            )
        bare = [_unquoted(name) for name in parts[1:-1]]
        if len(parts) == 3:
            is_word = bare[0] != parts[1] or not (parts[0] == "S" and parts[1] in symbols)
            side: Side = ((is_word, bare[0]),)
        else:
            side = tuple((name != part, name) for name, part in zip(bare, parts[1:-1], strict=True))
        rules.append(_Rule(number, parts[0], side, _number(path, number, parts[-1])))
    return rules, "S"


def _unquoted(field: str) -> str:
    quoted = len(field) > 2 and field[0] == field[-1] and field[0] in "'\""
    return field[1:-1] if quoted else field


def _summed(path: Path, rules: list[_Rule], start: str) -> dict[str, dict[Side, float]]:
    """Sum duplicates and normalise each symbol's rules; check sums and that all symbols have rules."""
    lines: dict[str, int] = {}
    given: dict[str, dict[Side, list[float]]] = {}
    for rule in rules:
        lines.setdefault(rule.lhs, rule.line)
        given.setdefault(rule.lhs, {}).setdefault(rule.rhs, []).append(rule.probability)
    if start not in given:
        raise DataError(f"{path}: the start symbol {start} has no rules")
    for rule in rules:
        for is_word, name in rule.rhs:
            if not is_word and name not in given:
                raise DataError(f"{path}:{rule.line}: the symbol {name} has no rules")
    out: dict[str, dict[Side, float]] = {}
    for lhs, sides in given.items():
        # fsum is exact, so the order of the rules in the file leaves no trace.
        total = math.fsum(p for listed in sides.values() for p in listed)
        if abs(total - 1.0) > TOLERANCE:
            raise DataError(
                f"{path}:{lines[lhs]}: the rules of {lhs} sum to {total:.6g}; they must sum to 1 within 1 %"
            )
        out[lhs] = {
            side: math.fsum(listed) / total for side, listed in sides.items() if math.fsum(listed) > 0
        }
    _refuse_cycles(path, out, rules)
    return out


def _notes(
    rules: list[_Rule], summed: dict[str, dict[Side, float]], start: str, unreached: bool
) -> Iterator[str]:
    """Yield a line on symbols that no sentence reaches, and one on symbols that derive no words."""
    lines: dict[str, int] = {}
    for rule in rules:
        lines.setdefault(rule.lhs, rule.line)
    used = reached([start], summed)
    lost = [name for name in summed if name not in used]
    if lost:
        fate = "kept for the labels" if unreached else "left out"
        yield f"unreachable from {start} and {fate}: {_listed(lost, lines)}"
    productive: set[str] = set()
    while True:
        more = {
            lhs
            for lhs, sides in summed.items()
            if any(all(is_word or name in productive for is_word, name in side) for side in sides)
        }
        if more == productive:
            break
        productive = more
    barren = [name for name in summed if name in used and name not in productive]
    if barren:
        yield f"unproductive, for they derive no string of words: {_listed(barren, lines)}"


def _listed(names: list[str], lines: dict[str, int]) -> str:
    named = ", ".join(f"{name} (line {lines[name]})" for name in sorted(names, key=natural)[:_NAMED])
    return named + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")


def _refuse_cycles(path: Path, summed: dict[str, dict[Side, float]], rules: list[_Rule]) -> None:
    """Raise `DataError` for a cycle of rules to single symbols: it gives infinitely many trees."""
    try:
        TopologicalSorter({lhs: singles(sides) for lhs, sides in summed.items()}).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1][::-1]
        lines = [
            next(rule.line for rule in rules if rule.lhs == a and rule.rhs == ((False, b),))
            for a, b in pairwise(cycle)
        ]
        raise DataError(
            f"{path}:{lines[0]}: rules to single symbols form a cycle: {' -> '.join(cycle)} "
            f"(line{'s' * (len(lines) > 1)} {', '.join(map(str, lines))}); remove one of them"
        ) from None
