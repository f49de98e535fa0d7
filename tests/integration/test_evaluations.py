"""Evaluations as tasks: they overlap training, and a damaged checkpoint is computed again."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from helpers.real_sweeps import changed, table, write

pytestmark = pytest.mark.ray

Run = Callable[..., tuple[int, str, str]]


def records(storage: Path, pattern: str) -> list[dict]:
    found = (storage / "tiny" / "runs").glob(f"*/records/{pattern}")
    return [json.loads(path.read_text()) for path in sorted(found)]


@pytest.mark.slow
def test_overlap_then_damage(raysweep: Run, tmp_path: Path) -> None:
    storage = tmp_path / "results"
    data = changed(
        pretrain={"steps": 4000, "batch_size": 64, "milestones": [50, 4000]},
        # Half a processor for training leaves room for evaluations on a machine of any size.
        resources={"per_worker": {"CPU": 0.5}, "evaluate": {"CPU": 0.5}},
        axes={"seed": [0]},
    )
    file = write(tmp_path / "tiny.yaml", data)
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    last = records(storage, "checkpoint-00004000.json")[0]["time"]
    early = [record["time"] for record in records(storage, "evaluation-00000050-*.json")]
    assert len(early) == 3
    assert min(early) < last, "nothing of the first milestone was evaluated while training went on"
    before = table(raysweep, file, storage)

    # One bit of a milestone's weights flips, and other settings ask for it again.
    [weights] = (storage / "tiny" / "runs").glob("*/checkpoints/step-00000050/model.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights)
    data["evaluate"]["trace"]["inputs"] = 64
    write(file, data)
    code, out, err = raysweep("launch", file, "--storage", storage)
    assert code == 0, out + err
    after = table(raysweep, file, storage)
    same = before.metric.str.startswith("trace")
    kept = after[~after.metric.str.startswith("trace")].reset_index(drop=True)
    pd.testing.assert_frame_equal(kept, before[~same].reset_index(drop=True))
    trace = after[after.metric == "trace"]
    assert trace.n.tolist() == [64, 64]
    assert any((storage / "tiny" / "runs").glob("*/quarantine/*"))
    assert weights.read_bytes() != bytes(content)
