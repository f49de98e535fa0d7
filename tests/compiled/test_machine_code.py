"""Machine code of the kernels: the process that compiles it and those that load it round alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MATRIX = """
import hashlib
import numpy as np
from raysweep.flatness.fused.kernels import matrix

random = np.random.default_rng(0)
lengths = random.integers(1, 12, 300)
starts = np.concatenate([[0], lengths.cumsum()])
for inputs, outputs in ((64, 192), (64, 64), (256, 64)):
    a, d = (random.standard_normal((starts[-1], n)).astype(np.float32) for n in (inputs, outputs))
    weight, bias = np.empty((2, 1, len(lengths)))
    matrix(a, d, starts, weight, bias)
    print(hashlib.sha256(weight.tobytes() + bias.tobytes()).hexdigest())
"""

#: The exact conditionals of a language, given as `argv[1]`.
LANGUAGE = """
import hashlib, json, sys
from raysweep import registry

language = registry.languages.decode(json.loads(sys.argv[1])).build()
ids = language.sample(257, seed=1)
for found in (ids, language.conditionals(ids), language.sentence_entropy(ids)):
    print(hashlib.sha256(found.contiguous().numpy().tobytes()).hexdigest())
"""

#: Three steps of training a model, given as `argv[1]`.
TRAINING = """
import hashlib, json, sys
import torch
from raysweep import registry
from raysweep.algorithms import AdamWConfig
from raysweep.training import World
from raysweep.training.config import PretrainConfig
from raysweep.training.data import batches
from raysweep.training.step import Stepper

torch.set_num_threads(1)
language = registry.languages.decode(
    {"kind": "hmm", "states": 8, "vocabulary": 40, "length": 10, "blocks": 2}
).build()
pretrain = PretrainConfig(steps=3, batch_size=64, milestones=(3,))
stepper = Stepper(
    registry.models.decode(json.loads(sys.argv[1])).build(language, seed=0),
    AdamWConfig(warmup_steps=1),
    language=language, pretrain=pretrain, seed=0, world=World(), device=torch.device("cpu"),
)
for step, batch in enumerate(batches(language, pretrain, seed=0, first=1, last=3), start=1):
    stepper.update(batch, step)
    weights = b"".join(p.detach().numpy().tobytes() for p in stepper.model.parameters())
    print(hashlib.sha256(weights).hexdigest())
"""

HMM = '{"kind": "hmm", "states": 30, "vocabulary": 100, "length": 12, "blocks": 3}'
LAYERED = """{"kind": "pcfg", "structure": "layered", "seed": 0, "roots": 8, "layers": 3, "symbols": 4,
              "rules": 2, "stop": 0, "words": 8, "vocabulary": 24}"""
ENCODER = '{"kind": "encoder", "shape": "60/3/2/200", "dropout": 0.1}'
LSTM = '{"kind": "lstm", "shape": "48/2", "dropout": 0.1}'


def marked(program: str, config: str, kernel: str, name: str) -> object:
    """Return a case that compiles for a minute."""
    return pytest.param(program, [config], kernel, id=name, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("program", "arguments", "kernel"),
    [
        pytest.param(MATRIX, [], "kernels.matrix", id="matrix"),
        marked(LANGUAGE, HMM, "kernels.conditionals", "hmm"),
        marked(LANGUAGE, '{"kind": "pcfg"}', "kernels.charts", "pcfg"),
        marked(LANGUAGE, LAYERED, "derive.derivations", "layered"),
        marked(TRAINING, ENCODER, "attention.attend", "encoder"),
        marked(TRAINING, LSTM, "recurrent.advance", "lstm"),
    ],
)
def test_a_kernel_from_the_disk_rounds_like_the_one_that_was_compiled(
    program: str, arguments: list[str], kernel: str, tmp_path: Path
) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", program, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for _ in range(2)
    ]
    assert len(said[0].split()) == 3
    assert said[0] == said[1]
    assert list(tmp_path.rglob(f"{kernel}*.kernel"))
