"""The training that a trial asks for, without Ray."""

from __future__ import annotations

import shutil
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import raysweep as rs
from helpers import tiny_sweeps as tiny
from raysweep.engine import trial

COSINE = tiny.HEAD.replace("lr: 1e-3", "lr: 1e-3, schedule: cosine") + (
    "evaluate: {excess_loss: {sentences: 64}}\n"
)


def test_a_lost_milestone_is_trained_again_with_the_rates_of_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text("axes: {seed: [0]}\n" + COSINE)
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    for step in spec.milestones:
        tiny.checkpoint(run, step)
    shutil.rmtree(run.checkpoint_directory(50))
    found: list[Any] = []

    def training(self: Any, job: Any) -> Any:
        found.append(job)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(trial._Trial, "_training_of", training)
    # What stands for weights here is none, and a look at the files would tell.
    monkeypatch.setattr(import_module("raysweep.sweep.missing"), "verify", lambda *_: None)
    services: Any = SimpleNamespace(shared=False, parts={})
    trial._Trial(spec, run, sweep, services)._start_training()
    [job] = found
    assert job.spec.pretrain.milestones == (50,)
    assert job.spec.pretrain.steps == 100
    assert job.run.limit == 50
