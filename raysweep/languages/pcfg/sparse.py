"""The sparse engine: a plan's instructions run by compiled kernels, sentences side by side."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.checks import floor
from raysweep.languages.pcfg.engine import Engine
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.instructions import Code, Instructions, flatten
from raysweep.languages.pcfg.kernels import LANES, charts
from raysweep.languages.pcfg.mixing import Emissions, entropies, log_normalised, normalised

#: Sentences between two kernels: what the first writes is still in the cache when the second reads it.
_CHUNK = 8 * LANES

#: A symbol of more than this share of all words is mixed as a whole row.
_WIDE = 0.125


class SparseEngine(Engine):
    """Charts by compiled kernels on one thread of a CPU; safe to call from several.

    A sentence's answer does not depend on the batch that it comes in, bit for bit.  Working space: the cells
    of `nbytes` for `LANES` sentences, and the leaves of `_CHUNK` sentences.
    """

    name = "sparse"

    def __init__(self, grammar: Grammar, longest: int, device: torch.device) -> None:
        super().__init__(grammar, longest, device)
        self._programs: dict[tuple[int, bool], Instructions | None] = {}
        self._codes: dict[tuple[int, bool, np.dtype], Code] = {}
        self._tables: dict[np.dtype, tuple[np.ndarray, np.ndarray, Emissions]] = {}
        self._space = threading.local()

    def program(self, n: int, everything: bool = False) -> Instructions | None:
        """Return the instructions for n words; None where there is no such sentence."""
        key = (n, everything)
        if key not in self._programs:
            plan = self.plan(n, everything)
            self._programs[key] = None if plan is None else flatten(plan)
        return self._programs[key]

    def flops(self, n: int) -> tuple[int, int]:
        program = self.program(n)
        return (0, 0) if program is None else program.flops

    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        program = self.program(n)
        return 0 if program is None else (2 * program.cells + program.pairs) * dtype.itemsize

    def conditionals(self, words: Tensor, place: Tensor, out: Tensor) -> Tensor:
        shown, where, rows = words.numpy(), place.numpy(), out.numpy()
        sound = np.zeros(len(shown), dtype=bool)
        program = self.program(shown.shape[1])
        if program is None:
            return torch.from_numpy(sound)
        code, _, _, emissions = self._at(program, False, rows.dtype)
        least = floor(out.dtype)
        write = log_normalised if rows.dtype == np.float32 else normalised
        for first in range(0, len(shown), _CHUNK):
            part = slice(first, first + _CHUNK)
            total, _, outside = self._charts(program, False, shown[part], rows.dtype, code.leaf_cells, True)
            # A sentence that shows a word shows it in every context, so the words shown must be possible.
            sound[part] = ((total >= least) & (total * least <= 1)) | (where[part] >= 0).all(axis=1)
            write(outside, code, emissions, where[part], least, rows, sound[part])
        if rows.dtype != np.float32:
            written = place[place >= 0]
            out[written] = out[written].log_()
        return torch.from_numpy(sound)

    def entropies(self, words: Tensor) -> tuple[Tensor, Tensor]:
        shown, dtype = words.numpy(), np.dtype(np.float32)
        out, sound = np.full(len(shown), np.nan), np.zeros(len(shown), dtype=bool)
        program = self.program(shown.shape[1])
        if program is not None:
            sound[:] = True
            code, _, _, emissions = self._at(program, False, dtype)
            for first in range(0, len(shown), _CHUNK):
                part = slice(first, first + _CHUNK)
                _, _, outside = self._charts(program, False, shown[part], dtype, code.leaf_cells, True)
                entropies(outside, code, emissions, floor(torch.float32), out[part], sound[part])
        return torch.from_numpy(out), torch.from_numpy(sound)

    def tops(self, words: Tensor, everything: bool = False) -> Tensor:
        shown, program = words.numpy(), self.program(words.shape[1], everything)
        out = torch.zeros(len(shown), len(self.grammar.symbols), dtype=torch.float64)
        if program is not None:
            cells, symbols = program.cells_of(program.n)
            _, inside, _ = self._charts(program, everything, shown, np.dtype(np.float64), cells, False)
            out[:, symbols] = torch.from_numpy(inside)
        return out

    def totals(self, words: Tensor) -> Tensor:
        program = self.program(words.shape[1])
        if program is None:
            return torch.zeros(len(words), dtype=torch.float64)
        none = np.zeros(0, dtype=np.uint32)
        total, _, _ = self._charts(program, False, words.numpy(), np.dtype(np.float64), none, False)
        return torch.from_numpy(total)

    def prefixes(self, words: Tensor, w: int) -> tuple[Tensor, Tensor]:
        shown, program = words.numpy(), self.program(words.shape[1])
        out = torch.zeros(len(shown), len(self.grammar.symbols), dtype=torch.float64)
        if program is None:
            return out, torch.zeros(len(shown), dtype=torch.float64)
        cells, symbols = program.cells_of(w)
        total, inside, outside = self._charts(program, False, shown, np.dtype(np.float64), cells, True)
        out[:, symbols] = torch.from_numpy(inside * outside)
        return out, torch.from_numpy(total)

    def _charts(
        self,
        program: Instructions,
        everything: bool,
        words: np.ndarray,
        dtype: np.dtype,
        read: np.ndarray,
        both: bool,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Pr(words) [B] and the inside and outside charts [B, len(read)] at the cells `read`."""
        code, leaves, root, _ = self._at(program, everything, dtype)
        words = np.ascontiguousarray(words, dtype=np.int64)
        total = np.empty(len(words))
        inside = np.empty((len(words), len(read)), dtype=dtype)
        outside = np.empty((len(words) if both else 0, len(read)), dtype=dtype)
        sizes = (program.cells, program.cells if both else 0, program.pairs)
        inner, outer, products = self._scratch(sizes, dtype)
        charts(words, leaves, root, code, read, both, inner, outer, products, total, inside, outside)
        return total, inside, outside

    def _scratch(self, sizes: tuple[int, ...], dtype: np.dtype) -> list[np.ndarray]:
        """Return arrays [size, LANES] of this thread's working space, which the next call uses again."""
        line = 64
        need = sum(sizes) * LANES * dtype.itemsize + line
        space = getattr(self._space, "bytes", None)
        if space is None or len(space) < need:
            space = self._space.bytes = np.empty(need, dtype=np.uint8)
        at, out = -space.ctypes.data % line, []
        for size in sizes:
            stop = at + size * LANES * dtype.itemsize
            out.append(space[at:stop].view(dtype).reshape(size, LANES))
            at = stop
        return out

    def _at(
        self, program: Instructions, everything: bool, dtype: np.dtype
    ) -> tuple[Code, np.ndarray, np.ndarray, Emissions]:
        """Return the code, the leaves [V+1, N], the root [N] and the emissions in a dtype."""
        key = (program.n, everything, dtype)
        if key not in self._codes:
            self._codes[key] = program.code.cast(dtype)
        if dtype not in self._tables:
            emission = self.grammar.emission.astype(dtype)
            symbol, word = np.nonzero(emission)
            count = np.bincount(symbol, minlength=len(emission))
            self._tables[dtype] = (
                np.ascontiguousarray(self.leaves.T, dtype=dtype),
                self.grammar.root.astype(dtype),
                Emissions(
                    emission,
                    count > _WIDE * emission.shape[1],
                    np.concatenate([[0], np.cumsum(count)]),
                    word,
                    emission[symbol, word],
                ),
            )
        return self._codes[key], *self._tables[dtype]
