"""Hidden Markov models with block-diagonal transitions and emissions.

    Pr(z, x) = initial[z_1] emission[z_1, x_1] prod_{t=2..T} transition[z_{t-1}, z_t] emission[z_t, x_t]

States and words fall into as many blocks as the configuration says; a state moves and emits only within its
block.  Tables are Dirichlet draws of a seed (Liu, Xie, Li and Ma, "Same Pre-training Loss, Better
Downstream", ICML 2023, appendix A.1: random block-diagonal matrices, tasks on the 6th and 10th state).

The conditionals of all positions come from one forward-backward pass (Rabiner 1989):

    Pr(x_t = c | x_-t)  is proportional to  sum_s (a_{t-1} transition)[s] b_t[s] emission[s, c]

with a the forward and b the backward vector, each normalised at every step.

>>> language = HMM.random(states=4, vocabulary=6, length=3, blocks=2, tasks=(2,))
>>> ids = language.sample(5, seed=0)
>>> bool((language.conditionals(ids).exp().sum(-1) - 1).abs().max() < 1e-5)
True
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from pydantic import Field, ValidationInfo, field_validator
from torch import Tensor

from raysweep.errors import ConfigError, DataError
from raysweep.languages.base import Language, LanguageConfig, Sample, Task, certain_length
from raysweep.languages.checks import check_fixed_length, check_sentences, decoded, floor, impossible
from raysweep.languages.draw import Categories, dirichlet
from raysweep.seeding import derive, uniforms

#: Sentences per pass: the working set stays within a few MB.
_BATCH_ELEMENTS = 1 << 22


class HMMConfig(LanguageConfig):
    """A random block-diagonal hidden Markov model; all sentences have `length` words."""

    kind: Literal["hmm"] = "hmm"
    seed: int = Field(default=0, ge=0)
    states: int = Field(default=100, ge=1)
    vocabulary: int = Field(default=200, ge=2)
    length: int = Field(default=16, ge=1, le=1024)
    #: Number of diagonal blocks; 1 is a dense model.
    blocks: int = Field(default=10, ge=1)
    #: Of the symmetric Dirichlet distribution that every row is drawn from; small is peaked.
    concentration: float = Field(default=1.0, ge=0.05, le=1000.0)
    #: Positions, counted from 1, whose hidden states are downstream tasks.
    tasks: tuple[int, ...] = (6, 10)
    #: `state`: the state that generated the word; `posterior`: the most probable state given the sentence.
    label: Literal["state", "posterior"] = "state"

    @field_validator("blocks")
    @classmethod
    def _blocks_fit(cls, blocks: int, info: ValidationInfo) -> int:
        for name in ("states", "vocabulary"):
            size = info.data.get(name)
            if size is not None and blocks > size:
                raise ValueError(f"{blocks} blocks need at least as many {name}, not {size}")
        return blocks

    @field_validator("tasks")
    @classmethod
    def _tasks_fit(cls, tasks: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        length = info.data.get("length")
        for position in tasks:
            if position < 1 or (length is not None and position > length):
                raise ValueError(f"position {position} is outside 1 .. {length}, the length of a sentence")
        if len(set(tasks)) != len(tasks):
            raise ValueError(f"a position is named twice in {list(tasks)}")
        return tasks

    def build(self) -> HMM:
        """Draw the tables and make the language."""
        block_of = np.arange(self.states) * self.blocks // self.states
        block_of_word = np.arange(self.vocabulary) * self.blocks // self.vocabulary

        def rows(purpose: str, column_block: np.ndarray) -> np.ndarray:
            table = np.zeros((self.states, len(column_block)))
            for block in range(self.blocks):
                inside, columns = np.nonzero(block_of == block)[0], np.nonzero(column_block == block)[0]
                seed = derive(self.seed, purpose, block)
                table[np.ix_(inside, columns)] = dirichlet(
                    seed, "row", len(inside), len(columns), self.concentration
                )
            return table

        return HMM(
            initial=dirichlet(self.seed, "initial", 1, self.states, self.concentration)[0],
            transition=rows("transition", block_of),
            emission=rows("emission", block_of_word),
            length=self.length,
            tasks=self.tasks,
            label=self.label,
        )


class HMM(Language):
    """A hidden Markov model of sentences of `length` words; see the module's text for the equations.

    `initial` [S], `transition` [S, S] and `emission` [S, V] are probabilities.  Latents: `states` [B, T].
    """

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
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor]] = {}

    @classmethod
    def random(cls, seed: int = 0, **fields: Any) -> HMM:
        """Draw a model; `fields` are those of `HMMConfig`.  Raises `ConfigError`."""
        return decoded(HMMConfig, {"seed": seed, **fields}).build()

    @property
    def tasks(self) -> Mapping[str, Task]:
        """One task per chosen position, named by it: which hidden state is there."""
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
    def _samplers(self) -> tuple[Categories, Categories, Categories]:
        tables = (self.initial[None], self.transition, self.emission)
        first, step, word = (Categories.of_rows(table) for table in tables)
        return first, step, word

    def sample_latent(self, n: int, *, seed: int, start: int = 0) -> Sample:
        """Draw sentences with their states: latents `states` int64 [n, T]."""
        T, S, V = self.max_length, self.states, self.vocabulary_size
        u = uniforms(seed, "hmm", torch.arange(start, start + n), 2 * T)
        first, step, word = self._samplers
        states = torch.empty(n, T, dtype=torch.int64)
        states[:, 0] = first.draw(torch.zeros(n, dtype=torch.int64), u[:, 0])
        for t in range(1, T):
            states[:, t] = step.draw(states[:, t - 1], u[:, t]) % S
        return Sample(ids=word.draw(states, u[:, T:]) % V, latents={"states": states})

    def labels(self, task: str, sample: Sample) -> Tensor:
        """Return the hidden state at the task's position [B]: the sampled or the most probable one."""
        if task not in self.tasks:
            raise DataError(f"no task '{task}'; this language has {', '.join(self.tasks) or 'none'}")
        position = int(task) - 1
        if self.label == "state":
            return sample.latents["states"][:, position]
        return self.state_posterior(sample.ids)[:, position].argmax(dim=-1)

    def conditionals(
        self, ids: Tensor, mask: Tensor | None = None, *, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """Return exact log-probabilities [B, T, V] of `dtype`, as `Language.conditionals` says.

        Memory beside the result: a few MB.  Cost: 2 T S (S + V) multiply-adds a sentence.
        """
        check_fixed_length(self, ids, mask)
        out = torch.full((*ids.shape, self.vocabulary_size), torch.nan, dtype=dtype, device=ids.device)
        size = max(1, _BATCH_ELEMENTS // (self.max_length * max(self.states, self.vocabulary_size)))
        for rows in torch.split(torch.arange(len(ids), device=ids.device), size):
            words, hidden = ids[rows, : self.max_length], None
            if mask is not None:
                hidden = mask[rows, : self.max_length]
            context, good = self._contexts(words, hidden, dtype)
            if not good.all() and dtype != torch.float64:
                again = (~good).nonzero()[:, 0]
                found, good[again] = self._contexts(
                    words[again], None if hidden is None else hidden[again], torch.float64
                )
                context[again] = found.to(dtype)
            if not good.all():
                raise impossible(int(rows[(~good).nonzero()[0, 0]]))
            joint = context @ self._on(ids.device, dtype)[2]
            out[rows, : self.max_length] = (joint / joint.sum(dim=-1, keepdim=True)).log_()
        return out if mask is None else out.masked_fill_(~mask[:, :, None], torch.nan)

    def log_prob(self, ids: Tensor) -> Tensor:
        """Return log Pr(x) [B] in nats, float64; -inf outside the language, such as other lengths."""
        lengths = check_sentences(self, ids)
        out = torch.full((len(ids),), -torch.inf, dtype=torch.float64, device=ids.device)
        rows = (lengths == self.max_length).nonzero()[:, 0]
        if len(rows):
            leaves = self._leaves(ids[rows, : self.max_length], None, torch.float64)
            out[rows] = self._forward(leaves)[1].log().sum(dim=1)
        return out

    def state_posterior(self, ids: Tensor) -> Tensor:
        """Return Pr(z_t = s | x) [B, T, S], float64.  Raises `DataError` for an impossible sentence."""
        check_fixed_length(self, ids)
        leaves = self._leaves(ids[:, : self.max_length], None, torch.float64)
        joint = self._forward(leaves)[0] * self._backward(leaves)[0] * leaves
        total = joint.sum(dim=-1, keepdim=True)
        good = (total > 0).all(dim=1)[:, 0]
        if not good.all():
            raise impossible(int((~good).nonzero()[0, 0]))
        return joint / total

    def draw(self, sample: Sample, row: int) -> str:
        """Return a sentence as text, each word with the state that emitted it."""
        states, words = sample.latents["states"][row].tolist(), sample.ids[row].tolist()
        return " ".join(f"w{word}/s{state}" for word, state in zip(words, states, strict=True))

    def _on(self, device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        key = (device, dtype)
        if key not in self._tables:
            initial, transition, emission = (
                torch.from_numpy(table).to(device=device, dtype=dtype)
                for table in (self.initial, self.transition, self.emission)
            )
            self._tables[key] = (initial, transition, emission)
        return self._tables[key]

    def _leaves(self, words: Tensor, hidden: Tensor | None, dtype: torch.dtype) -> Tensor:
        """Pr(x_t | z_t = s) [B, T, S], 1 where x_t is hidden."""
        emission = self._on(words.device, dtype)[2]
        if hidden is None:
            return emission.T[words]
        leaves = emission.T[torch.where(hidden, 0, words)]
        return leaves.masked_fill(hidden[:, :, None], 1.0)

    def _forward(self, leaves: Tensor) -> tuple[Tensor, Tensor]:
        """Pr(z_t | x_<t) [B, T, S] and Pr(x_t | x_<t) [B, T]; zeros behind an impossible prefix."""
        initial, transition, _ = self._on(leaves.device, leaves.dtype)
        ahead, total = torch.empty_like(leaves), torch.empty_like(leaves[:, :, 0])
        prior = initial.expand(len(leaves), -1)
        for t in range(self.max_length):
            ahead[:, t] = prior
            joint = prior * leaves[:, t]
            total[:, t] = joint.sum(dim=1)
            prior = (joint / total[:, t, None].clamp_min(torch.finfo(leaves.dtype).tiny)) @ transition
        return ahead, total

    def _backward(self, leaves: Tensor) -> tuple[Tensor, Tensor]:
        """Pr(x_>t | z_t = s) [B, T, S], each row scaled to sum to 1, and the T-1 sums [B, T-1]."""
        transition = self._on(leaves.device, leaves.dtype)[1]
        behind, total = torch.empty_like(leaves), torch.empty_like(leaves[:, 1:, 0])
        behind[:, -1] = 1.0 / self.states
        for t in range(self.max_length - 1, 0, -1):
            step = (behind[:, t] * leaves[:, t]) @ transition.T
            total[:, t - 1] = step.sum(dim=1)
            behind[:, t - 1] = step / total[:, t - 1, None].clamp_min(torch.finfo(step.dtype).tiny)
        return behind, total

    def _contexts(self, words: Tensor, hidden: Tensor | None, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Pr(z_t | visible words but x_t) [B, T, S], and which sentences are sound [B].

        Sound: every normaliser on the way is large enough for `dtype`; in float64, positive.
        """
        leaves = self._leaves(words, hidden, dtype)
        (ahead, forward), (behind, backward) = self._forward(leaves), self._backward(leaves)
        context = ahead * behind
        total = context.sum(dim=-1)
        if hidden is None:
            # No context holds all words, so the last one may be impossible behind the others.
            forward = forward[:, :-1]
        sound = torch.cat([total, forward, backward], dim=1) >= floor(dtype)
        return context / total[:, :, None], sound.all(dim=1)
