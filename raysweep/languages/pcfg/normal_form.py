"""Chomsky normal form of rules with right-hand sides of any length, and its arrays.

A right-hand side of three or more is cut into pairs by helper symbols, a word beside others gets a symbol of
its own, and a symbol with a rule to a single symbol takes over that symbol's rules.  No derivation changes
its probability; where rules to single symbols form a cycle there is no such form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from graphlib import TopologicalSorter

import numpy as np

from raysweep.errors import DataError
from raysweep.languages.pcfg.grammar import Grammar

#: A right-hand side: (is a word, name) for each element.
Side = tuple[tuple[bool, str], ...]


def normal_form(
    rules: dict[str, dict[Side, float]], start: str, notes: tuple[str, ...], *, unreached: bool = False
) -> Grammar:
    """Return the grammar of acyclic `rules`; raises `DataError` where none in reach makes a word.

    With `unreached`, all symbols that are left of a rule are kept, but for a start symbol that only names the
    roots.
    """
    root, short = _without_singles(_in_pairs(rules), start)
    kept = reached(root, short)
    if not any(side[0][0] for name in kept for side in short[name]):
        raise DataError("no rule that can be reached makes a word")
    if unreached:
        kept |= short.keys() - ({start} - root.keys())
    symbols = tuple(sorted(kept, key=natural))
    words = tuple(sorted({side[0][1] for a in kept for side in short[a] if side[0][0]}, key=natural))
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
        notes=notes,
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
    for lhs in TopologicalSorter({lhs: singles(sides) for lhs, sides in rules.items()}).static_order():
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


def natural(name: str) -> list[tuple[int, int, str]]:
    """Sort key by which 'S2' comes before 'S10'."""
    parts = [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name)]
    return [*parts, (2, 0, name)]


def reached(roots: Iterable[str], rules: dict[str, dict[Side, float]]) -> set[str]:
    """Return the symbols of all derivations from `roots`."""
    found, pending = set(roots), list(roots)
    while pending:
        for side in rules[pending.pop()]:
            for is_word, name in side:
                if not is_word and name not in found:
                    found.add(name)
                    pending.append(name)
    return found


def singles(sides: dict[Side, float]) -> list[str]:
    return [side[0][1] for side in sides if _is_single(side)]


def _is_single(side: Side) -> bool:
    return len(side) == 1 and not side[0][0]
