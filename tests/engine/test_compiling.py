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
from raysweep.engine import compiling, forks
from raysweep.engine.compiling import examples, measure
from raysweep.languages.hmm import HMM
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
    runs = {spec.run_id: spec for spec in sweep.runs}
    found = [example.split(":") for example in examples(sweep)]
    named = [(runs[run_id].algorithm.kind, name) for run_id, name in found]
    assert named == [("lookup_table", "excess_loss"), ("adamw", "excess_loss"), ("adamw", "trace")]
    for run_id, name in found:
        spec = runs[run_id]
        assert not spec.trains or str(spec.model.encode()["shape"]) == "8/2/2/16"
        measure(sweep, spec, name, tmp_path)


def test_large_models_and_languages_that_read_one_are_left_out(
    sweep: rs.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiling, "MOST", 0)
    assert len(examples(sweep)) == 1
    monkeypatch.setattr(HMM, "stores_conditionals", True)
    assert examples(sweep) == []


def test_examples_are_measured_in_a_process_without_ray(sweep: rs.Sweep, tmp_path: Path) -> None:
    """One that cannot be measured is no obstacle to those behind it."""
    save_sweep(sweep)
    program = (
        "import sys, runpy; sys.argv = ['compiling', *sys.argv[1:]]\n"
        "runpy.run_module('raysweep.engine.compiling', run_name='__main__', alter_sys=True)\n"
        "assert 'ray' not in sys.modules"
    )
    made = {}
    _, loss, trace = examples(sweep)
    for name, wanted in (("loss", [loss]), ("trace", ["absent:trace", loss.replace("excess_", "x"), trace])):
        kernels = tmp_path / name
        subprocess.run(
            [sys.executable, "-c", program, str(sweep.directory), str(tmp_path), *wanted],
            env=os.environ | {"NUMBA_CACHE_DIR": str(kernels)},
            check=True,
            timeout=300,
        )
        made[name] = {path.name.partition(".cpython")[0] for path in kernels.rglob("*.kernel")}
    norms = "kernels.matrix"
    assert norms in made["trace"]
    assert norms not in made["loss"]
    assert "kernels.embed" in made["loss"] & made["trace"]


def test_a_function_is_called_before_the_first_compiling(tmp_path: Path) -> None:
    """Once, and neither where the code is there, nor after the block."""
    told: Counter[str] = Counter()
    entries = cache._Entries(tmp_path, "m.f", "1" * 16, line=3)
    entries.save("there", 1)
    with when_compiling(lambda: told.update(["first"])):
        assert entries.load("there") == 1
        assert not told
        for name in ("absent", "another"):
            assert entries.load(name) is None
            entries.save(name, 2)
    with when_compiling(lambda: told.update(["second"])):
        pass
    about_to_compile()
    assert told == {"first": 1}


def test_without_a_fork_server_or_a_spare_processor_nothing_is_begun(
    sweep: rs.Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    begun: list[tuple[str, ...]] = []

    class Server:
        folder = tmp_path / "server"

        def fork(self, *command: str) -> None:
            begun.append(command)

    Server.folder.mkdir()
    wanted = examples(sweep)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    forks.compile_ahead(sweep)
    assert not begun
    monkeypatch.setattr(forks, "_SERVERS", [Server()])
    forks.compile_ahead(sweep)
    module, directory = "raysweep.engine.compiling", str(sweep.directory)
    assert begun == [
        (module, directory, str(Server.folder / "0"), wanted[0], wanted[2]),
        (module, directory, str(Server.folder / "1"), wanted[1]),
    ]
    begun.clear()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    forks.compile_ahead(sweep)
    assert not begun
    # The folders of the first time are there.
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    forks.compile_ahead(sweep)
    assert not begun
    [record] = caplog.records
    assert "nothing is compiled ahead" in record.getMessage()
