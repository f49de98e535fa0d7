"""README holds: its commands exist, its sweep file is valid, its example runs on what a launch leaves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import raysweep as rs
from helpers import local_models
from raysweep.cli.app import app

README = (Path(__file__).parents[1] / "README.md").read_text()


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, flags=re.DOTALL)


def test_nothing_is_left_to_be_filled_in() -> None:
    assert not re.search(r"@[A-Z]+@", README)


def test_its_commands_exist() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = {name for block in blocks("") for name in re.findall(r"bin/raysweep (\w+)", block)}
    assert {"launch", "ui", "status", "report", "export", "language"} <= named
    assert named <= known


def test_its_sweep_file_is_valid(tmp_path: Path) -> None:
    [text] = blocks("yaml")
    file = tmp_path / "my-sweep.yaml"
    file.write_text(text)
    assert len(rs.load_sweep(file).runs) == 7


def test_its_names_are_public() -> None:
    [text] = blocks("python")
    named = set(re.findall(r"\brs\.(\w+)", text))
    assert {"load_sweep", "launch", "tuner", "PCFG", "load_model", "fisher_trace"} <= named
    assert named <= set(rs.__all__)


def test_the_shipped_sweeps_are_valid() -> None:
    # What comes from the Hugging Face hub is replaced by its like on this machine.
    local = {"opt": [f"language.model={local_models.trained_opt()}", "language.keep=100"]}
    # The corpora, one training each, are in tests/sweep/test_corpora.py, on files of this machine.
    corpora = {"openwebtext", "bookcorpus"}
    files = sorted((Path(__file__).parents[1] / "sweeps").glob("*.yaml"))
    assert corpora < {file.stem for file in files}
    files = [file for file in files if file.stem not in corpora]
    for file in files:
        sweep = rs.load_sweep(file, overrides=local.get(file.stem, ()))
        assert sweep.name == file.stem
        if file.stem.startswith("theory_"):
            # They test a statement about models, and do not compare algorithms or sizes.
            assert len(sweep.runs) >= 2
            continue
        shapes = {run.model.encode()["shape"] for run in sweep.runs if run.trains}
        algorithms = {run.algorithm.label for run in sweep.runs if run.trains}
        assert max(len(shapes), len(algorithms)) >= 3
        assert len({run.seed for run in sweep.runs}) >= 2
        assert all(len(run.milestones) >= 4 for run in sweep.runs if run.trains)


@pytest.mark.parametrize("name", rs.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(rs, name) is not None
