"""Reading a grammar from a file, in either of two notations.

**NLTK's PCFG text** (a file with `->`): `S -> NP VP [0.9] | 'yes' [0.1]`, words in quotes, `%start S` or the
first left-hand side, a backslash at a line's end goes on in the next line.

**The table** released with Liu, Xie, Li and Ma (ICML 2023): one rule a line, `LHS RHS1 [RHS2] probability`.
The start symbol is `S`.  Three fields make a word, or, for `S`, a symbol where one of that name has rules.

In both, blank lines and lines that start with `#` are skipped, the same rule given twice is summed, and a
symbol's rules may miss 1 by one per cent (rounded figures) and are normalised.  Anything else is a
`DataError` naming file and line.  The result is in Chomsky normal form: a right-hand side of three or more
is cut into pairs by helper symbols named `A|B-C`, a word beside others gets a symbol named `'word'`, and
a symbol with a rule to a single symbol takes over that symbol's rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import numpy as np

from raysweep.errors import DataError
from raysweep.languages.pcfg.grammar import Grammar

#: Largest distance from 1 of the sum of a symbol's rules that is taken for rounding.
TOLERANCE = 0.01

_SYMBOL = re.compile(r"\s*([\w/][\w/^<>-]*)\s*")
_ARROW = re.compile(r"\s*->\s*")
_ELEMENT = re.compile(
    r"\s*(?:\[\s*(?P<probability>[^\]\s]+)\s*\]|'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\""
    r"|(?P<bar>\|)|(?P<symbol>[\w/][\w/^<>-]*))\s*"
)

#: A right-hand side: (is a word, name) for each element.
Side = tuple[tuple[bool, str], ...]


@dataclass(frozen=True)
class _Rule:
    line: int
    lhs: str
    rhs: Side
    probability: float


def read(path: str | Path) -> Grammar:
    """Read a grammar; raises `DataError` naming file, line and remedy."""
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise DataError(f"{path}: is not UTF-8 text") from None
    lines = list(_lines(text))
    if any("->" in line for _, line in lines):
        rules, start = _parse_text(path, lines)
    else:
        rules, start = _parse_table(path, lines)
    if not rules:
        raise DataError(f"{path}: holds no rules")
    return _normal_form(path, _summed(path, rules, start), start)


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
            side.append((True, word))
        at = found.end() if found else len(line) + 1


def _parse_table(path: Path, lines: list[tuple[int, str]]) -> tuple[list[_Rule], str]:
    rules: list[_Rule] = []
    fields = [(number, line.split()) for number, line in lines]
    symbols = {parts[0] for _, parts in fields}
    for number, parts in fields:
        if len(parts) not in (3, 4):
            raise DataError(
                f"{path}:{number}: {len(parts)} fields where 'LHS WORD probability' or "
                "'LHS RHS1 RHS2 probability' is expected"
            )
        is_word = len(parts) == 3 and not (parts[0] == "S" and parts[1] in symbols)
        side = tuple((is_word, name) for name in parts[1:-1])
        rules.append(_Rule(number, parts[0], side, _number(path, number, parts[-1])))
    return rules, "S"


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
    _refuse_cycles(path, out, lines)
    return out


def _singles(sides: dict[Side, float]) -> list[str]:
    return [side[0][1] for side in sides if _is_single(side)]


def _is_single(side: Side) -> bool:
    return len(side) == 1 and not side[0][0]


def _refuse_cycles(path: Path, rules: dict[str, dict[Side, float]], lines: dict[str, int]) -> None:
    """Raise `DataError` for a cycle of rules to single symbols: it gives infinitely many trees."""
    try:
        TopologicalSorter({lhs: _singles(sides) for lhs, sides in rules.items()}).prepare()
    except CycleError as error:
        cycle = error.args[1][::-1]
        raise DataError(
            f"{path}:{lines[cycle[0]]}: rules to single symbols form a cycle: {' -> '.join(cycle)}"
        ) from None


def _normal_form(path: Path, rules: dict[str, dict[Side, float]], start: str) -> Grammar:
    root, short = _without_singles(_in_pairs(rules), start)
    reached, pending = set(root), list(root)
    while pending:
        for side in short[pending.pop()]:
            for is_word, name in side:
                if not is_word and name not in reached:
                    reached.add(name)
                    pending.append(name)
    symbols = tuple(sorted(reached, key=_natural))
    words = tuple(sorted({side[0][1] for a in reached for side in short[a] if side[0][0]}, key=_natural))
    if not words:
        raise DataError(f"{path}: no rule that can be reached makes a word")
    number = {name: i for i, name in enumerate(symbols)}
    place = {word: i for i, word in enumerate(words)}
    emission = np.zeros((len(symbols), len(words)))
    binary = []
    for name in symbols:
        for side, probability in short[name].items():
            if len(side) == 1:
                emission[number[name], place[side[0][1]]] = probability
            else:
                binary.append((number[name], number[side[0][1]], number[side[1][1]], probability))
    binary.sort()
    return Grammar(
        symbols=symbols,
        words=words,
        root=np.array([root.get(name, 0.0) for name in symbols]),
        parent=np.array([rule[0] for rule in binary], dtype=np.int64),
        left=np.array([rule[1] for rule in binary], dtype=np.int64),
        right=np.array([rule[2] for rule in binary], dtype=np.int64),
        probability=np.array([rule[3] for rule in binary], dtype=np.float64),
        emission=emission,
    )


def _in_pairs(rules: dict[str, dict[Side, float]]) -> dict[str, dict[Side, float]]:
    """Give words in longer rules symbols of their own, and cut longer rules into pairs."""
    out: dict[str, dict[Side, float]] = {}
    for lhs, sides in rules.items():
        mine = out.setdefault(lhs, {})
        for side, probability in sides.items():
            if len(side) > 1:
                for is_word, name in side:
                    if is_word:
                        out[f"'{name}'"] = {((True, name),): 1.0}
                names = [f"'{name}'" if is_word else name for is_word, name in side]
                # Helpers are named by what they stand for, so rules of one symbol with one end share them.
                for k in range(len(names) - 2, 0, -1):
                    helper = f"{lhs}|{'-'.join(names[k:])}"
                    rest = names[k + 1] if k == len(names) - 2 else f"{lhs}|{'-'.join(names[k + 1 :])}"
                    out[helper] = {((False, names[k]), (False, rest)): 1.0}
                rest = names[1] if len(names) == 2 else f"{lhs}|{'-'.join(names[1:])}"
                side = ((False, names[0]), (False, rest))
            mine[side] = mine.get(side, 0.0) + probability
    return out


def _without_singles(
    rules: dict[str, dict[Side, float]], start: str
) -> tuple[dict[str, float], dict[str, dict[Side, float]]]:
    """Replace rules to single symbols by those symbols' rules, save the start symbol's: they are the root."""

    closed: dict[str, dict[Side, float]] = {}
    for lhs in TopologicalSorter({lhs: _singles(sides) for lhs, sides in rules.items()}).static_order():
        mine: dict[Side, float] = {}
        for side, probability in rules[lhs].items():
            for below, share in closed[side[0][1]].items() if _is_single(side) else [(side, 1.0)]:
                mine[below] = mine.get(below, 0.0) + probability * share
        closed[lhs] = mine
    inner = any((False, start) in side for sides in rules.values() for side in sides)
    if inner:
        return {start: 1.0}, closed
    root = {side[0][1]: p for side, p in rules[start].items() if _is_single(side)}
    own = {side: p for side, p in rules[start].items() if not _is_single(side)}
    if own:
        root[start] = math.fsum(own.values())
        closed[start] = {side: p / root[start] for side, p in own.items()}
    return root, closed


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key by which 'S2' comes before 'S10'."""
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]
    return [*parts, (2, 0, name)]
