"""Commands that only look: they start nothing, and import neither Ray nor MLflow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from raysweep.cli.app import run
from raysweep.sweep import load_sweep
from raysweep.sweep.stored import save_sweep

FILE = """\
name: small
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 60, batch_size: 16}
evaluate: {excess_loss: {sentences: 64}}
"""

PROGRAM = """\
import sys
from raysweep.cli.app import main
for words in sys.argv[1].split(";"):
    sys.argv = ["raysweep", *words.split()]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (words, end.code)
print(sorted({"ray", "mlflow", "matplotlib"} & set(sys.modules)))
"""


def test_status_plan_and_validate_leave_ray_mlflow_and_matplotlib_out(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(FILE)
    save_sweep(load_sweep(tmp_path / "small.yaml", storage=tmp_path))
    commands = "status small --storage .;plan small.yaml --storage .;validate small.yaml"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, commands], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "queued" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_validate_answers_a_program_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(FILE)
    assert run(["validate", "small.yaml", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert found["notes"] == []
    assert run(["validate", "small.yaml", "--json", "--set", "pretrain.step=3", "--set", "model.x=1"]) == 2
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert printed.err == ""
    assert not found["ok"]
    assert [line.split(": ")[1] for line in found["errors"]] == ["model.x", "pretrain.step"]


def test_validate_says_that_there_is_no_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "small.yaml").write_text(FILE + "resources: {per_worker: {GPU: 1}}\n")
    assert run(["validate", "small.yaml"]) == 0
    note = (
        "note: resources.per_worker: {GPU: 1}, but this machine has no GPU; launch with --address HOST:PORT\n"
    )
    assert capsys.readouterr().err == note
    assert run(["plan", "small.yaml"]) == 0
    assert note in capsys.readouterr().out
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert run(["validate", "small.yaml"]) == 0
    assert capsys.readouterr().err == ""
    assert run(["plan", "small.yaml"]) == 0
    assert "no GPU" not in capsys.readouterr().out
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    assert run(["validate", "small.yaml"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("resources", "note"),
    [
        (
            "{workers: 8, per_worker: {CPU: 8}}",
            "resources.per_worker: {CPU: 8} for each of 8 workers, but this machine has 2; ask for less",
        ),
        (
            "{per_worker: {CPU: 3}}",
            "resources.per_worker: {CPU: 3}, but this machine has 2; ask for less",
        ),
        (
            "{evaluate: {CPU: 2.5}}",
            "resources.evaluate: {CPU: 2.5}, but this machine has 2; ask for less",
        ),
        ("{workers: 3, per_worker: {CPU: 1}}", "{CPU: 1} for each of 3 workers, but this machine has 2; "),
        (
            "{workers: 4, per_worker: {CPU: 0.5, GPU: 0.5}}",
            "{GPU: 0.5} for each of 4 workers, but this machine has 1; ",
        ),
        (
            "{per_worker: {CPU: 1, TPU: 1}}",
            "resources.per_worker: {TPU: 1}, but this machine has no TPU; launch with --address HOST:PORT",
        ),
        ("{evaluate: {CPU: 1, memory: 1e18}}", "resources.evaluate: {memory: 1e+18}, but this machine has "),
        ("{workers: 4, per_worker: {CPU: 0.5}, evaluate: {CPU: 2}}", ""),
        ("{workers: 10, per_worker: {CPU: 0.1, GPU: 0.1, memory: 1e6}}", ""),
        ('{per_worker: {"node:10.0.0.1": 0.01, "accelerator_type:T4": 0.001}}', ""),
    ],
)
def test_a_note_says_what_this_machine_lacks(
    resources: str,
    note: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    (tmp_path / "small.yaml").write_text(f"{FILE}resources: {resources}\n")
    assert run(["validate", "small.yaml"]) == 0
    said = capsys.readouterr().err
    assert said.count("\n") == bool(note)
    assert note in said
    monkeypatch.setenv("RAY_ADDRESS", "head:6379")
    assert run(["validate", "small.yaml"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("storage", ["/dev/null", "/dev/null/sub", "small.yaml"])
@pytest.mark.parametrize("command", ["plan", "status", "launch"])
def test_a_storage_that_is_no_folder(
    command: str,
    storage: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(FILE)
    assert run([command, "small.yaml", "--storage", storage]) == 2
    assert "is no folder; --storage names another one" in capsys.readouterr().err
