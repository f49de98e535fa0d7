"""A sweep that has been trained, without Ray."""

from __future__ import annotations

import pytest

from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.stored import save_sweep
from raysweep.training import pretrain

FILE = """\
name: small
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 8/2/1/16, dropout: 0.0}
algorithm: {kind: adamw, warmup_steps: 1}
pretrain: {steps: 4, batch_size: 8, milestones: [2, 4]}
evaluate: {excess_loss: {sentences: 8}}
axes: {seed: [0, 1]}
"""


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """A sweep both of whose runs are trained."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "sweep.yaml").write_text(FILE, encoding="utf-8")
    sweep = load_sweep(folder / "sweep.yaml", storage=folder / "results")
    save_sweep(sweep)
    for spec in sweep.runs:
        pretrain(
            language=sweep.language(spec),
            model=spec.model,
            algorithm=spec.algorithm,
            pretrain=spec.pretrain,
            seed=spec.seed,
            journal=sweep.ledger().run(spec),
        )
    return sweep
