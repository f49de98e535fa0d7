"""Runs that start from others of the same file, in one launch, which is killed once in the middle."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch

from helpers.real_sweeps import changed, table, write
from raysweep.bench.engine.bare import run_all
from raysweep.sweep import load_sweep, make_plan

pytestmark = pytest.mark.ray

#: AdamW of two seeds; from the middle of each SGD, which is measured at once; and from one of these SAM.
PHASES = changed(
    pretrain={"steps": 400, "batch_size": 32, "milestones": [200, 400], "checkpoint_every": 50},
    algorithm={"kind": "adamw", "lr": 1e-3, "warmup_steps": 10},
    axes={"seed": [0, 1]},
    include=[
        {
            "algorithm": {"kind": "sgd", "warmup_steps": 5},
            "seed": seed,
            "init_from": {"run": f"*-adamw-*-s{seed}-*@200"},
            "pretrain.milestones": [0, 400],
        }
        for seed in (0, 1)
    ]
    + [
        {
            "algorithm": {"kind": "sam", "warmup_steps": 5},
            "init_from": {"run": "*-sgd-*-s0-*@400"},
            "pretrain": {"steps": 100, "milestones": [100]},
        }
    ],
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of the same sweep without Ray, one run after another in this process."""
    storage = tmp_path_factory.mktemp("bare")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        run_all(load_sweep(write(storage / "tiny.yaml", PHASES), storage=storage))
    finally:
        torch.set_num_threads(threads)
    return storage


@pytest.mark.parametrize("engine", ["lanes", pytest.param("nested", marks=pytest.mark.slow)])
def test_phases_of_one_file_killed_and_launched_again(
    command: Callable,
    raysweep: Callable[..., tuple[int, str, str]],
    bare: Path,
    tmp_path: Path,
    engine: str,
) -> None:
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", {**PHASES, "resources": {"engine": engine}})
    sweep = load_sweep(file, storage=storage)
    assert [run.state for run in make_plan(sweep).runs] == ["new", "new", "blocked", "blocked", "blocked"]
    driver = command("launch", file, "--storage", storage)
    second = sweep.ledger().open(next(r.run_id for r in sweep.runs if r.algorithm.kind == "sgd"))
    deadline = time.monotonic() + 600
    while not second.checkpoints():
        assert driver.poll() is None, "".join(driver.communicate())
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    assert [run.state for run in make_plan(sweep).runs] == ["done"] * 5
    pd.testing.assert_frame_equal(table(raysweep, file, storage), table(raysweep, file, bare))
    for spec in sweep.runs:
        for step in spec.milestones:
            place = Path("tiny", "runs", spec.run_id, "checkpoints", f"step-{step:08d}")
            for name in ("model.safetensors", "optimizer.safetensors"):
                ours, theirs = ((root / place / name).read_bytes() for root in (storage, bare))
                assert ours == theirs, (spec.run_id, step, name)


def test_a_source_that_fails_ends_the_launch(
    raysweep: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """Runs that start from a failed one are named as failed too, and the others are done."""
    data = changed(
        pretrain={"steps": 40, "milestones": [20, 40]},
        axes={"algorithm.lr": [1e-3, 1e30]},
        include=[
            {"algorithm": {"kind": "sgd"}, "init_from": {"run": "*-lr1e30-*@40"}},
            {"algorithm": {"kind": "sam"}, "init_from": {"run": "*-adamw-warmup10-s0-*@40"}},
        ],
    )
    storage = tmp_path / "results"
    file = write(tmp_path / "tiny.yaml", data)
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 3, out + err
    sweep = load_sweep(file, storage=storage)
    found = {(run.spec.algorithm.kind, run.spec.algorithm.lr): run for run in make_plan(sweep).runs}
    assert found["adamw", 1e30].state == found["sgd", 1e-3].state == "failed"
    assert found["adamw", 1e-3].state == found["sam", 1e-3].state == "done"
    failed = found["adamw", 1e30].run_id
    assert f"failed: {found['sgd', 1e-3].run_id}: its source {failed}@40 failed: step" in err
