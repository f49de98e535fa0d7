"""`raysweep diff`: the fields in which two configurations differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysweep.cli.app import run
from raysweep.sweep import Sweep

OTHER = """\
extends: sweep.yaml
name: other
algorithm: {kind: adamw, warmup_steps: 1, weight_decay: 0.0}
pretrain: {steps: 8, milestones: [2, 8]}
evaluate: {excess_loss: null, trace: {inputs: 64}}
"""


@pytest.fixture
def storage(finished: Sweep) -> list[str]:
    return ["--storage", str(finished.storage)]


def test_two_runs_of_a_sweep(finished: Sweep, storage: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (spec.run_id for spec in finished.runs)
    assert run(["diff", first, f"small/{second}@2", "--json", *storage]) == 0
    found = json.loads(capsys.readouterr().out)
    seeds = ("init", "data", "dropout")
    assert found == {
        **{"a": first, "b": second},
        "differ": {f"seeds.{name}": [0, 1] for name in seeds},
        **{"only_a": {}, "only_b": {}},
    }
    assert run(["diff", "small/seed 0", "small/seed 1", *storage]) == 0
    assert capsys.readouterr().out == "".join(f"seeds.{name}  0 → 1\n" for name in seeds)


def test_a_stored_sweep_and_its_file_say_the_same(
    finished: Sweep, storage: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diff", "small", str(finished.path), *storage]) == 0
    assert capsys.readouterr().out == f"small and {finished.path} have the same configuration\n"


def test_whom_a_launch_tells_is_no_difference(
    finished: Sweep, storage: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Records do not hold it."""
    (tmp_path / "told.yaml").write_text(f"extends: {finished.path}\nname: small\nnotify: echo\n")
    assert run(["diff", "small", str(tmp_path / "told.yaml"), *storage]) == 0
    assert capsys.readouterr().out == f"small and {tmp_path / 'told.yaml'} have the same configuration\n"


def test_two_sweeps(finished: Sweep, storage: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(finished.path).parent / "other.yaml"
    other.write_text(OTHER)
    assert run(["diff", "small", str(other), *storage]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "name  small → other",
        "pretrain.steps  4 → 8",
        "pretrain.milestones  [2, 4] → [2, 8]",
        "only in small:",
        "  evaluate.excess_loss.sentences  8",
        f"only in {other}:",
        "  algorithm.weight_decay  0.0",
        "  evaluate.trace.inputs  64",
    ]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["smal", "small"], "'smal': no such file, and no sweep or run of that name in"),
        (["small", "small/seed 1"], "name two sweeps or two runs"),
        (["small", "seed"], "no such file, and no sweep or run"),
        (["small/8*", "small"], "matches 2 runs"),
        (["missing.yaml", "small"], "missing.yaml: no such file"),
    ],
)
def test_names_that_mean_nothing_or_several(
    names: list[str], said: str, finished: Sweep, storage: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["diff", *names, *storage]) == 2
    assert said in capsys.readouterr().err
