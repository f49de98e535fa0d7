"""Killed and resumed equals never killed, with real processes and real SIGKILLs."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from raysweep.training import checkpoint_directory

SCRIPT = Path(__file__).with_name("fakes.py")
PATIENCE = 120.0
Workers = list[subprocess.Popen[bytes]]
#: Long enough that a signal sent when a checkpoint appears arrives with most of the run still ahead.
OPTIONS = {"pretrain": {"steps": 400, "milestones": [100, 400], "checkpoint_every": 20}}


def start(directory: Path, size: int, attempt: str, options: dict[str, Any]) -> Workers:
    """Start the workers of a run, each a process of its own."""
    rendezvous = directory.with_name(f"{directory.name}-{attempt}.rendezvous")
    return [
        subprocess.Popen(
            [
                sys.executable,
                str(SCRIPT),
                str(directory),
                str(rank),
                str(size),
                str(rendezvous),
                json.dumps(options),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
            stderr=subprocess.PIPE,
        )
        for rank in range(size)
    ]


def finish(workers: Workers) -> None:
    for worker in workers:
        _, error = worker.communicate(timeout=PATIENCE)
        assert worker.returncode == 0, error.decode()


def wait_for(condition: Callable[[], bool], workers: Workers) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        assert all(worker.poll() is None for worker in workers), workers[0].communicate()[1].decode()
        time.sleep(0.002)


def kill(workers: Workers) -> None:
    for worker in workers:
        os.kill(worker.pid, signal.SIGKILL)
    for worker in workers:
        worker.communicate(timeout=PATIENCE)
        assert worker.returncode == -signal.SIGKILL


@pytest.mark.parametrize("size", [1, 2])
def test_killed_and_resumed_is_bitwise_never_killed(size: int, tmp_path: Path, fakes: ModuleType) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    finish(start(whole, size, "only", OPTIONS))

    # Once between milestones, in the middle of whatever it is doing; once right after a milestone.
    for attempt, step in (("first", 60), ("second", 100)):
        workers = start(broken, size, attempt, OPTIONS)
        record = broken / f"checkpoint-{step:08d}.json"
        wait_for(record.exists, workers)
        kill(workers)
        assert not (broken / "checkpoint-00000400.json").exists()
    finish(start(broken, size, "last", OPTIONS))

    expected = {r.step: r for r in fakes.FolderJournal(whole).checkpoints()}
    found = {r.step: r for r in fakes.FolderJournal(broken).checkpoints()}
    assert sorted(found) == sorted(expected) == list(range(20, 401, 20))
    for step in (100, 400):
        for name in ("model.safetensors", "optimizer.safetensors"):
            assert found[step].files[name] == expected[step].files[name], (step, name)
            bits = (checkpoint_directory(broken, step) / name).read_bytes()
            assert bits == (checkpoint_directory(whole, step) / name).read_bytes()
    curve = {p.step: p.loss for r in expected.values() for p in r.curve}
    points = [p for r in found.values() for p in r.curve]
    assert sorted(p.step for p in points) == list(range(50, 401, 50))
    assert {p.step: p.loss for p in points} == curve


def test_two_workers_train_as_one(tmp_path: Path, fakes: ModuleType) -> None:
    """The same batches of 13 sentences, shared 6 and 7, give one worker's weights up to rounding."""
    options = {
        "model": {"dropout": 0.0},
        "pretrain": {"steps": 30, "milestones": [30], "mask": 0.3},
    }
    weights = []
    for size in (1, 2):
        directory = tmp_path / str(size)
        finish(start(directory, size, "only", options))
        weights.append(load_file(checkpoint_directory(directory, 30) / "model.safetensors"))
    start_weights = dict(fakes.arguments(**options)["model"].build(fakes.Walk(), seed=5).named_parameters())
    for name, one in weights[0].items():
        torch.testing.assert_close(weights[1][name], one, rtol=0, atol=2e-4)
        if one.ndim == 2:
            # The way travelled is far beyond the tolerance: they do not agree for want of training.
            assert (one - start_weights[name]).abs().max() > 1e-2, name
