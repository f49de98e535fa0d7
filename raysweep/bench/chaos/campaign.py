"""The campaign: sweeps launched under faults, again and again, and compared with an undisturbed one."""

from __future__ import annotations

import random
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.bench.chaos.faults import BETWEEN, RUNNING, Deck, FullDisk
from raysweep.bench.chaos.monkey import Monkey
from raysweep.bench.harness import Say
from raysweep.bench.launching import (
    Point,
    engines,
    exported,
    last_words,
    points,
    start_launch,
    unlike,
    with_engine,
    write_sweep,
)
from raysweep.bench.record import Pass
from raysweep.errors import RunFailedError

#: Two runs of some seconds of training, with states to resume from and rounds of evaluation tasks.
SWEEP: dict[str, Any] = {
    "name": "chaos",
    "language": {
        "kind": "hmm",
        "seed": 1,
        "states": 4,
        "vocabulary": 8,
        "length": 4,
        "blocks": 2,
        "tasks": [1, 3],
    },
    "model": {"kind": "encoder", "shape": "16/1/1/32"},
    "algorithm": {"kind": "adamw", "lr": 1e-3, "warmup_steps": 10},
    "pretrain": {
        "steps": 600,
        "batch_size": 64,
        "milestones": [200, 600],
        "checkpoint_every": 100,
        "precision": "float32",
    },
    "evaluate": {
        "excess_loss": {"sentences": 96, "shard_size": 64},
        "trace": {"inputs": 4000, "shard_size": 512, "target_rse": 0.001},
        "probe": {"seeds": 2, "train": 128, "test": 64, "projection": 16},
    },
    "axes": {"seed": [0, 1]},
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The results of a sweep: the bytes of its table, and its points in MLflow."""

    table: bytes
    points: list[Point]


def run(
    folder: Path, *, kills: int, seconds: float, seed: int, small_volume: bool, log: Path, say: Say
) -> list[Pass]:
    """Launch sweeps in a folder under faults, and return what happened; raises `RunFailedError`.

    After `kills` faults, or `seconds`, the sweep at hand is finished without any.  The words of each launch
    go to `log`, which is not in the folder if that is a small volume.
    """
    files = {}
    for engine in engines():
        (folder / engine).mkdir()
        files[engine] = write_sweep(folder / engine, with_engine(SWEEP, engine))
    wanted = _undisturbed(files["nested"], folder)
    say(f"undisturbed: {len(wanted.table.splitlines()) - 1} rows, {len(wanted.points)} points in MLflow")
    draws = random.Random(seed)
    kinds = [kind for kind in RUNNING if small_volume or not isinstance(kind, FullDisk)]
    monkey = Monkey(
        kills,
        seconds=seconds,
        running=Deck(kinds, draws),
        between=Deck(BETWEEN, draws),
        draws=draws,
        volume=folder if small_volume else None,
        log=log,
        say=say,
    )
    passes: list[Pass] = []
    while monkey.left:
        engine = list(files)[len(passes) % len(files)]
        storage = folder / f"sweep-{len(passes)}"
        launches = monkey.torment(files[engine], storage / SWEEP["name"])
        found = outcome(storage)
        passes.append(
            Pass(
                engine=engine,
                launches=tuple(launches),
                equal=found.table == wanted.table,
                points_unlike=unlike(found.points, wanted.points),
            )
        )
        say(
            f"sweep {len(passes)}, engine {engine}: done after {len(launches)} launches; "
            f"table {'equal' if passes[-1].equal else 'NOT EQUAL'}, "
            f"{passes[-1].points_unlike} points unlike; {monkey.left} faults to go"
        )
        shutil.rmtree(storage)
    return passes


def _undisturbed(file: Path, folder: Path) -> Outcome:
    """Launch a sweep once without a fault and return its results."""
    storage, log = folder / "undisturbed", folder / "log"
    code = start_launch(file, storage, log).wait()
    if code != 0:
        raise RunFailedError(f"bench chaos: the undisturbed launch ended with {code}: {last_words(log)}")
    return outcome(storage)


def outcome(storage: Path) -> Outcome:
    """Return the results of the sweep in a storage; a database that cannot be read has no points."""
    table = exported(SWEEP["name"], storage, storage / "export.log")
    try:
        found = points(storage / SWEEP["name"] / "mlflow.db")
    except sqlite3.Error:
        found = []
    return Outcome(table=table, points=found)
