"""The sparse engine: a plan's instructions run by compiled kernels, sentences side by side."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from raysweep.compiled.simd import BYTES, LANES, aligned
from raysweep.languages.pcfg.batch import CHUNK, Library, library, write_conditionals
from raysweep.languages.pcfg.engine import Engine, Groups, floor, spans
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.instructions import Code, Instructions, flatten
from raysweep.languages.pcfg.kernels import charts
from raysweep.languages.pcfg.mixing import Mixture, entropies, normalised

_NO_CELLS = np.zeros(0, dtype=np.uint32)

#: A symbol of more than this share of all words is mixed as a whole row.
_WIDE = 0.125


class SparseEngine(Engine):
    """Charts by compiled kernels on one thread of a CPU; safe to call from several.

    A sentence's answer does not depend on the batch that it comes in, bit for bit.  Working space: the cells
    of `nbytes` for `LANES` sentences, and the leaves of `CHUNK` sentences.
    """

    name = "sparse"

    def __init__(self, grammar: Grammar, longest: int, device: torch.device) -> None:
        super().__init__(grammar, longest, device)
        self._programs: dict[tuple[int, bool], Instructions | None] = {}
        self._codes: dict[tuple[int, np.dtype], Code] = {}
        self._scaled: dict[np.dtype, tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
        self._mixtures: dict[tuple[int, np.dtype], tuple[np.ndarray, Mixture]] = {}
        #: Tables of the programs that float32 conditionals have needed, the number of each by its words, and
        #: the rows of working space that the largest needs.
        self._tabled: tuple[Library | None, dict[int, int], int] = (None, {}, 0)
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

    def conditionals(self, groups: Groups, words: Tensor, place: Tensor, out: Tensor) -> Tensor:
        shown, where, rows = words.long().numpy(), place.numpy(), out.numpy()
        dtype, least, sound = rows.dtype, floor(out.dtype), np.zeros(len(shown), dtype=bool)
        known = [(span, program) for span, n in spans(groups) if (program := self.program(n)) is not None]
        if known and dtype == np.float32:
            programs, number, need = self._library([program for _, program in known])
            leaves, root, _ = self._tables(dtype)
            [space] = self._scratch((need,), dtype)
            bounds = np.array([(span.start, span.stop, number[program.n]) for span, program in known])
            write_conditionals(bounds, shown, where, leaves, root, programs, space, least, rows, sound)
            return torch.from_numpy(sound)
        for span, program in known:
            cells, mixture = self._mixture(program, dtype)
            for first in range(span.start, span.stop, CHUNK):
                part = slice(first, min(first + CHUNK, span.stop))
                total, _, outside = self._charts(program, shown[part, : program.n], dtype, outside=cells)
                to = np.ascontiguousarray(where[part, : program.n])
                normalised(outside, mixture, 0, total, to, least, rows, sound[part])
                written = torch.from_numpy(to[to >= 0])
                out[written] = out[written].log_()
        return torch.from_numpy(sound)

    def entropies(self, words: Tensor) -> tuple[Tensor, Tensor]:
        shown, dtype = words.numpy(), np.dtype(np.float32)
        out, sound = np.full(len(shown), np.nan), np.zeros(len(shown), dtype=bool)
        program = self.program(shown.shape[1])
        if program is not None:
            sound[:] = True
            cells, mixture = self._mixture(program, dtype)
            for first in range(0, len(shown), CHUNK):
                part = slice(first, first + CHUNK)
                _, _, outside = self._charts(program, shown[part], dtype, outside=cells)
                entropies(outside, mixture, floor(torch.float32), out[part], sound[part])
        return torch.from_numpy(out), torch.from_numpy(sound)

    def tops(self, words: Tensor, everything: bool = False) -> Tensor:
        shown, program = words.numpy(), self.program(words.shape[1], everything)
        out = torch.zeros(len(shown), len(self.grammar.symbols), dtype=torch.float64)
        if program is not None:
            cells, symbols = program.cells_of(program.n)
            _, inside, _ = self._charts(program, shown, np.dtype(np.float64), inside=cells)
            out[:, symbols] = torch.from_numpy(inside)
        return out

    def totals(self, words: Tensor) -> Tensor:
        program = self.program(words.shape[1])
        if program is None:
            return torch.zeros(len(words), dtype=torch.float64)
        total, _, _ = self._charts(program, words.numpy(), np.dtype(np.float64))
        return torch.from_numpy(total)

    def prefixes(self, words: Tensor, w: int) -> tuple[Tensor, Tensor]:
        shown, program = words.numpy(), self.program(words.shape[1])
        out = torch.zeros(len(shown), len(self.grammar.symbols), dtype=torch.float64)
        if program is None:
            return out, torch.zeros(len(shown), dtype=torch.float64)
        cells, symbols = program.cells_of(w)
        total, inside, outside = self._charts(
            program, shown, np.dtype(np.float64), inside=cells, outside=cells
        )
        out[:, symbols] = torch.from_numpy(inside * outside)
        return out, torch.from_numpy(total)

    def _charts(
        self,
        program: Instructions,
        words: np.ndarray,
        dtype: np.dtype,
        *,
        inside: np.ndarray = _NO_CELLS,
        outside: np.ndarray = _NO_CELLS,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return Pr(words) [B], and the inside and outside charts [B, cells] at the cells asked for.

        The outside pass runs where something is asked of it.
        """
        code, (leaves, root, _) = self._code(program, dtype), self._tables(dtype)
        words = np.ascontiguousarray(words, dtype=np.int64)
        total = np.empty(len(words))
        below = np.empty((len(words), len(inside)), dtype=dtype)
        around = np.empty((len(words), len(outside)), dtype=dtype)
        sizes = (program.cells, program.cells if len(outside) else 0, program.pairs)
        inner, outer, products = self._scratch(sizes, dtype)
        charts(words, leaves, root, code, 0, inside, outside, inner, outer, products, total, below, around)
        return total, below, around

    def _scratch(self, sizes: tuple[int, ...], dtype: np.dtype) -> list[np.ndarray]:
        """Return arrays [size, LANES] of this thread's working space, which the next call uses again."""
        need = sum(sizes) * LANES * dtype.itemsize
        space = getattr(self._space, "bytes", None)
        if space is None or len(space) < need:
            space = self._space.bytes = aligned(need, np.dtype(np.uint8))
            self._space.arrays = {}
        arrays: dict[tuple[tuple[int, ...], np.dtype], list[np.ndarray]] = self._space.arrays
        if (sizes, dtype) not in arrays:
            at, out = 0, []
            for size in sizes:
                stop = at + size * LANES * dtype.itemsize
                out.append(space[at:stop].view(dtype).reshape(size, LANES))
                at = stop
            arrays[sizes, dtype] = out
        return arrays[sizes, dtype]

    def _code(self, program: Instructions, dtype: np.dtype) -> Code:
        key = (id(program), dtype)
        if key not in self._codes:
            self._codes[key] = program.code.cast(dtype)
        return self._codes[key]

    def _library(self, programs: list[Instructions]) -> tuple[Library, dict[int, int], int]:
        """Return the tables of these programs in float32, as `_tabled` keeps them."""
        made, number, need = self._tabled
        if made is None or any(program.n not in number for program in programs):
            dtype, all_of = np.dtype(np.float32), {program.n: program for program in programs}
            all_of |= {n: program for n in number if (program := self.program(n)) is not None}
            made = library(
                [(one, one.code.cast(dtype), *self._mixture(one, dtype)) for one in all_of.values()]
            )
            number = {n: k for k, n in enumerate(all_of)}
            need = max(2 * one.cells + one.pairs for one in all_of.values())
            self._tabled = (made, number, need)
        return made, number, need

    def _tables(self, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the scaled leaves [V+1, N], the root [N], and the emissions [N, W] of a `Mixture`."""
        if dtype not in self._scaled:
            leaves = np.ascontiguousarray(self.leaves.T, dtype=dtype)
            emission, pair = self.grammar.emission, 2 * BYTES // dtype.itemsize
            padded = np.zeros((len(emission), -(-emission.shape[1] // pair) * pair), dtype=dtype)
            padded[:, : emission.shape[1]] = emission
            self._scaled[dtype] = (leaves, self.grammar.root.astype(dtype), padded)
        return self._scaled[dtype]

    def _mixture(self, program: Instructions, dtype: np.dtype) -> tuple[np.ndarray, Mixture]:
        """Return the cells of a program's leaves in the order in which they are mixed, and how they are."""
        key = (program.n, dtype)
        if key not in self._mixtures:
            code, emission = program.code, self.grammar.emission
            wide = ((emission > 0).sum(axis=1) > _WIDE * emission.shape[1])[code.leaf_symbols]
            position = np.repeat(np.arange(program.n), np.diff(code.leaves_of))
            many, few = np.nonzero(wide)[0], np.nonzero(~wide)[0]
            term, word = np.nonzero(emission[code.leaf_symbols[few]])
            ends = np.arange(program.n + 1)
            symbols, padded = code.leaf_symbols.astype(np.int64)[many], self._tables(dtype)[2]
            mixture = Mixture(
                emission=padded,
                mass=padded.sum(axis=1, dtype=np.float64)[symbols],
                of=np.searchsorted(position[many], ends),
                rows=symbols * padded.shape[1],
                terms_of=np.searchsorted(position[few][term], ends),
                source=len(many) + term,
                word=np.ascontiguousarray(word),
                value=emission[code.leaf_symbols[few][term], word].astype(dtype),
                programs=np.array([(0, 0), (program.n, len(many))]),
            )
            self._mixtures[key] = (code.leaf_cells[np.concatenate([many, few])], mixture)
        return self._mixtures[key]
