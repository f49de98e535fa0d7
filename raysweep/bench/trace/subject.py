"""The models that the benchmark measures, trained in the same run, and their inputs.

The language is the paper's hidden Markov model with a tenth of its states and words: sentences of 16 words,
ten states in ten blocks, so that visible words determine the state of the hidden one.  It meets the needs of
the states of training: exact conditionals, one length of sentence (vmap cannot skip padding), and
conditionals that encoders of 64 and 128 and an LSTM of 64 learn to `TOLERANCE` in the time of a benchmark.
With the paper's 100 states and 200 words, they are farther off after several times as many steps.

The three states of a model:

- `init`: the initial weights.
- `saturated`: after `STEPS` steps of the paper's AdamW at a constant rate of 1e-3.  Its excess loss is among
  the figures of each case, with the tolerance as the goal.
- `peaked`: the same with logits `PEAKED` times as large, which is a model far too sure of itself.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import cache
from typing import Literal

import torch
from torch import Tensor

from raysweep.algorithms.adamw import AdamWConfig
from raysweep.flatness.trace.fisher import draw_positions
from raysweep.languages import HMM
from raysweep.models.base import MaskedLM, ModelConfig
from raysweep.models.batch import Batch
from raysweep.models.encoder import Encoder, EncoderConfig
from raysweep.models.lstm import LSTMConfig
from raysweep.models.precision import Precision
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, batches
from raysweep.training.step import Stepper

State = Literal["init", "saturated", "peaked"]

#: Logits of the peaked state, as a multiple of the trained ones.
PEAKED = 4.0

#: Largest excess loss of a saturated model, in nats.
TOLERANCE = 0.02

#: Steps of training, and sentences in a batch.
STEPS, BATCH = 1200, 128


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A language, a model of it without dropout, and the same model a twentieth of the training earlier."""

    language: HMM
    model: MaskedLM
    earlier: MaskedLM
    config: ModelConfig

    def inputs(self, n: int, *, start: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Return sentences [n, T], masked positions [n] and the sentences with these hidden."""
        ids = self.language.sample(n, seed=7, start=start)
        positions = draw_positions(ids, self.language.pad_id, seed=7, start=start)
        return ids, positions, ids.scatter(1, positions[:, None], self.language.mask_id)


def language() -> HMM:
    """Return the language: 10 states, 20 words, 10 blocks, and 16 words in every sentence."""
    return HMM.random(states=10, vocabulary=20)


@cache
def subject(shape: str, state: State, quick: bool) -> Subject:
    """Return the subject of a case; each shape is trained once."""
    if state == "peaked":
        trained = subject(shape, "saturated", quick)
        models = [_sharper(model) for model in (trained.model, trained.earlier)]
        return Subject(language=trained.language, model=models[0], earlier=models[1], config=trained.config)
    text, make = language(), LSTMConfig if shape.count("/") == 1 else EncoderConfig
    config = make(shape=shape, dropout=0.0)
    steps = 0 if state == "init" else 12 if quick else STEPS
    stepper = stepper_of(
        config, text, steps=max(1, steps), batch_size=32 if quick else BATCH, precision="auto"
    )
    earlier = copy.deepcopy(stepper.model)
    for step, batch in enumerate(drawn(stepper, text, steps), start=1):
        stepper.update(batch, step)
        if step == steps - max(1, steps // 20):
            earlier = copy.deepcopy(stepper.model)
    return Subject(language=text, model=stepper.model.eval(), earlier=earlier.eval(), config=config)


def stepper_of(
    config: ModelConfig, text: HMM, *, steps: int, batch_size: int, precision: Precision = "float32"
) -> Stepper:
    """Return a model of `text` before its first step."""
    pretrain = PretrainConfig(steps=steps, batch_size=batch_size, precision=precision)
    return Stepper(
        config.build(text, seed=0),
        AdamWConfig(warmup_steps=100),
        language=text,
        pretrain=pretrain,
        seed=0,
        world=World(),
        device=torch.device("cpu"),
    )


def drawn(stepper: Stepper, text: HMM, steps: int) -> list[Batch]:
    """Return the batches of `steps` steps."""
    return list(batches(text, stepper.pretrain, seed=0, first=1, last=steps, device="cpu")) if steps else []


@torch.no_grad()
def _sharper(model: MaskedLM) -> MaskedLM:
    """Return a copy of an encoder whose logits are `PEAKED` times as large."""
    found = copy.deepcopy(model)
    if not isinstance(found, Encoder):
        raise TypeError("only encoders can be made sharper")
    for parameter in (found.head_norm.weight, found.head_norm.bias, found.decoder.bias):
        parameter.mul_(PEAKED)
    return found
