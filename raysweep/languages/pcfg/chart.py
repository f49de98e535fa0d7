"""The plan's inside and outside passes as torch operations over all starts of a width at once.

    I_1[A, i] = emission[A, x_i] (or its sum over words where x_i is hidden), scaled
    I_w[A, i] = sum_{A -> B C} p sum_u I_u[B, i] I_{w-u}[C, i+u]
    O_n[A, 0] = root[A];   each term p I_u[B, i] I_{w-u}[C, i+u] hands O_w[A, i] p I_{w-u}[C, i+u] to
                           O_u[B, i] and O_w[A, i] p I_u[B, i] to O_{w-u}[C, i+u]

(Baker 1979; Lari and Young 1990.)  Charts are lists by width of tensors [A, n-w+1, B] over active symbols,
positions and sentences.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.pcfg.engine import TorchEngine
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.plan import Plan, Width

Chart = list[Tensor]


@dataclass(frozen=True)
class _Split:
    """Pairs `first:last` of a width, cut after `u` words; `left`, `right` are rows of widths u and w-u."""

    u: int
    first: int
    last: int
    left: Tensor
    right: Tensor


@dataclass(frozen=True)
class _Level:
    """Work at width `w`: `rules` [A, Q] and the splits of its pairs."""

    w: int
    rules: Tensor
    splits: tuple[_Split, ...]


@dataclass(frozen=True)
class _Program:
    """A plan on a device: the symbols of each width and the work at each width."""

    n: int
    active: tuple[Tensor, ...]
    levels: tuple[_Level, ...]


class PlanEngine(TorchEngine):
    """Charts by torch operations on the cells that a plan keeps.

    Bitwise reproducible on a CPU.  On CUDA, sums into one cell run through atomic additions, whose order,
    and with it the last place of a result, may differ from call to call.
    """

    name = "torch"

    def __init__(self, grammar: Grammar, longest: int, device: torch.device) -> None:
        super().__init__(grammar, longest, device)
        self._programs: dict[tuple[int, bool, torch.dtype], _Program | None] = {}
        # In many grammars nearly all widths of all plans have the same rules.
        self._rules: dict[tuple[torch.dtype, bytes], Tensor] = {}

    def flops(self, n: int) -> tuple[int, int]:
        plan = self.plan(n)
        return (0, 0) if plan is None else plan.flops

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        plan = self.plan(n) or self.plan(n, True)
        return 1 if plan is None else plan.elements * dtype.itemsize

    def leaf_weights(self, words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        program = self._program(words.shape[1], False, dtype)
        if program is None:
            none = torch.zeros(*words.shape, 0, dtype=dtype, device=words.device)
            return none, torch.zeros(0, dtype=torch.int64, device=words.device), none.sum(dim=(1, 2))
        n = program.n
        root = self.table("root", dtype)[program.active[n]]
        chart = inside(program, self._leaves(program, words, dtype))
        below = outside(program, chart, root)[1]
        return below.permute(2, 1, 0), program.active[1], root @ chart[n][:, 0]

    def tops(self, words: Tensor, everything: bool = False) -> Tensor:
        n, dtype = words.shape[1], torch.float64
        out = torch.zeros(len(words), len(self.grammar.symbols), dtype=dtype, device=words.device)
        program = self._program(n, everything, dtype)
        if program is not None:
            for part in self._passes(words, dtype):
                chart = inside(program, self._leaves(program, words[part], dtype))
                out[part, program.active[n]] = chart[n][:, 0].T
        return out

    def prefixes(self, words: Tensor, w: int) -> tuple[Tensor, Tensor]:
        n, dtype = words.shape[1], torch.float64
        out = torch.zeros(len(words), len(self.grammar.symbols), dtype=dtype, device=words.device)
        total = torch.zeros(len(words), dtype=dtype, device=words.device)
        program = self._program(n, False, dtype)
        if program is not None:
            root = self.table("root", dtype)[program.active[n]]
            for part in self._passes(words, dtype):
                chart = inside(program, self._leaves(program, words[part], dtype))
                total[part] = root @ chart[n][:, 0]
                joint = chart[w] * outside(program, chart, root)[w]
                out[part, program.active[w]] = joint[:, 0].T
        return out, total

    def _leaves(self, program: _Program, words: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the scaled leaves [A, n, B] of words [B, n]."""
        scaled = self.table("leaves", dtype)[program.active[1]]
        return scaled.index_select(1, words.T.reshape(-1)).view(len(scaled), words.shape[1], -1)

    def _program(self, n: int, everything: bool, dtype: torch.dtype) -> _Program | None:
        key = (n, everything, dtype)
        if key not in self._programs:
            plan = self.plan(n, everything)
            self._programs[key] = None if plan is None else self._placed(plan, dtype)
        return self._programs[key]

    def _placed(self, plan: Plan, dtype: torch.dtype) -> _Program:
        row_of: np.ndarray = np.cumsum(plan.active, axis=1) - 1
        levels = []
        for width in plan.widths:
            rows = row_of[width.w][width.parent]
            rules = np.zeros((int(plan.active[width.w].sum()), len(width.left)))
            rules[rows, width.pair] = width.probability
            digest = repr(rules.shape).encode() + hashlib.sha256(rules.tobytes()).digest()
            if (dtype, digest) not in self._rules:
                self._rules[dtype, digest] = torch.from_numpy(rules).to(self.device, dtype)
            splits = self._splits(width, row_of)
            levels.append(_Level(width.w, self._rules[dtype, digest], splits))
        active = (torch.from_numpy(np.nonzero(row)[0]).to(self.device) for row in plan.active)
        return _Program(plan.n, tuple(active), tuple(levels))

    def _splits(self, width: Width, row_of: np.ndarray) -> tuple[_Split, ...]:
        out = []
        for split in width.splits:
            pairs = slice(split.first, split.last)
            rows = (row_of[split.u][width.left[pairs]], row_of[width.w - split.u][width.right[pairs]])
            left, right = (torch.from_numpy(row).to(self.device) for row in rows)
            out.append(_Split(split.u, split.first, split.last, left, right))
        return tuple(out)


def inside(program: _Program, leaves: Tensor) -> Chart:
    """Return the inside chart; `leaves` [A, n, B] are those of the active symbols at width 1."""
    n, batch = leaves.shape[1:]
    chart = [leaves.new_zeros(0), leaves]
    chart += [leaves.new_zeros(len(program.active[w]), n - w + 1, batch) for w in range(2, n + 1)]
    for level in program.levels:
        w, starts = level.w, n - level.w + 1
        pairs = leaves.new_zeros(level.rules.shape[1], starts, batch)
        for split in level.splits:
            left = chart[split.u].narrow(1, 0, starts).index_select(0, split.left)
            right = chart[w - split.u].narrow(1, split.u, starts).index_select(0, split.right)
            pairs[split.first : split.last].addcmul_(left, right)
        torch.mm(level.rules, pairs.view(len(pairs), -1), out=chart[w].view(len(chart[w]), -1))
    return chart


def outside(program: _Program, chart: Chart, top: Tensor) -> Chart:
    """Return the outside chart for an inside chart; `top` [A] weighs the symbols active at width n."""
    n = program.n
    out = [torch.zeros_like(cells) for cells in chart]
    out[n] += top[:, None, None]
    for level in reversed(program.levels):
        w, starts, batch = level.w, n - level.w + 1, chart[1].shape[2]
        pairs = torch.mm(level.rules.T, out[w].view(len(out[w]), -1)).view(-1, starts, batch)
        for split in level.splits:
            u, above = split.u, pairs[split.first : split.last]
            left = chart[u].narrow(1, 0, starts).index_select(0, split.left)
            right = chart[w - u].narrow(1, u, starts).index_select(0, split.right)
            out[u].narrow(1, 0, starts).index_add_(0, split.left, right.mul_(above))
            out[w - u].narrow(1, u, starts).index_add_(0, split.right, left.mul_(above))
    return out
