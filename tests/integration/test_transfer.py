"""A task in the form of GLUE in a real launch: fine-tuned cell by cell, killed in the middle, and resumed."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers import local_glue
from helpers.processes import find
from helpers.real_sweeps import same_points, table, write

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]

GRAMMAR: dict[str, Any] = {
    "kind": "pcfg",
    "structure": "layered",
    "seed": 0,
    "roots": 2,
    "layers": 3,
    "symbols": 3,
    "rules": 3,
    "stop": 0.2,
    "words": 8,
    "vocabulary": 24,
}
#: Cells of fine-tuning: many more than can be in flight when the launch is killed.
CELLS = 12
SWEEP: dict[str, Any] = {
    "name": "tiny",
    "language": {
        "kind": "corpus",
        "source": "./text/text.txt",
        "document": "line",
        "tokenizer": {"train": "wordpiece", "vocabulary": 112},
        "length": 16,
        "held_out": 0.2,
        "tasks": [{"glue": "cola", "source": "./cola"}],
    },
    "model": {"kind": "encoder", "shape": "16/1/1/32"},
    "algorithm": {"kind": "adamw", "lr": 1e-3, "warmup_steps": 10},
    "pretrain": {"steps": 60, "batch_size": 32, "mask": 0.15, "milestones": [60]},
    "evaluate": {
        "held_out_loss": {"sentences": 64, "mask": 0.15},
        "probe": {"train": [64, 256], "test": 100, "seeds": 2, "projection": 16},
        "finetune": {
            "seeds": CELLS,
            "train": 300,
            "test": 100,
            "epochs": 40,
            "batch_size": 16,
            "warmup_steps": 4,
            "lr": 1e-3,
            "forgetting": 64,
        },
        "quantize": {"sentences": 64},
    },
    "axes": {"seed": [0]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sweep, its text, and a table in the columns and classes of CoLA."""
    return tmp_path_factory.mktemp("transfer")


@pytest.fixture
def file(folder: Path, raysweep: Run) -> Path:
    """The sweep file; what it reads is made once."""
    grammar = write(folder / "grammar.yaml", GRAMMAR)
    if not (folder / "tiny.yaml").exists():
        options = ("--sentences", "3000", "--train", "300", "--test", "100")
        code, out, err = raysweep("language", "text", grammar, "-o", folder / "text", *options)
        assert code == 0, out + err
        splits = {}
        for split in ("train", "validation"):
            rows = [json.loads(row) for row in (folder / "text" / "A" / f"{split}.jsonl").open()]
            first = min(row["label"] for row in rows)
            splits[split] = [
                {"sentence": row["sentence"], "label": int(row["label"] == first), "idx": k}
                for k, row in enumerate(rows)
            ]
        (folder / "cola").mkdir()
        local_glue.write_splits(folder / "cola", splits, "parquet", ("unacceptable", "acceptable"))
    return write(folder / "tiny.yaml", SWEEP)


def cells(storage: Path) -> dict[str, int]:
    """Return the cells of fine-tuning that are in the ledger, with the time at which each was written."""
    found = (storage / "tiny" / "runs").glob("*/arrays/*-finetune-*/*.npz")
    return {path.name: path.stat().st_mtime_ns for path in found}


def test_fine_tuning_is_killed_in_a_cell_and_goes_on(
    file: Path, folder: Path, command: Callable[..., Any], raysweep: Run
) -> None:
    whole, storage = folder / "whole", folder / "killed"
    code, out, err = raysweep("launch", file, "--storage", whole)
    assert code == 0, out + err
    expected = table(raysweep, file, whole)
    units = dict(zip(expected["metric"], expected["unit"], strict=True))
    assert units["finetune/cola"] == units["probe/cola/256"] == "matthews"
    assert {"forgetting/cola", "probe_area/cola", "majority/cola", "held_out_loss"} <= set(units)
    assert any(name.startswith("quantize") for name in units)

    driver = command("launch", file, "--storage", storage)
    deadline = time.monotonic() + 300

    def wait_for(condition: Callable[[], bool]) -> None:
        while not condition():
            assert driver.poll() is None, "".join(driver.communicate())
            assert time.monotonic() < deadline
            time.sleep(0.01)

    # First the process of a cell alone, which the launch survives, then the launch after a finished cell.
    seen: list[int] = []

    def a_cell_is_at_work() -> bool:
        found = find(driver.pid, "ray::finetune@60")
        seen.extend([] if found is None else [found])
        return bool(seen)

    wait_for(a_cell_is_at_work)
    os.kill(seen[0], signal.SIGKILL)
    wait_for(lambda: len(cells(storage)) > 0)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    time.sleep(2)  # for tasks in flight to be gone
    before = cells(storage)
    assert 0 < len(before) < CELLS
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    after = cells(storage)
    assert len(after) == CELLS
    assert {name: after[name] for name in before} == before
    pd.testing.assert_frame_equal(table(raysweep, file, storage), expected)
    same_points(storage, whole)
