"""The language of a probabilistic context-free grammar, conditioned on at most `max_length` words.

    Pr(x) = (1 / Pr(length <= max_length)) sum over derivations of x of the product of their rules

The conditionals of all positions and words come from one inside-outside pass (`inside.py`):

    Pr(x_t = c | x_-t)  is proportional to  sum_A O_1[A, t] emission[A, c]

where a hidden leaf enters the pass as the sum of `emission[A, .]` and a visible one drops out of its own
outside weight, so nothing is computed again for each position or word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.languages.base import Language, Sample, Task
from raysweep.languages.checks import check_sentences, decoded, floor, impossible
from raysweep.languages.pcfg import tree
from raysweep.languages.pcfg.config import LONGEST, PCFGConfig
from raysweep.languages.pcfg.grammar import Grammar, length_probabilities
from raysweep.languages.pcfg.inside import inside, outside
from raysweep.languages.pcfg.plan import Plan, feasible, make_plan
from raysweep.languages.pcfg.sampler import Sampler

Label = Literal["inside", "posterior", "tree"]

#: Bytes of charts in one pass; about what a core's cache holds.
_PASS_BYTES = 8 << 20

#: Class of a prefix that no symbol derives, or that is no constituent.
NONE = "none"


class PCFG(Language):
    """A probabilistic context-free grammar; see the module's text for the equations.

    Latents: `symbol` and `width` int16 [B, 2, max_length], the derivation as `sampler.py` lays it out.

    Tasks: A, the root symbol above the whole sentence; B and C, the symbol above its first `spans[0]` and
    `spans[1]` words (the whole sentence where it is shorter), by default a half and a quarter of
    `max_length`.  `label` says what is taken for true:

    - `inside`: argmax_s Pr(prefix | s), over root symbols (A) or all symbols (B, C), as in Liu et al. 2023;
    - `posterior`: the most probable constituent over exactly that prefix given the whole sentence;
    - `tree`: the sampled derivation's constituent over exactly that prefix.

    Where there is no such symbol the label of B and C is the class "none".

    >>> language = PCFG.random(roots=2, layers=2, symbols=3, rules=4, words=6, vocabulary=12)
    >>> sorted(language.tasks), language.max_length
    (['A', 'B', 'C'], 4)
    """

    def __init__(
        self,
        grammar: Grammar,
        *,
        max_length: int,
        label: Label = "inside",
        spans: tuple[int, int] | None = None,
    ) -> None:
        if not 1 <= max_length <= LONGEST:
            raise ConfigError(f"max_length: {max_length} is outside 1 .. {LONGEST}")
        self.grammar, self.label, self.max_length = grammar, label, max_length
        self.vocabulary_size = len(grammar.words)
        self.words = grammar.words
        self.spans = spans or (max(1, max_length // 2), max(1, max_length // 4))
        for span in self.spans:
            if not 1 <= span <= max_length:
                raise ConfigError(f"spans: a prefix of {span} words is outside 1 .. {max_length}")
        self._table, lengths = length_probabilities(grammar, max_length)
        #: Pr(a derivation has n words | at most max_length), float64 [max_length+1].
        self.length_probabilities = lengths / lengths.sum()
        self._log_kept = float(np.log(lengths.sum()))
        self._can = feasible(grammar, max_length)
        self._plans: dict[tuple[int, bool, torch.device, torch.dtype], Plan | None] = {}
        self._rules: dict[tuple[torch.device, torch.dtype], dict[bytes, Tensor]] = {}
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor, Tensor]] = {}

    @classmethod
    def random(cls, seed: int = 0, **fields: Any) -> PCFG:
        """Draw a grammar; `fields` are those of `PCFGConfig`.  Raises `ConfigError`."""
        return decoded(PCFGConfig, {"seed": seed, **fields}).build()

    @classmethod
    def from_rules(cls, path: str | Path, **fields: Any) -> PCFG:
        """Read a grammar in NLTK's notation or as a table of rules; `fields` are those of `PCFGConfig`.

        Raises `ConfigError` for a field, `DataError` naming file and line for the rules.
        """
        return decoded(PCFGConfig, {"structure": "file", "path": str(path), **fields}).build()

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Tasks A, B and C: the symbol above the whole sentence, and above two of its prefixes."""
        how = {
            "inside": "symbol that most probably derives {}",
            "posterior": "most probable constituent over {} given the sentence",
            "tree": "symbol of the sampled tree over {}",
        }[self.label]
        roots = tuple(self.grammar.symbols[a] for a in np.nonzero(self.grammar.root)[0])
        half, quarter = (f"its first {span} words" for span in self.spans)
        spans = {"A": "the whole sentence", "B": half, "C": quarter}
        return {
            name: Task(
                name=name,
                classes=roots if name == "A" else (*self.grammar.symbols, NONE),
                description=how.format(span),
            )
            for name, span in spans.items()
        }

    def content(self) -> bytes:
        """Return the grammar, the longest length and the tasks as bytes."""
        head = repr((self.max_length, self.spans, self.label)).encode()
        return head + b"\0" + self.grammar.content()

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.grammar, self._table)

    def sample_latent(
        self, n: int, *, seed: int, start: int = 0, device: torch.device | str = "cpu"
    ) -> Sample:
        """Draw sentences with their derivations: latents `symbol` and `width` int16 [n, 2, max_length].

        They are made on `device`, and are the same on every device.
        """
        ids, symbol, width = self._sampler.draw(
            n, seed=seed, start=start, pad=self.pad_id, device=torch.device(device)
        )
        return Sample(ids=ids, latents={"symbol": symbol, "width": width})

    def sample(self, n: int, *, seed: int, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """Draw the sentences of `sample_latent` alone: ids [n, max_length]."""
        return self._sampler.draw(
            n, seed=seed, start=start, pad=self.pad_id, derivations=False, device=torch.device(device)
        )[0]

    def draw(self, sample: Sample, row: int) -> str:
        """Return the derivation of a sentence as a tree in text, a line per node."""
        return tree.text(tree.nodes(sample, row), self.grammar.symbols, self.words)

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return exact log-probabilities [B, T, V] of `dtype`, as `Language.conditionals` says.

        Memory beside the result: about 8 MB, more where the grammar is large.
        """
        out = torch.full((*ids.shape, self.vocabulary_size), torch.nan, dtype=dtype, device=ids.device)

        def contexts(rows: Tensor, n: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
            return self._contexts(ids[rows, :n], None if mask is None else mask[rows, :n], dtype)

        for rows, n in self._batches(ids, mask, dtype):
            joint, good = contexts(rows, n, dtype)
            if not good.all() and dtype != torch.float64:
                again = (~good).nonzero()[:, 0]
                redone, good[again] = contexts(rows[again], n, torch.float64)
                joint[again] = (redone / redone.sum(dim=-1, keepdim=True)).to(dtype)
            if not good.all():
                raise impossible(int(rows[(~good).nonzero()[0, 0]]))
            out[rows, :n] = joint.div_(joint.sum(dim=-1, keepdim=True)).log_()
        return out if mask is None else out.masked_fill_(~mask[:, :, None], torch.nan)

    def log_prob(self, ids: Tensor) -> Tensor:
        """Return log Pr(x) [B] in nats, float64; -inf outside the language."""
        out = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        root, _, scale, _ = self._on(ids.device, torch.float64)
        for rows, n in self._batches(ids, None, torch.float64, strict=False):
            plan = self._plan(n, False, ids.device, torch.float64)
            if plan is not None:
                words = ids[rows, :n]
                total = root[plan.active[n]] @ inside(plan, self._leaves(plan, words, None))[n][:, 0]
                out[rows] = total.log() + scale[words].log().sum(dim=1) - self._log_kept
        return out

    def labels(self, task: str, sample: Sample) -> Tensor:
        """Return the labels [B] of task A, B or C; see the class for what they mean."""
        if task not in self.tasks:
            raise DataError(f"no task '{task}'; this language has {', '.join(self.tasks)}")
        span = {"A": self.max_length, "B": self.spans[0], "C": self.spans[1]}[task]
        makers = {
            "inside": self._inside_labels,
            "posterior": self._posterior_labels,
            "tree": self._tree_labels,
        }
        symbols = makers[self.label](sample, span, task == "A")
        if task != "A":
            return symbols
        index = torch.full((len(self.grammar.symbols) + 1,), -1, device=symbols.device)
        roots = torch.from_numpy(np.nonzero(self.grammar.root)[0]).to(symbols.device)
        index[roots] = torch.arange(len(roots), device=symbols.device)
        return index[symbols]

    def _tree_labels(self, sample: Sample, span: int, whole: bool) -> Tensor:
        symbol, width = (sample.latents[name].to(torch.int64) for name in ("symbol", "width"))
        size = self.lengths(sample.ids).clamp_max(span)
        last = (size - 1)[:, None]
        found = torch.where(width[:, 1].gather(1, last)[:, 0] == size, symbol[:, 1].gather(1, last)[:, 0], -1)
        found = torch.where(width[:, 0, 0] == size, symbol[:, 0, 0], found)
        return torch.where(found < 0, len(self.grammar.symbols), found)

    def _inside_labels(self, sample: Sample, span: int, whole: bool) -> Tensor:
        prefixes = sample.ids.clone()
        prefixes[:, span:] = self.pad_id

        def best(rows: Tensor, n: int) -> Tensor:
            plan = self._plan(n, not whole, rows.device, torch.float64)
            if plan is None:
                return torch.full((len(rows),), -1, device=rows.device)
            top = inside(plan, self._leaves(plan, prefixes[rows, :n], None))[n][:, 0]
            value, place = top.max(dim=0)
            return torch.where(value > 0, plan.active[n][place], -1)

        return self._labelled(prefixes, best, whole)

    def _posterior_labels(self, sample: Sample, span: int, whole: bool) -> Tensor:
        def best(rows: Tensor, n: int) -> Tensor:
            plan = self._plan(n, False, rows.device, torch.float64)
            if plan is None:
                return torch.full((len(rows),), -1, device=rows.device)
            chart = inside(plan, self._leaves(plan, sample.ids[rows, :n], None))
            root = self._on(rows.device, torch.float64)[0][plan.active[n]]
            total = root @ chart[n][:, 0]
            if (total <= 0).any():
                raise impossible(int(rows[(total <= 0).nonzero()[0, 0]]))
            w = min(span, n)
            if len(plan.active[w]) == 0:
                return torch.full((len(rows),), -1, device=rows.device)
            joint = (chart[w] * outside(plan, chart, root)[w])[:, 0]
            value, place = joint.max(dim=0)
            # What is left of the total is the prefix not being a constituent.
            return torch.where(value >= total - joint.sum(dim=0), plan.active[w][place], -1)

        return self._labelled(sample.ids, best, whole)

    def _labelled(self, ids: Tensor, best: Callable[[Tensor, int], Tensor], whole: bool) -> Tensor:
        out = torch.full((len(ids),), -1, dtype=torch.int64, device=ids.device)
        for rows, n in self._batches(ids, None, torch.float64, strict=False):
            out[rows] = best(rows, n)
        if whole and (out < 0).any():
            raise impossible(int((out < 0).nonzero()[0, 0]))
        return torch.where(out < 0, len(self.grammar.symbols), out)

    def _batches(
        self, ids: Tensor, mask: Tensor | None, dtype: torch.dtype, strict: bool = True
    ) -> Iterator[tuple[Tensor, int]]:
        """Check a batch and cut it into (rows, n) of sentences of n words that fit one pass.

        Sentences without words or longer than `max_length` are left out, or a `DataError` where `strict`.
        """
        lengths = check_sentences(self, ids, mask)
        wrong = (lengths < 1) | (lengths > self.max_length)
        if strict and wrong.any():
            row = int(wrong.nonzero()[0, 0])
            raise DataError(
                f"sentence {row}: {int(lengths[row])} words, but sentences of this language have 1 .. "
                f"{self.max_length}"
            )
        for n in torch.unique(lengths[~wrong]).tolist():
            plan = self._plan(n, False, ids.device, dtype)
            wide = self._plan(n, True, ids.device, dtype) if plan is None else plan
            cells = (wide.elements if wide else 1) + n * self.vocabulary_size
            size = max(1, min(1024, _PASS_BYTES // (cells * dtype.itemsize)))
            for rows in torch.split((lengths == n).nonzero()[:, 0], size):
                yield rows, n

    def _plan(self, n: int, everything: bool, device: torch.device, dtype: torch.dtype) -> Plan | None:
        key = (n, everything, device, dtype)
        if key not in self._plans:
            top = np.ones(len(self.grammar.symbols), dtype=bool) if everything else self.grammar.root > 0
            shared = self._rules.setdefault((device, dtype), {})
            self._plans[key] = make_plan(self.grammar, self._can, n, top, device, dtype, shared)
        return self._plans[key]

    def _on(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Root [N], emissions [N, V], the largest emission of each word [V], the scaled leaves [N, V+1].

        Column V of the last is the leaf of a hidden word.
        """
        key = (device, dtype)
        if key not in self._tables:
            emission = self.grammar.emission
            leaves = np.concatenate([emission, emission.sum(axis=1, keepdims=True)], axis=1)
            scale = leaves.max(axis=0)
            leaves = leaves / np.where(scale > 0, scale, 1.0)
            root, emitted, largest, scaled = (
                torch.from_numpy(table).to(device=device, dtype=dtype)
                for table in (self.grammar.root, emission, scale, leaves)
            )
            self._tables[key] = (root, emitted, largest, scaled)
        return self._tables[key]

    def _leaves(self, plan: Plan, words: Tensor, hidden: Tensor | None) -> Tensor:
        """Return the scaled leaves [A, n, B] of words [B, n]."""
        dtype = plan.dtype
        scaled = self._on(words.device, dtype)[3][plan.active[1]]
        if hidden is not None:
            words = torch.where(hidden, self.vocabulary_size, words)
        return scaled.index_select(1, words.T.reshape(-1)).view(len(scaled), words.shape[1], -1)

    def _contexts(self, words: Tensor, hidden: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return Pr(x_t = c and the visible words but x_t) [B, n, V], scaled, and which are sound [B]."""
        n = words.shape[1]
        plan = self._plan(n, False, words.device, dtype)
        if plan is None:
            none = torch.zeros(*words.shape, self.vocabulary_size, dtype=dtype, device=words.device)
            return none, torch.zeros(len(words), dtype=torch.bool, device=words.device)
        root, emission = self._on(words.device, dtype)[:2]
        root = root[plan.active[n]]
        chart = inside(plan, self._leaves(plan, words, hidden))
        below = outside(plan, chart, root)[1]
        joint = below.permute(2, 1, 0) @ emission[plan.active[1]]
        total = joint.sum(dim=-1) if hidden is None else (root @ chart[n][:, 0])[:, None]
        sound = total.isfinite() & (total >= floor(dtype))
        return joint, sound.all(dim=1)
