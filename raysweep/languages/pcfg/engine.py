"""The base of the engines that compute charts: three engines with one set of answers.

- `sparse`: the grammar's plan as instructions for compiled kernels, many sentences side by side (a CPU);
- `torch`: the same plan as torch operations (any device);
- `dense`: all symbols over all spans as matrix products (any device), for grammars that have most rules.

All work on sentences of one length n, int64 [B, n], or on groups of such sentences, where V, one above the
last word, is a hidden word.  A leaf is divided by the largest entry over all symbols, so that the charts of
usual sentences stay within float32's range and no logarithms are needed.  An answer whose normaliser leaves
[1e-30, 1e30] is marked as not sound, and the caller asks again in float64.  Outside [1e-150, 1e150], it asks
in logarithms (`logs.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.plan import Plan, feasible, make_plan

Name = Literal["sparse", "torch", "dense"]

#: Groups of sentences of one length, one after another: their numbers of sentences and of words.
Groups = Sequence[tuple[int, int]]

#: Bytes of charts in one pass; about what a core's cache holds, and what fills a GPU.
_PASS_BYTES = {"cpu": 8 << 20, "cuda": 1 << 30}


def floor(dtype: torch.dtype) -> float:
    """Return the least normaliser of a sound answer: it leaves room below for words that are as rare."""
    return 1e-150 if dtype == torch.float64 else 1e-30


def spans(groups: Groups) -> Iterator[tuple[slice, int]]:
    """Yield the sentences of each group, and their number of words.

    >>> list(spans([(2, 5), (1, 7)]))
    [(slice(0, 2, None), 5), (slice(2, 3, None), 7)]
    """
    first = 0
    for sentences, n in groups:
        yield slice(first, first + sentences), n
        first += sentences


class Engine(ABC):
    """Charts of one grammar on one device; see the module's text."""

    name: ClassVar[Name]

    def __init__(self, grammar: Grammar, longest: int, device: torch.device) -> None:
        self.grammar, self.longest, self.device = grammar, longest, device
        self.scale, self.leaves = scaled_leaves(grammar)
        self._can = feasible(grammar, longest)
        self._plans: dict[tuple[int, bool], Plan | None] = {}

    def plan(self, n: int, everything: bool = False) -> Plan | None:
        """Return the plan of n words below roots or all symbols; None where none derives n words."""
        key = (n, everything)
        if key not in self._plans:
            top = np.ones(len(self.grammar.symbols), dtype=bool) if everything else self.grammar.root > 0
            self._plans[key] = make_plan(self.grammar, self._can, n, top)
        return self._plans[key]

    @abstractmethod
    def flops(self, n: int) -> tuple[int, int]:
        """Multiply-adds times two of one sentence's inside pass, and of both passes."""

    @abstractmethod
    def nbytes(self, n: int, dtype: torch.dtype) -> int:
        """Bytes of one sentence's charts."""

    @abstractmethod
    def conditionals(self, groups: Groups, words: Tensor, place: Tensor, out: Tensor) -> Tensor:
        """Write log Pr(x_t = . | visible words but x_t) into row `place[b, t]` of `out` [rows, V], if not -1.

        Sentences [B, T] come in groups of one length each; what stands behind their words does not matter.
        Computes in the dtype of `out` and returns which sentences are sound [B]; rows of other sentences are
        undefined.  With hidden words, exactly the hidden positions must have a place.
        """

    @abstractmethod
    def entropies(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return (1/n) sum_t H(x_t | x_-t) [B], float64, of float32 charts, and what is sound [B]."""

    @abstractmethod
    def tops(self, words: Tensor, everything: bool = False) -> Tensor:
        """Return Pr(words | A) divided by the words' scales [B, N], float64, of roots or of all symbols."""

    @abstractmethod
    def totals(self, words: Tensor) -> Tensor:
        """Return Pr(words) divided by the words' scales [B], float64."""

    @abstractmethod
    def prefixes(self, words: Tensor, w: int) -> tuple[Tensor, Tensor]:
        """Return Pr(words, A over exactly the first w of them) [B, N] and Pr(words) [B], both divided by the
        words' scales; float64."""


class TorchEngine(Engine):
    """An engine that makes answers of charts by torch operations; subclasses give the charts."""

    def __init__(self, grammar: Grammar, longest: int, device: torch.device) -> None:
        super().__init__(grammar, longest, device)
        self._tables: dict[tuple[str, torch.dtype], Tensor] = {}

    def table(self, name: str, dtype: torch.dtype) -> Tensor:
        """Return `root` [N], `emission` [N, V] or `leaves` [N, V+1] on the device."""
        if (name, dtype) not in self._tables:
            array = self.leaves if name == "leaves" else getattr(self.grammar, name)
            self._tables[name, dtype] = torch.from_numpy(array).to(self.device, dtype)
        return self._tables[name, dtype]

    @abstractmethod
    def leaf_weights(self, words: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Return outside weights of leaves [B, n, A], their symbols [A], and Pr(words) [B], scaled."""

    def conditionals(self, groups: Groups, words: Tensor, place: Tensor, out: Tensor) -> Tensor:
        sound = torch.empty(len(words), dtype=torch.bool, device=words.device)
        for rows, n in spans(groups):
            shown, to, good = words[rows, :n], place[rows, :n], sound[rows]
            for part in self._passes(shown, out.dtype):
                wanted = to[part] >= 0
                joint, good[part] = self._joint(shown[part], wanted, out.dtype)
                out[to[part][wanted]] = joint[wanted].log_()
        return sound

    def entropies(self, words: Tensor) -> tuple[Tensor, Tensor]:
        sound = torch.empty(len(words), dtype=torch.bool, device=words.device)
        out = torch.empty(len(words), dtype=torch.float64, device=words.device)
        for part in self._passes(words, torch.float32):
            every = torch.ones_like(words[part], dtype=torch.bool)
            joint, sound[part] = self._joint(words[part], every, torch.float32)
            out[part] = torch.special.entr(joint).sum(dim=-1).to(torch.float64).mean(dim=1)
        return out, sound

    def totals(self, words: Tensor) -> Tensor:
        return self.tops(words) @ self.table("root", torch.float64)

    def _passes(self, words: Tensor, dtype: torch.dtype) -> Iterator[slice]:
        n = words.shape[1]
        each = self.nbytes(n, dtype) + n * len(self.grammar.words) * dtype.itemsize
        size = max(1, min(1024, _PASS_BYTES[self.device.type] // each))
        for first in range(0, len(words), size):
            yield slice(first, min(first + size, len(words)))

    def _joint(self, words: Tensor, wanted: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return Pr(x_t = . | visible words but x_t) [B, n, V] and which sentences are sound [B]."""
        weights, symbols, total = self.leaf_weights(words, dtype)
        joint = weights @ self.table("emission", dtype)[symbols]
        norm = joint.sum(dim=-1, keepdim=True)
        least = floor(dtype)
        sound = ((norm >= least) & (norm * least <= 1))[:, :, 0]
        sound |= ~wanted
        # A visible word is in every context of its sentence, so the visible words must be possible.
        whole = (total >= least) & (total * least <= 1)
        return joint.div_(norm), sound.all(dim=1) & (whole | wanted.all(dim=1))


def scaled_leaves(grammar: Grammar) -> tuple[np.ndarray, np.ndarray]:
    """Return each word's largest emission [V+1] and the leaves divided by it [N, V+1], V a hidden word."""
    leaves = np.concatenate([grammar.emission, grammar.emission.sum(axis=1, keepdims=True)], axis=1)
    scale = leaves.max(axis=0)
    scale = np.where(scale > 0, scale, 1.0)
    return scale, leaves / scale


def dense_flops(symbols: int, n: int) -> tuple[int, int]:
    """Multiply-adds times two of a sentence's inside pass, and of both, over all symbols and spans."""
    spans, splits = n * (n - 1) // 2, n * (n * n - 1) // 6
    products, rules = splits * symbols**2, spans * symbols**3
    return 2 * (products + rules), 2 * (3 * products + 2 * rules)
