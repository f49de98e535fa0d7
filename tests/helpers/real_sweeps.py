"""A sweep small enough to run for real, again and again: a tiny HMM, a tiny encoder, every evaluation."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
from ruamel.yaml import YAML

TINY: dict[str, Any] = {
    "name": "tiny",
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
    "pretrain": {"steps": 60, "batch_size": 16, "milestones": [20, 60]},
    "evaluate": {
        "excess_loss": {"sentences": 96, "shard_size": 64},
        "trace": {"inputs": 48, "shard_size": 32},
        "probe": {"seeds": 2, "train": 128, "test": 64, "projection": 16},
    },
    "axes": {"seed": [0, 1]},
}


def changed(**sections: Any) -> dict[str, Any]:
    """Return the tiny sweep with sections updated (mappings) or replaced (everything else)."""
    data = json.loads(json.dumps(TINY))
    for key, value in sections.items():
        if isinstance(value, dict) and isinstance(data.get(key), dict) and key != "axes":
            data[key].update(value)
        else:
            data[key] = value
    return data


#: Long enough to be disturbed in the middle, with rolling checkpoints to resume from.
LONG = changed(
    pretrain={"steps": 3000, "batch_size": 64, "milestones": [300, 3000], "checkpoint_every": 200},
    # A trace that takes several rounds of shards: 1, 2, 4 and 8.
    evaluate={"trace": {"inputs": 4000, "shard_size": 512, "target_rse": 0.001}},
    axes={"seed": [0]},
)


def write(path: Path, data: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        YAML(typ="safe").dump(data, handle)
    return path


def table(raysweep: Callable[..., tuple[int, str, str]], file: Path, storage: Path) -> pd.DataFrame:
    """Return the tidy table of a sweep as `raysweep export` writes it."""
    target = storage / "table.parquet"
    code, out, err = raysweep("export", file, "-o", target, "--storage", storage)
    assert code == 0, out + err
    return pd.read_parquet(target)


def points(storage: Path) -> pd.DataFrame:
    """Return every metric point of the MLflow store with the raysweep run id it belongs to."""
    with sqlite3.connect(storage / "tiny" / "mlflow.db") as store:
        return pd.read_sql_query(
            "select t.value as run_id, m.key, m.value, m.step, m.timestamp from metrics m "
            "join tags t on t.run_uuid = m.run_uuid and t.key = 'raysweep.run_id'",
            store,
        )


def same_points(storage: Path, reference: Path) -> None:
    """MLflow holds each point once, with the values of the undisturbed launch; speed is the machine's."""
    mine, theirs = points(storage), points(reference)
    assert not mine.duplicated(["run_id", "key", "step"]).any()
    speeds = ["train/tokens_per_second", "train/mfu"]
    assert set(speeds) <= set(mine["key"])
    mine, theirs = (found[~found["key"].isin(speeds)] for found in (mine, theirs))
    order = ["run_id", "key", "step"]
    columns = [*order, "value"]
    pd.testing.assert_frame_equal(
        mine[columns].sort_values(order, ignore_index=True),
        theirs[columns].sort_values(order, ignore_index=True),
    )
