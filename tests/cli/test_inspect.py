"""Commands that only look: they start nothing, and import neither Ray nor MLflow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

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
print(sorted({"ray", "mlflow"} & set(sys.modules)))
"""


def test_status_plan_and_validate_leave_ray_and_mlflow_out(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(FILE)
    save_sweep(load_sweep(tmp_path / "small.yaml", storage=tmp_path))
    commands = "status small --storage .;plan small.yaml --storage .;validate small.yaml"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, commands], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "queued" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"
