"""The language of a hidden Markov model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.languages.base import Language, Sample, Task, certain_length, sentence_numbers
from raysweep.languages.checks import check_conditionals, check_sentences, decoded, empty, impossible
from raysweep.languages.hmm import passes
from raysweep.languages.hmm.blocks import Blocks
from raysweep.languages.hmm.config import HMMConfig
from raysweep.languages.hmm.passes import Tables
from raysweep.languages.hmm.sampler import Sampler

#: Sentences per pass: their vectors stay in a core's cache, and yet fill its products.
_PASS = 512


class HMM(Language):
    """A hidden Markov model of sentences of `length` words; see the module's text for the equations.

    `initial` [S], `transition` [S, S] and `emission` [S, V] are probabilities.  Latents: `states` [B, T].
    """

    fixed_length = True
    no_tasks = "the language has no downstream tasks: language.tasks names no positions"

    def __init__(
        self,
        *,
        initial: np.ndarray,
        transition: np.ndarray,
        emission: np.ndarray,
        length: int,
        tasks: tuple[int, ...] = (),
        label: Literal["state", "posterior"] = "state",
    ) -> None:
        self.initial = np.asarray(initial, dtype=np.float64)
        self.transition = np.asarray(transition, dtype=np.float64)
        self.emission = np.asarray(emission, dtype=np.float64)
        self.states, self.vocabulary_size = self.emission.shape
        self.max_length = length
        self.length_probabilities = certain_length(length)
        self.label = label
        for name, table, shape in (
            ("initial", self.initial, (self.states,)),
            ("transition", self.transition, (self.states, self.states)),
            ("emission", self.emission, (self.states, self.vocabulary_size)),
        ):
            if table.shape != shape:
                raise ConfigError(f"{name}: shape {table.shape} where {shape} is needed")
            if not ((table >= 0).all() and np.allclose(table.sum(axis=-1), 1.0, rtol=0, atol=1e-9)):
                raise ConfigError(f"{name}: rows must be probabilities that sum to 1")
        for position in tasks:
            if not 1 <= position <= length:
                raise ConfigError(f"tasks: position {position} is outside 1 .. {length}")
        self._positions = tasks
        self._tables: dict[tuple[torch.device, torch.dtype], Tables] = {}

    @classmethod
    def random(cls, seed: int = 0, **fields: Any) -> HMM:
        """Draw a model; `fields` are those of `HMMConfig`.  Raises `ConfigError`."""
        return decoded(HMMConfig, {"seed": seed, **fields}).build()

    @property
    def tasks(self) -> Mapping[str, Task]:
        """One task per chosen position, named by its number: the hidden state there."""
        classes = tuple(str(state) for state in range(self.states))
        truth = "generated state" if self.label == "state" else "most probable state given the sentence"
        return {
            str(p): Task(name=str(p), classes=classes, description=f"{truth} at word {p}")
            for p in self._positions
        }

    def content(self) -> bytes:
        """Return the tables, the length and the tasks as bytes."""
        head = repr((self.states, self.vocabulary_size, self.max_length, self._positions, self.label))
        tables = (self.initial, self.transition, self.emission)
        return head.encode() + b"".join(table.astype("<f8").tobytes() for table in tables)

    @cached_property
    def _sampler(self) -> Sampler:
        return Sampler(self.initial, self.transition, self.emission, self.max_length)

    @cached_property
    def _blocks(self) -> Blocks | None:
        return Blocks.find(self.initial, self.transition, self.emission)

    def sample_latent(
        self, n: int, *, seed: int, start: int = 0, device: torch.device | str = "cpu"
    ) -> Sample:
        """Draw sentences with their states: latents `states` int64 [n, T].

        They are made on `device` and are the same on every device.
        """
        numbers = sentence_numbers(n, start)
        ids, states = self._sampler.draw(numbers, seed=seed, device=torch.device(device))
        return Sample(ids=ids, latents={"states": states})

    def sample(self, n: int, *, seed: int, start: int = 0, device: torch.device | str = "cpu") -> Tensor:
        """Draw the sentences of `sample_latent` alone: ids [n, T]."""
        return self.sample_at(sentence_numbers(n, start), seed=seed, device=device)

    def sample_at(self, numbers: Tensor, *, seed: int, device: torch.device | str = "cpu") -> Tensor:
        return self._sampler.draw(numbers, seed=seed, states=False, device=torch.device(device))[0]

    def sample_on(self, device: torch.device, numbers: Tensor, *, seed: int) -> Tensor:
        return self.sample_at(numbers, seed=seed, device=device)

    def labels(self, task: str, sample: Sample) -> Tensor:
        """Return the hidden state at the task's position [B]: the sampled or the most probable one."""
        if task not in self.tasks:
            raise DataError(f"no task '{task}'; this language has {', '.join(self.tasks) or 'none'}")
        position = int(task) - 1
        if self.label == "state":
            return sample.latents["states"][:, position]
        return self.state_posterior(sample.ids)[:, position].argmax(dim=-1)

    def determined(self, task: str) -> bool:
        return self.label == "posterior"

    def label_posterior(self, task: str, ids: Tensor) -> Tensor | None:
        if self.determined(task):
            return super().label_posterior(task, ids)
        if task not in self.tasks:
            raise DataError(f"no task '{task}'; this language has {', '.join(self.tasks) or 'none'}")
        return self.state_posterior(ids)[:, int(task) - 1]

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return exact log-probabilities [B, T, V] of `dtype`, as `Language.conditionals` says.

        Memory beside the result: a few MB.  Cost: 2 T S (S + V) multiply-adds a sentence, with S and V those
        of a block where the blocks are small.  Then, and on processors with vectors of 32 or 64 bytes,
        results do not depend on the batch.
        """
        check_conditionals(self, ids, mask, dtype)
        shape, T = (*ids.shape, self.vocabulary_size), self.max_length
        out = empty(shape, dtype, ids.device)
        if mask is not None or ids.shape[1] != T:
            out.fill_(torch.nan)
        words, hidden = _cut(ids, T), None if mask is None else _cut(mask, T)
        for rows in self._passes(words, hidden, dtype, out=out):
            joint = self._joint(words, hidden, rows, dtype)
            if isinstance(rows, slice) and out[rows, :T].is_contiguous():
                passes.log(joint, out[rows, :T])
            else:
                logs = torch.empty_like(joint)
                passes.log(joint, logs)
                out[rows, :T] = logs
            if hidden is not None:
                out[rows, :T] = out[rows, :T].masked_fill_(~hidden[rows][:, :, None], torch.nan)
        return out

    def sentence_entropy(self, ids: Tensor) -> Tensor:
        """Return (1/T) sum_t H(x_t | x_-t) of each sentence [B] in nats, float64, from float32 terms.

        Memory: a few MB.
        """
        check_conditionals(self, ids)
        words = _cut(ids, self.max_length)
        out = torch.empty(len(ids), dtype=torch.float64, device=ids.device)
        for rows in self._passes(words, None, torch.float32, entropy=out):
            terms = torch.special.entr(self._joint(words, None, rows, torch.float32)).sum(dim=-1)
            out[rows] = terms.to(torch.float64).mean(dim=1)
        return out

    def log_prob(self, ids: Tensor) -> Tensor:
        """Return log Pr(x) [B] in nats, float64; -inf outside the language, e.g. for another length."""
        lengths = check_sentences(self, ids)
        out = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        tables = self._on(ids.device, torch.float64)
        for rows in torch.split((lengths == self.max_length).nonzero()[:, 0], _PASS):
            leaves = passes.leaves(tables, ids[rows, : self.max_length], None)
            out[rows] = passes.forward(tables, leaves)[1].log().sum(dim=0)
        return out

    def state_posterior(self, ids: Tensor) -> Tensor:
        """Return Pr(z_t = s | x) [B, T, S], float64.  Raises `DataError` for an impossible sentence."""
        check_conditionals(self, ids)
        tables = self._on(ids.device, torch.float64)
        out = torch.empty((len(ids), self.max_length, self.states), dtype=torch.float64, device=ids.device)
        for rows in torch.split(torch.arange(len(ids), device=ids.device), _PASS):
            leaves = passes.leaves(tables, ids[rows, : self.max_length], None)
            joint = passes.forward(tables, leaves)[0] * passes.backward(tables, leaves)[0] * leaves
            total = joint.sum(dim=-1)
            good = (total > 0).all(dim=0)
            if not good.all():
                raise impossible(int(rows[(~good).nonzero()[0, 0]]))
            out[rows] = (joint / total[:, :, None]).transpose(0, 1)
        return out

    def draw(self, sample: Sample, row: int) -> str:
        """Return a sentence as text, each word with the state that emitted it."""
        states, words = sample.latents["states"][row].tolist(), sample.ids[row].tolist()
        return " ".join(f"w{word}/s{state}" for word, state in zip(words, states, strict=True))

    def _on(self, device: torch.device, dtype: torch.dtype) -> Tables:
        key = (device, dtype)
        if key not in self._tables:
            self._tables[key] = Tables.of(self.initial, self.transition, self.emission, device, dtype)
        return self._tables[key]

    def _passes(
        self,
        words: Tensor,
        hidden: Tensor | None,
        dtype: torch.dtype,
        *,
        out: Tensor | None = None,
        entropy: Tensor | None = None,
    ) -> Iterator[slice | Tensor]:
        """Let the blocks answer what they can, and yield the other rows, a pass at a time."""
        if dtype != torch.float32 or words.device.type != "cpu" or self._blocks is None:
            yield from (slice(k, k + _PASS) for k in range(0, len(words), _PASS))
            return
        rest = self._blocks.answer(words, hidden, out, entropy)
        yield from torch.split(rest, _PASS) if len(rest) else ()

    def _joint(
        self, words: Tensor, hidden: Tensor | None, rows: slice | Tensor, dtype: torch.dtype
    ) -> Tensor:
        """Return Pr(x_t = c | visible words but x_t) [b, T, V]; unsound float32 is redone in float64."""
        words, hidden = words[rows], None if hidden is None else hidden[rows]
        context, good = passes.contexts(self._on(words.device, dtype), words, hidden)
        if not good.all() and dtype != torch.float64:
            again = (~good).nonzero()[:, 0]
            found, good[again] = passes.contexts(
                self._on(words.device, torch.float64),
                words[again],
                None if hidden is None else hidden[again],
            )
            context[again] = found.to(dtype)
        if not good.all():
            row = int((~good).nonzero()[0, 0])
            raise impossible(rows.start + row if isinstance(rows, slice) else int(rows[row]))
        return context @ self._on(words.device, dtype).emission


def _cut(x: Tensor, T: int) -> Tensor:
    """Return the first T columns of ids, as int64, or of a mask; contiguous, as the kernels are compiled."""
    return x[:, :T].to(x.dtype if x.dtype == torch.bool else torch.int64).contiguous()
