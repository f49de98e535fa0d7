"""Samples of hidden states and words, the same on every device."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from raysweep.languages.draw import Categories
from raysweep.seeding import uniforms

if TYPE_CHECKING:
    from raysweep.languages.guide import Guide

CPU = torch.device("cpu")


class Sampler:
    """Draws sentences of T = `length` words: the states from T uniforms, the words from the next T."""

    def __init__(
        self, initial: np.ndarray, transition: np.ndarray, emission: np.ndarray, length: int
    ) -> None:
        self.length = length
        self.states, self.vocabulary = emission.shape
        self._tables = {
            CPU: tuple(Categories.of_rows(table) for table in (initial[None], transition, emission))
        }

    def draw(
        self, numbers: Tensor, *, seed: int, states: bool = True, device: torch.device = CPU
    ) -> tuple[Tensor, Tensor]:
        """Return ids [n, T] and states [n, T], or [0, T] without `states`, of sentences `numbers` [n]; int64.

        A compiled kernel draws on a CPU; other devices draw all sentences together.
        """
        if device.type != "cpu":
            ids, path = self.walk(numbers, seed=seed, device=device)
            return ids, path if states else path[:0]
        from raysweep.compiled.philox import key
        from raysweep.languages.hmm import kernels

        n = len(numbers)
        ids = torch.empty(n, self.length, dtype=torch.int64)
        path = torch.empty(n if states else 0, self.length, dtype=torch.int64)
        first, step, word = self._guides
        stream = key(seed, "hmm"), numbers.contiguous().numpy()
        kernels.paths(first, step, word, self.vocabulary, *stream, ids.numpy(), path.numpy())
        return ids, path

    @cached_property
    def _guides(self) -> tuple[Guide, Guide, Guide]:
        from raysweep.languages.guide import guide

        first, step, word = self._tables[CPU]
        return guide(first), guide(step), guide(word)

    def walk(self, numbers: Tensor, *, seed: int, device: torch.device = CPU) -> tuple[Tensor, Tensor]:
        """Return the result of `draw`, with a few tensor operations per step for all sentences."""
        if device not in self._tables:
            self._tables[device] = tuple(table.to(device) for table in self._tables[CPU])
        first, step, word = self._tables[device]
        n, T = len(numbers), self.length
        u = uniforms(seed, "hmm", numbers.to(device), 2 * T)
        states = torch.empty(n, T, dtype=torch.int64, device=device)
        states[:, 0] = first.draw(torch.zeros(n, dtype=torch.int64, device=device), u[:, 0])
        for t in range(1, T):
            states[:, t] = step.draw(states[:, t - 1], u[:, t]) % self.states
        return word.draw(states, u[:, T:]) % self.vocabulary, states
