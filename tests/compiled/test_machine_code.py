"""Machine code of the kernels rounds alike in the process that compiles it and in those that load it, and
wherever its arrays lie.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import raysweep

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
WHOLE = '{"kind": "encoder", "shape": "64/4/2/256", "dropout": 0.1}'
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
        marked(TRAINING, WHOLE, "whole._run", "encoder in one call"),
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


def summed(node: ast.AST) -> bool:
    """Return whether a statement adds to a number in a variable.

    A count of where to write next, which grows by a constant, is no sum.
    """
    if isinstance(node, ast.AugAssign):
        adds = isinstance(node.op, ast.Add | ast.Sub) and isinstance(node.target, ast.Name)
        return adds and not isinstance(node.value, ast.Constant)
    if not isinstance(node, ast.Assign):
        return False
    pairs = [(target, node.value) for target in node.targets]
    if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(node.targets[0].elts, node.value.elts, strict=True))
    return any(
        isinstance(target, ast.Name)
        and isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Add | ast.Sub)
        and target.id in {term.id for term in (value.left, value.right) if isinstance(term, ast.Name)}
        and not any(isinstance(term, ast.Constant) for term in (value.left, value.right))
        for target, value in pairs
    )


def summing_stores(source: str) -> Iterator[str]:
    """Yield the kernels, each with a line of it, whose innermost loop both adds up a number and writes."""
    stores = {"poke", "save", "put", "put_low", "store", "stream", "write_tile"}
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef):
            continue
        if not any(
            "kernel(**" in ast.unparse(d) or "reassoc" in ast.unparse(d) for d in function.decorator_list
        ):
            continue
        for loop in ast.walk(function):
            if not isinstance(loop, ast.For | ast.While):
                continue
            inside = [node for part in loop.body for node in ast.walk(part)]
            if any(isinstance(node, ast.For | ast.While) for node in inside):
                continue
            calls = {
                node.func.id
                for node in inside
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
            }
            written = any(
                isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) for node in inside
            )
            sums = [node for node in inside if summed(node)]
            if sums and (stores & calls or written):
                yield f"{function.name}: {ast.unparse(sums[0])}"


def test_no_loop_of_a_kernel_both_sums_and_writes() -> None:
    kernel = "@kernel(**COMPILED)\ndef f(x, y, s, t):\n    for i in range(9):\n        "
    for line in ("s += x[i]", "s = s - x[i]", "s, t = (t, t + x[i])"):
        assert list(summing_stores(kernel + f"{line}\n        y[i] = x[i]")) == [f"f: {line}"], line
        assert list(summing_stores(kernel + f"poke(y, i, s)\n        {line}")) == [f"f: {line}"], line
    for line in ("s += x[i]", "y[i] += x[i]", "s *= x[i]\n        y[i] = s", "s += 1\n        y[s] = x[i]"):
        assert list(summing_stores(kernel + line)) == [], line
    files = sorted(Path(raysweep.__file__).parent.rglob("*.py"))
    found = [f"{file.stem}.{said}" for file in files for said in summing_stores(file.read_text("utf-8"))]
    assert found == []
