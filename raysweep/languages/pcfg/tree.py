"""Derivations as lists of nodes and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from raysweep.languages.base import Sample


@dataclass(frozen=True)
class Node:
    """A node of a derivation in prefix order: `symbol` over words `start` .. `start + width - 1`."""

    depth: int
    start: int
    width: int
    symbol: int
    word: int | None


def nodes(sample: Sample, row: int) -> list[Node]:
    """Return the nodes of a sentence's derivation in prefix order; `word` is None inside the tree."""
    ids = sample.ids[row].tolist()
    symbol, width = sample.latents["symbol"][row].tolist(), sample.latents["width"][row].tolist()
    out = []
    pending = [(0, 0, width[0][0], symbol[0][0])]
    while pending:
        depth, start, size, name = pending.pop()
        out.append(Node(depth, start, size, name, ids[start] if size == 1 else None))
        if size > 1:
            # The right child is the widest node that starts behind `start` and ends with this node.
            middle = next(k for k in range(start + 1, start + size) if k + width[0][k] == start + size)
            pending.append((depth + 1, middle, start + size - middle, symbol[0][middle]))
            pending.append((depth + 1, start, middle - start, symbol[1][middle - 1]))
    return out


def text(derivation: Sequence[Node], symbols: Sequence[str], words: Sequence[str]) -> str:
    """Return a drawing with a line per node, children below their parent.

    >>> text([Node(0, 0, 2, 0, None), Node(1, 0, 1, 1, 5), Node(1, 1, 1, 1, 3)], "SA", "abcdef").split("\\n")
    ['S', '├─ A f', '└─ A d']
    """
    lines = []
    open_at: dict[int, bool] = {}
    ends = {0: -1}
    for node in derivation:
        # A node is its parent's last child when both end at the same word.
        last = node.start + node.width == ends.get(node.depth - 1)
        stem = "".join("│  " if open_at[depth] else "   " for depth in range(1, node.depth))
        branch = "" if node.depth == 0 else ("└─ " if last else "├─ ")
        word = "" if node.word is None else f" {words[node.word]}"
        lines.append(f"{stem}{branch}{symbols[node.symbol]}{word}")
        open_at[node.depth] = not last
        ends[node.depth] = node.start + node.width
    return "\n".join(lines)
