"""The language of a probabilistic context-free grammar, conditioned on at most `max_length` words.

    Pr(x) = (1 / Pr(length <= max_length)) sum over derivations of x of the product of their rules

The conditionals of all positions and words come from one inside-outside pass (`engine.py`):

    Pr(x_t = c | x_-t)  is proportional to  sum_A O_1[A, t] emission[A, c]

where a hidden leaf enters the pass as the sum of `emission[A, .]` and a visible one drops out of its own
outside weight, so nothing is computed again for each position or word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.languages.base import Language, Sample, Task, sentence_numbers
from raysweep.languages.checks import check_conditionals, check_sentences, decoded, empty, impossible
from raysweep.languages.pcfg import labels, tree
from raysweep.languages.pcfg.config import LONGEST, PCFGConfig
from raysweep.languages.pcfg.engine import Engine, Name, floor, spans
from raysweep.languages.pcfg.engines import make_engine
from raysweep.languages.pcfg.grammar import Grammar, length_probabilities
from raysweep.languages.pcfg.labels import Label
from raysweep.languages.pcfg.logs import log_conditionals, log_totals
from raysweep.languages.pcfg.sampler import Sampler

#: Class of a prefix that no symbol derives, or that is no constituent.
NONE = "none"


class PCFG(Language):
    """A probabilistic context-free grammar; see the module's text for the equations.

    Latents: `symbol` and `width` int16 [B, 2, max_length], the derivation as `sampler.py` lays it out.

    Tasks: A, the root symbol above the whole sentence; B and C, the symbol above its first `spans[0]` and
    `spans[1]` words (the whole sentence where it is shorter), by default a half and a quarter of
    `max_length`.  `label` chooses the true label (`labels.py` has the equations):

    - `inside`: argmax_s Pr(prefix | s), over root symbols (A) or all symbols (B, C), as in the code that
      Liu et al. 2023 released; theirs has symbols that no sentence contains among them (`candidates: all`);
    - `prefix`: argmax_s Pr(s | prefix), the formula that they print, with the prior of s in that place;
    - `posterior`: the most probable constituent over exactly that prefix given the whole sentence;
    - `tree`: the sampled derivation's constituent over exactly that prefix.

    Where there is no such symbol the label of B and C is the class "none".  The tasks have sentences of
    `task_words` words or more.  Those released have spans 4 and 2 and sentences of 5 words or more.

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
        task_words: int = 1,
        engine: Name | None = None,
    ) -> None:
        if not 1 <= max_length <= LONGEST:
            raise ConfigError(f"max_length: {max_length} is outside 1 .. {LONGEST}")
        self.grammar, self.label, self.max_length = grammar, label, max_length
        self.task_words = task_words
        self.vocabulary_size = len(grammar.words)
        self.words, self.notes = grammar.words, grammar.notes
        self.spans = spans or (max(1, max_length // 2), max(1, max_length // 4))
        for span in self.spans:
            if not 1 <= span <= max_length:
                raise ConfigError(f"spans: a prefix of {span} words is outside 1 .. {max_length}")
        self._table, lengths = length_probabilities(grammar, max_length)
        #: Pr(a derivation has n words | at most max_length), float64 [max_length+1].
        self.length_probabilities = lengths / lengths.sum()
        self._log_kept = float(np.log(lengths.sum()))
        self.engine = engine
        self._engines: dict[torch.device, Engine] = {}

    def __getstate__(self) -> dict[str, Any]:
        # Engines hold working space of this process and tables on its devices; a copy makes its own.
        return {**vars(self), "_engines": {}}

    @classmethod
    def random(cls, seed: int = 0, *, engine: Name | None = None, **fields: Any) -> PCFG:
        """Draw a grammar; `fields` are those of `PCFGConfig`.  Raises `ConfigError`."""
        return decoded(PCFGConfig, {"seed": seed, **fields}).build().using(engine)

    @classmethod
    def from_rules(cls, path: str | Path, *, engine: Name | None = None, **fields: Any) -> PCFG:
        """Read a grammar in NLTK's notation or as a table of rules; `fields` are those of `PCFGConfig`.

        Raises `ConfigError` for a field, `DataError` naming file and line for the rules.
        """
        return decoded(PCFGConfig, {"structure": "file", "path": str(path), **fields}).build().using(engine)

    def using(self, engine: Name | None) -> PCFG:
        """Return the same language with its charts computed by an engine of `engine.py`, None to choose one.

        Speed and the last digit of results depend on the engine; the fingerprint does not.
        """
        other = copy(self)
        other.engine = engine
        return other

    @property
    def tasks(self) -> Mapping[str, Task]:
        """Tasks A, B and C: the symbol above the whole sentence, and above two of its prefixes."""
        how = {
            "inside": "symbol that most probably derives {}",
            "prefix": "most probable symbol over {} given these words",
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
        # Sentences of all lengths leave no trace, so that identities are those of before there was a choice.
        fewest = (self.task_words,) if self.task_words > 1 else ()
        head = repr((self.max_length, self.spans, self.label, *fewest)).encode()
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
            sentence_numbers(n, start), seed=seed, pad=self.pad_id, device=torch.device(device)
        )
        return Sample(ids=ids, latents={"symbol": symbol, "width": width})

    def sample(self, n: int, *, seed: int, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """Draw the sentences of `sample_latent` alone: ids [n, max_length]."""
        return self.sample_at(sentence_numbers(n, start), seed=seed, device=device)

    def sample_at(self, numbers: Tensor, *, seed: int, device: torch.device | str = "cpu") -> Tensor:
        return self._sampler.draw(
            numbers, seed=seed, pad=self.pad_id, derivations=False, device=torch.device(device)
        )[0]

    def sample_on(self, device: torch.device, numbers: Tensor, *, seed: int) -> Tensor:
        return self.sample_at(numbers, seed=seed, device=device)

    def text(self, ids: Tensor) -> str:
        """Return a sentence [T] as its words."""
        return " ".join(self.words[word] for word in ids[ids != self.pad_id].tolist())

    def draw(self, sample: Sample, row: int) -> str:
        """Return the derivation of a sentence as a tree in text, a line per node."""
        return tree.text(tree.nodes(sample, row), self.grammar.symbols, self.words)

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return exact log-probabilities [B, T, V] of `dtype`, as `Language.conditionals` says.

        A word of a probability below 1e-150 in its place, in float32 below 1e-38, may look impossible; the
        sentence may be as improbable as it likes.  Memory beside the result: a few MB of
        charts, more where the grammar is large, and up to 128 MiB where it has most of the possible rules.
        """
        lengths = check_conditionals(self, ids, mask, dtype)
        place = torch.arange(ids.numel(), device=ids.device).view(ids.shape)
        unknown = ids == self.pad_id
        if mask is not None:
            unknown |= ~mask
            place.masked_fill_(~mask, -1)
        out = self._conditionals(ids, mask, lengths, place, ids.numel(), dtype)
        if out.device.type == "cpu":
            # Imported here because kernels come with the compiler.
            from raysweep.languages.pcfg.mixing import blank

            blank(out.numpy(), unknown.flatten().numpy())
        else:
            out.masked_fill_(unknown.flatten()[:, None], torch.nan)
        return out.view(*ids.shape, self.vocabulary_size)

    def conditionals_at(
        self, ids: Tensor, positions: Tensor, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return log Pr(x_t = . | all other words) [B, V] of `dtype`, as `Language.conditionals_at` says."""
        mask = self.mask_at(ids, positions)
        lengths = check_conditionals(self, ids, mask, dtype)
        place = torch.where(mask, torch.arange(len(ids), device=ids.device)[:, None], -1)
        return self._conditionals(ids, mask, lengths, place, len(ids), dtype)

    def _conditionals(
        self, ids: Tensor, mask: Tensor | None, lengths: Tensor, place: Tensor, rows: int, dtype: torch.dtype
    ) -> Tensor:
        """Return [rows, V] with the conditionals at (b, t) in row `place[b, t]`, nothing where -1."""
        out = empty((rows, self.vocabulary_size), dtype, ids.device)
        engine, parts = self.engine_on(ids.device), list(self.groups(lengths))
        groups = [(len(some), n) for some, n in parts]
        # All sentences are put in the order of the groups at once, which saves two copies for each group.
        order = torch.cat([lengths.new_empty(0), *(some for some, _ in parts)])
        words, place = self._words(ids, mask, order), place.index_select(0, order)
        sound = engine.conditionals(groups, words, place, out)
        if sound.all():
            return out
        for some, n in spans(groups):
            good = sound[some]
            again = (~good).nonzero()[:, 0]
            if not len(again):
                continue
            shown, to = words[some, :n][again], place[some, :n][again]
            if dtype == torch.float64:
                good[again] = log_conditionals(self.grammar, engine.plan(n), shown, to, out)
            else:
                rank = (torch.cumsum(to.flatten() >= 0, 0) - 1).view(to.shape).masked_fill(to < 0, -1)
                exact = out.new_empty(int((to >= 0).sum()), self.vocabulary_size, dtype=torch.float64)
                good[again] = self._exactly(engine, shown, rank, exact)
                out[to[to >= 0]] = exact.to(dtype)
            if not good.all():
                raise impossible(int(order[some][(~good).nonzero()[0, 0]]))
        return out

    def sentence_entropy(self, ids: Tensor) -> Tensor:
        """Return (1/T) sum_t H(x_t | x_-t) of each sentence [B] in nats, float64; exact to about 1e-6."""
        out = torch.full((len(ids),), torch.nan, dtype=torch.float64, device=ids.device)
        engine = self.engine_on(ids.device)
        for some, n in self.groups(check_sentences(self, ids)):
            words = ids[some, :n]
            entropy, sound = engine.entropies(words)
            if not sound.all():
                again = (~sound).nonzero()[:, 0]
                place = torch.arange(len(again) * n, device=ids.device).view(-1, n)
                exact = out.new_empty(place.numel(), self.vocabulary_size)
                sound[again] = self._exactly(engine, words[again], place, exact)
                entropy[again] = torch.special.entr(exact.exp_()).sum(dim=1).view(-1, n).mean(dim=1)
            if not sound.all():
                raise impossible(int(some[(~sound).nonzero()[0, 0]]))
            out[some] = entropy
        return out

    def _exactly(self, engine: Engine, words: Tensor, place: Tensor, out: Tensor) -> Tensor:
        """Compute as `Engine.conditionals` in float64, and in logarithms where that does not suffice.

        `words` [B, n] are of one length.
        """
        sound = engine.conditionals([(len(words), words.shape[1])], words, place, out)
        if not sound.all():
            again, plan = (~sound).nonzero()[:, 0], engine.plan(words.shape[1])
            sound[again] = log_conditionals(self.grammar, plan, words[again], place[again], out)
        return sound

    def log_prob(self, ids: Tensor) -> Tensor:
        """Return log Pr(x) [B] in nats, float64; -inf outside the language, and nowhere else."""
        out = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        engine = self.engine_on(ids.device)
        scale = torch.from_numpy(np.log(engine.scale)).to(ids.device)
        for some, n in self.groups(check_sentences(self, ids), strict=False):
            words = ids[some, :n]
            total = engine.totals(words)
            low = (total < floor(torch.float64)).nonzero()[:, 0]
            total.log_()
            for t in range(n):
                total += scale[words[:, t]]
            if len(low):
                total[low] = log_totals(self.grammar, engine.plan(n), words[low])
            out[some] = total - self._log_kept
        return out

    def labels(self, task: str, sample: Sample) -> Tensor:
        """Return the labels [B] of task A, B or C; the class explains them."""
        symbols = labels.symbols(self, sample, self._span(task), task == "A")
        return symbols if task != "A" else self._class_of_root(symbols.device)[symbols]

    def determined(self, task: str) -> bool:
        return self.label != "tree"

    def label_posterior(self, task: str, ids: Tensor) -> Tensor | None:
        if self.determined(task):
            return super().label_posterior(task, ids)
        found = labels.posterior(self, ids, self._span(task))
        return found if task != "A" else found[:, self._class_of_root(ids.device) >= 0]

    def in_tasks(self, ids: Tensor) -> Tensor:
        return self.lengths(ids) >= self.task_words

    def _span(self, task: str) -> int:
        if task not in self.tasks:
            raise DataError(f"no task '{task}'; this language has {', '.join(self.tasks)}")
        return {"A": self.max_length, "B": self.spans[0], "C": self.spans[1]}[task]

    def _class_of_root(self, device: torch.device) -> Tensor:
        """Return the class of each symbol in task A [N+1], -1 for one that is no root."""
        index = torch.full((len(self.grammar.symbols) + 1,), -1, device=device)
        roots = torch.from_numpy(np.nonzero(self.grammar.root)[0]).to(device)
        index[roots] = torch.arange(len(roots), device=device)
        return index

    def _words(self, ids: Tensor, mask: Tensor | None, rows: Tensor) -> Tensor:
        """Return the words of some sentences [rows, T], V where they are hidden."""
        words = ids.index_select(0, rows)
        return words if mask is None else words.masked_fill(mask[rows], self.vocabulary_size)

    def groups(self, lengths: Tensor, strict: bool = True) -> Iterator[tuple[Tensor, int]]:
        """Cut a batch into (rows, n) of sentences of n words.

        Sentences without words or longer than `max_length` are left out; with `strict` they raise
        `DataError`.
        """
        wrong = (lengths < 1) | (lengths > self.max_length)
        if strict and wrong.any():
            row = int(wrong.nonzero()[0, 0])
            raise DataError(
                f"sentence {row}: {int(lengths[row])} words, but sentences of this language have 1 .. "
                f"{self.max_length}"
            )
        counts = torch.bincount(lengths).tolist()
        for n, rows in enumerate(torch.argsort(lengths, stable=True).split(counts)):
            if len(rows) and 1 <= n <= self.max_length:
                yield rows, n

    def engine_on(self, device: torch.device) -> Engine:
        """Return the engine of a device, made at first use."""
        if device not in self._engines:
            self._engines[device] = make_engine(self.grammar, self.max_length, device, self.engine)
        return self._engines[device]
