"""A small suite of sweep files, and a ledger with made-up measurements of their runs."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from helpers.tiny_sweeps import checkpoint
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.probe_metrics import PROBE
from raysweep.evaluation.trace import TRACE
from raysweep.sweep import RunSpec, Sweep, load_sweep
from raysweep.sweep.provenance import save_launch
from raysweep.sweep.stored import save_sweep

FIG1 = """\
# The paper finds that the trace tells.
name: big
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1, 2]}
model: {kind: encoder, shape: 16/2/1/32, dropout: 0.0}
algorithm: {kind: adamw, warmup_steps: 1}
pretrain: {steps: 400, batch_size: 8, milestones: [100, 200, 300, 400]}
evaluate: {excess_loss: {sentences: 8}, trace: {inputs: 8}, probe: {seeds: 2, train: 64, test: 64}}
resources: {per_worker: {GPU: 1}}
paper: {place: Figure 1, question: "At equal loss, is a flatter model better?", finding: "ρ = −0.7 & more"}
"""
#: Runs in one shape, so that their traces are of one space.
FIG1_SMALL = """\
extends: fig1.yaml
name: tiny
resources: {per_worker: {CPU: 1, GPU: 0}}
axes:
  algorithm.lr: [1e-4, 2e-4, 3e-4, 4e-4, 5e-4, 6e-4]
  seed: [0, 1]
tolerance: 0.5
claims:
  - flatter: {task: "1"}
  - longer: {task: "1"}
"""
#: It has three of the runs of the other one, and shares its ledger.
FIG2_SMALL = """\
extends: fig1-small.yaml
axes: {algorithm.lr: [1e-4], seed: [0, 1, 2]}
claims:
  - longer: {task: "2"}
paper: {place: Figure 2, question: "Is a later checkpoint better?", finding: "yes"}
"""
README = """\
# Ours

<!-- paper:figures -->
<!-- /paper:figures -->

<!-- paper:verdicts -->
<!-- /paper:verdicts -->
"""
LAUNCH = {
    "time": 1.0e9, "argv": ["raysweep", "launch"], "host": "h", "pid": 7, "platform": "Linux", "cpus": 2,
    "python": "3.11.7", "processor": "Xeon (family 6, model 207)", "git_commit": "0123456789abcdef",
    "git_dirty": False,
    "versions": {"raysweep": "0.2.0", "torch": "2.13.0"},
}  # fmt: skip


def write_suite(folder: Path) -> Path:
    """Write the files of the suite and its README, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = {"fig1.yaml": FIG1, "fig1-small.yaml": FIG1_SMALL, "fig2-small.yaml": FIG2_SMALL}
    for name, text in (files | {"README.md": README}).items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def measure(path: Path, storage: Path, *, runs: int | None = None, processor: bool = False) -> Sweep:
    """Record a launch of a file and made-up measurements of its first `runs` runs, or of all.

    With `processor`, records tell processor time, three quarters of that of the clock.
    """
    sweep = load_sweep(path, storage=storage)
    save_sweep(sweep)
    save_launch(sweep.directory, LAUNCH)
    for spec in sweep.runs[:runs]:
        _measure(sweep, spec, 0.75 if processor else None)
    return sweep


def _measure(sweep: Sweep, spec: RunSpec, busy: float | None) -> None:
    run, generator = (
        sweep.ledger().run(spec),
        np.random.default_rng(round(1e6 * spec.algorithm.encode()["lr"])),
    )
    sharp = 40 + 30 * generator.random()
    for step in spec.milestones:
        checkpoint(run, step, seconds=0.5 * step, busy=busy)
        draw = np.random.default_rng([spec.seeds.init, step, round(sharp * 1e6)])
        trace = sharp * math.exp(-step / 800) * (1 + 0.05 * draw.standard_normal())
        loss = 0.1 + 10 / step + 0.001 * draw.standard_normal()
        accuracy = 0.9 - 0.004 * trace + 0.001 * draw.standard_normal()
        found = {
            "excess_loss": [EXCESS_LOSS.number(loss, standard_error=0.001, n=8)],
            "trace": [TRACE.number(trace, standard_error=0.02 * trace, n=8)],
            "probe": [
                PROBE.number(accuracy, standard_error=0.001, n=2, of={"task": task}) for task in ("1", "2")
            ],
        }
        for kind, evaluation in spec.evaluations.items():
            used = None if busy is None else 2.0 * busy
            run.record_evaluation(step, evaluation, found[kind], seconds=2.0, cpu_seconds=used)
