"""Made-up records of thousands of runs, in about a minute and without Ray.

One run of each size is trained and measured for real.  Every other run gets its records, with numbers that
are moved by its configuration and its seed, and with checkpoint folders that are empty.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from typing import Any

from raysweep.bench.engine.bare import run_one
from raysweep.sweep import RunSpec, Sweep
from raysweep.sweep.ledger import RunLedger
from raysweep.sweep.records import RunRecord, encode
from raysweep.sweep.stored import save_sweep
from raysweep.training.checkpoint import checkpoint_directory

#: Sizes of the models, and the steps of a run.
SHAPES = ("8/1/1/16", "8/1/2/16", "16/2/1/32", "16/2/2/32", "24/3/1/48")
MILESTONES = (100, 200, 400, 800)
#: Seeds of each configuration.
SEEDS = 10


def many(runs: int) -> dict[str, Any]:
    """Return the content of the sweep file: sizes × learning rates × seeds, as many rates as it takes."""
    rates = math.ceil(runs / (len(SHAPES) * SEEDS))
    return {
        "name": "made-up",
        "language": {"kind": "hmm", "seed": 1, "states": 10, "vocabulary": 20, "length": 8, "tasks": [1, 3]},
        "model": {"kind": "encoder", "shape": SHAPES[0]},
        "algorithm": {"kind": "adamw", "lr": 1e-3, "warmup_steps": 10},
        "pretrain": {"steps": MILESTONES[-1], "batch_size": 16, "milestones": list(MILESTONES)},
        "evaluate": {
            "excess_loss": {"sentences": 256},
            "trace": {"inputs": 256, "shard_size": 256},
            "probe": {"seeds": 2, "train": 64, "test": 128},
        },
        "axes": {
            "model.shape": list(SHAPES),
            "algorithm.lr": [round(1e-4 * 1.02**k, 9) for k in range(rates)],
            "seed": list(range(SEEDS)),
        },
        "claims": [{"flatter": {"task": "1"}}, {"larger": {"task": "1"}}, {"longer": {"task": "1"}}],
    }


def make_up(sweep: Sweep) -> None:
    """Write the records of all runs of a sweep, and the sweep as if it had been launched."""
    save_sweep(sweep)
    ledger = sweep.ledger()
    for specs in _alike(sweep.runs):
        first, *others = specs
        run_one(sweep, first)
        run = ledger.open(first.run_id)
        template = {name: json.loads(run.record_path(name).read_bytes()) for name, _ in run.record_names()}
        for spec in others:
            _write(ledger.open(spec.run_id), spec, template)


def _alike(runs: Iterable[RunSpec]) -> Iterable[list[RunSpec]]:
    """Return the runs of each size."""
    sizes: dict[str, list[RunSpec]] = {}
    for spec in runs:
        sizes.setdefault(spec.model.label, []).append(spec)
    return sizes.values()


def _write(run: RunLedger, spec: RunSpec, template: dict[str, dict[str, Any]]) -> None:
    """Write the records of a run as the ledger does, but without waiting for the disk."""
    chance = random.Random(spec.run_id)
    run.records_directory.mkdir(parents=True)
    record = RunRecord(
        run_id=spec.run_id,
        identity=spec.training_identity,
        content=spec.identity_content,
        language=spec.language.encode(),
    )
    run.identity_path.write_bytes(encode(record))
    tilt = chance.gauss(0.0, 0.1)
    for name, known in template.items():
        found = json.loads(json.dumps(known))
        for metric in found.get("metrics", ()):
            _move(metric, tilt + chance.gauss(0.0, 0.05))
        for point in found.get("curve", ()):
            point["loss"] *= 1.0 + 0.01 * chance.gauss(0.0, 1.0)
        run.record_path(name).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    for step in spec.milestones:
        checkpoint_directory(run.directory, step).mkdir(parents=True)


def _move(metric: dict[str, Any], by: float) -> None:
    """Move a number within what such a number may be."""
    if metric["kind"] == "accuracy":
        metric["value"] = min(1.0, max(0.0, metric["value"] + 0.2 * by))
    else:
        metric["value"] *= math.exp(by)
