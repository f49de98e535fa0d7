"""Compiling ahead: an example of each kind, measured in a process without Ray."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import raysweep as rs
from raysweep.compiled import about_to_compile, cache, when_compiling
from raysweep.engine import forks
from raysweep.engine.ahead import examples, measure
from raysweep.sweep.stored import save_sweep

SWEEP = """
name: first
language: {kind: hmm, states: 4, vocabulary: 6, length: 6, blocks: 2, tasks: [2]}
model: {kind: encoder, shape: 8/2/1/16}
algorithm: {kind: adamw, lr: 1e-3}
pretrain: {steps: 4, batch_size: 8, milestones: [2, 4]}
evaluate: {excess_loss: {sentences: 64}, trace: {inputs: 64}, trace_paper: {kind: trace, preset: paper}}
axes: {model.shape: [8/2/1/16, 8/2/2/16], seed: [0, 1]}
include:
  - algorithm: {kind: lookup_table}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> rs.Sweep:
    file = tmp_path / "first.yaml"
    file.write_text(SWEEP, encoding="utf-8")
    return rs.load_sweep(file, storage=tmp_path / "results")


def test_each_kind_has_one_example_and_what_is_not_trained_comes_first(
    sweep: rs.Sweep, tmp_path: Path
) -> None:
    found = [(spec.algorithm.kind, evaluation.kind) for spec, evaluation in examples(sweep, tmp_path)]
    assert found == [("lookup_table", "excess_loss"), ("adamw", "excess_loss"), ("adamw", "trace")]
    for spec, evaluation in examples(sweep, tmp_path):
        assert not spec.trains or str(spec.model.encode()["shape"]) == "8/2/2/16"
        measure(sweep, spec, evaluation)


def test_a_part_of_the_examples_is_compiled_in_a_process_without_ray(sweep: rs.Sweep, tmp_path: Path) -> None:
    """Of two parts, the second has the second example alone: a model is read, and no table."""
    save_sweep(sweep)
    program = (
        "import sys, runpy; sys.argv = ['ahead', *sys.argv[1:]]\n"
        "runpy.run_module('raysweep.engine.ahead', run_name='__main__', alter_sys=True)\n"
        "assert 'ray' not in sys.modules"
    )
    made = {}
    for part in ("0", "1"):
        kernels = tmp_path / part
        subprocess.run(
            [sys.executable, "-c", program, str(sweep.directory), str(tmp_path), part, "2"],
            env=os.environ | {"NUMBA_CACHE_DIR": str(kernels)},
            check=True,
            timeout=300,
        )
        made[part] = {path.name.partition(".cpython")[0] for path in kernels.rglob("*.kernel")}
    assert any(name.startswith("attention.") for name in made["1"])
    assert any("matrix" in name for name in made["0"])
    assert not any("matrix" in name for name in made["1"])


def test_a_process_tells_before_a_process_compiles(tmp_path: Path) -> None:
    """Once, and neither where the code is there, nor after the block."""
    told: Counter[str] = Counter()
    entries = cache._Entries(tmp_path, "m.f", "1" * 16, line=3)
    entries.save("there", 1)
    with when_compiling(lambda: told.update(["first"])):
        assert entries.load("there") == 1
        assert not told
        assert entries.load("absent") is None
        assert entries.load("another") is None
    with when_compiling(lambda: told.update(["second"])):
        pass
    about_to_compile()
    assert told == {"first": 1}


def test_without_a_fork_server_or_a_spare_processor_nothing_is_begun(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun: list[tuple[str, ...]] = []

    class Server:
        folder = tmp_path / "files"

        def fork(self, *command: str) -> None:
            begun.append(command)

    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    forks.compile_ahead(tmp_path)
    assert not begun
    monkeypatch.setattr(forks, "_SERVERS", [Server()])
    forks.compile_ahead(tmp_path)
    assert begun == [
        ("raysweep.engine.ahead", str(tmp_path), str(Server.folder), str(part), "2") for part in range(2)
    ]
    begun.clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    forks.compile_ahead(tmp_path)
    assert not begun
