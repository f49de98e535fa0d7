"""A sweep small enough to run for real, again and again: a tiny HMM, a tiny encoder, every evaluation."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
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
        "probe": {"seeds": 2, "train": 128, "test": 64, "projection": 16, "epochs": 3},
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


def write(path: Path, data: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        YAML(typ="safe").dump(data, handle)
    return path


Command = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Start `raysweep ...` as a program; whatever is still running at the end of the test is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, **kwargs: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **kwargs.pop("env", {})}
        environment.pop("RAY_ADDRESS", None)
        environment.pop("MLFLOW_TRACKING_URI", None)
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("raysweep")), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env=environment,
            **kwargs,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def raysweep(command: Command) -> Callable[..., tuple[int, str, str]]:
    """Run `raysweep ...` to its end; returns exit code, standard output, standard error."""

    def run(*arguments: str | Path, timeout: float = 300, **kwargs: Any) -> tuple[int, str, str]:
        process = command(*arguments, **kwargs)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err

    return run


def table(raysweep: Callable[..., tuple[int, str, str]], file: Path, storage: Path) -> pd.DataFrame:
    """Return the tidy table of a sweep as `raysweep export` writes it."""
    target = storage / "table.parquet"
    code, out, err = raysweep("export", file, "-o", target, "--storage", storage)
    assert code == 0, out + err
    return pd.read_parquet(target)
