"""Sizes of the work that grow one at a time."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch

from raysweep.bench.train.work import Work, train
from raysweep.flatness.trace.fisher import draw_positions, fisher_trace
from raysweep.languages import HMM, PCFG
from raysweep.models.encoder import EncoderConfig
from raysweep.models.flops import training_flops
from raysweep.sweep import load_sweep, make_plan
from raysweep.training.data import masked_words

#: Operations of `raysweep.compiled.scalars.logarithm`, a multiplication with an addition being one.
_LOGARITHM = 20


class Load(NamedTuple):
    """Work that is ready to be called, and the operations that it takes, up to a constant factor."""

    call: Callable[[], object]
    operations: float


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A size by its `key`, its values, and the load at a value."""

    key: str
    work: str
    values: tuple[int, ...]
    load: Callable[[int], Load]


@dataclass(frozen=True, kw_only=True)
class _Sizes:
    """The sizes of training and of a trace, on sentences of a hidden Markov model."""

    words: int = 200
    length: int = 16
    width: int = 64
    layers: int = 2
    sentences: int = 256

    @property
    def shape(self) -> str:
        return f"{self.width}/{self.width // 16}/{self.layers}/{4 * self.width}"

    @property
    def language(self) -> HMM:
        return HMM.random(states=10, vocabulary=self.words, length=self.length, tasks=[1])

    def operations(self) -> float:
        """Return those of a step of training; those of a trace grow as they do."""
        lengths = torch.full((self.sentences,), self.length)
        model = EncoderConfig(shape=self.shape).build(self.language, seed=0)
        found = training_flops(model, lengths, masked_words(lengths, "one"))
        assert found is not None
        return float(found)

    def training(self) -> Load:
        """Return steps of training with their data."""
        work = Work(
            shape=self.shape, batch_size=self.sentences, steps=4, device="cpu", language=self.language
        )
        stepper = work.stepper(dropout=0.1)
        return Load(lambda: train(work, stepper), work.steps * self.operations())

    def trace(self) -> Load:
        """Return a Fisher trace on all of its inputs, at initial weights."""
        language = self.language
        model = EncoderConfig(shape=self.shape, dropout=0.0).build(language, seed=0).eval()
        ids = language.sample(self.sentences, seed=1)
        positions = draw_positions(ids, language.pad_id, seed=1)
        return Load(lambda: fisher_trace(model, ids, positions), self.operations())


_SIZES = _Sizes()


def _pcfg(length: int, sentences: int) -> Load:
    """Return conditionals of a dense grammar of 20 symbols.

    Inside and outside pass take N³ operations for each way to split each part of a sentence: (n³ − n) / 6.
    """
    language = PCFG.random(structure="dense", nonterminals=20, max_length=length)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(language.vocabulary_size, (sentences, length), generator=generator)
    return Load(lambda: language.conditionals(ids), sentences * (length**3 - length) / 6)


def _hmm(states: int = 100, words: int = 200, length: int = 16, sentences: int = 1024) -> Load:
    """Return conditionals of a dense hidden Markov model.

    A word takes S² operations in each direction, S V for the mixture of all words, and V logarithms.
    """
    language = HMM.random(states=states, vocabulary=words, length=length, blocks=1, tasks=[1])
    ids = language.sample(sentences, seed=1)
    operations = 2.0 * states**2 + words * (states + _LOGARITHM)
    return Load(lambda: language.conditionals(ids), sentences * length * operations)


def _plan(runs: int) -> Load:
    """Return the plan of a sweep of many runs without records."""
    folder = tempfile.TemporaryDirectory(prefix="raysweep-bench-")
    file = Path(folder.name) / "many.yaml"
    content = {
        "name": "many",
        "language": {"kind": "hmm", "states": 4, "vocabulary": 6, "length": 5, "blocks": 2, "tasks": [2]},
        "model": {"kind": "encoder", "shape": "16/1/1/32"},
        "algorithm": {"kind": "adamw"},
        "pretrain": {"steps": 100, "batch_size": 16},
        "axes": {"seed": list(range(runs))},
    }
    file.write_text(json.dumps(content))
    # The folder goes as soon as nobody has its name.
    return Load(lambda: make_plan(load_sweep(file, storage=Path(folder.name) / "results")), runs)


AXES = (
    Axis(
        key="training-length",
        work="training of a 64/4/2/256 on 256 sentences a batch, words of a sentence",
        values=(8, 16, 32, 64, 128),
        load=lambda n: replace(_SIZES, length=n).training(),
    ),
    Axis(
        key="training-vocabulary",
        work="training of a 64/4/2/256, words of the vocabulary",
        values=(200, 1000, 5000, 30_522),
        load=lambda n: replace(_SIZES, words=n).training(),
    ),
    Axis(
        key="training-width",
        work="training of encoders of two layers, width",
        values=(32, 64, 128, 256, 512),
        load=lambda n: replace(_SIZES, width=n).training(),
    ),
    Axis(
        key="training-depth",
        work="training of encoders of width 64, layers",
        values=(1, 2, 4, 8, 16),
        load=lambda n: replace(_SIZES, layers=n).training(),
    ),
    Axis(
        key="training-batch",
        work="training of a 64/4/2/256, sentences of a batch",
        values=(64, 256, 1024, 4096),
        load=lambda n: replace(_SIZES, sentences=n).training(),
    ),
    Axis(
        key="trace-inputs",
        work="Fisher trace of a 64/4/2/256, inputs",
        values=(256, 1024, 4096, 16_384),
        load=lambda n: replace(_SIZES, sentences=n).trace(),
    ),
    Axis(
        key="trace-vocabulary",
        work="Fisher trace of a 64/4/2/256 on 1,024 inputs, words of the vocabulary",
        values=(200, 1000, 5000, 30_522),
        load=lambda n: replace(_SIZES, words=n, sentences=1024).trace(),
    ),
    Axis(
        key="trace-width",
        work="Fisher trace of encoders of two layers on 1,024 inputs, width",
        values=(32, 64, 128, 256, 512),
        load=lambda n: replace(_SIZES, width=n, sentences=1024).trace(),
    ),
    Axis(
        key="trace-length",
        work="Fisher trace of a 64/4/2/256 on 1,024 inputs, words of a sentence",
        values=(8, 16, 32, 64, 128),
        load=lambda n: replace(_SIZES, length=n, sentences=1024).trace(),
    ),
    Axis(
        key="pcfg-length",
        work="exact conditionals of a dense PCFG of 20 symbols, 64 sentences, words of a sentence",
        values=(4, 8, 16, 32, 64),
        load=lambda n: _pcfg(n, 64),
    ),
    Axis(
        key="pcfg-sentences",
        work="exact conditionals of a dense PCFG of 20 symbols, 16 words each, sentences",
        values=(64, 256, 1024, 4096),
        load=lambda n: _pcfg(16, n),
    ),
    Axis(
        key="hmm-states",
        work="exact conditionals of a dense HMM of 200 words, 1,024 sentences, states",
        values=(25, 50, 100, 200, 400),
        load=lambda n: _hmm(states=n),
    ),
    Axis(
        key="hmm-vocabulary",
        work="exact conditionals of a dense HMM of 100 states, 1,024 sentences, words of the vocabulary",
        values=(50, 200, 800, 3200),
        load=lambda n: _hmm(words=n),
    ),
    Axis(
        key="hmm-length",
        work="exact conditionals of a dense HMM of 100 states and 200 words, 1,024 sentences, their words",
        values=(8, 16, 32, 64, 128),
        load=lambda n: _hmm(length=n),
    ),
    Axis(
        key="plan-runs",
        work="file and plan of a sweep without records, runs",
        values=(100, 400, 1600, 6400),
        load=_plan,
    ),
)
