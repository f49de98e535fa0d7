"""README and its companions hold: short, their links, commands, sweep file, kinds and names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

import raysweep as rs
from helpers import local_models
from raysweep import registry
from raysweep.cli.app import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
#: What a reader is led to from README.
COMPANIONS = sorted(
    [
        *(ROOT / ".github").glob("*.md"),
        *(ROOT / "raysweep").glob("*/README.md"),
        ROOT / "sweeps" / "README.md",
        ROOT / "sweeps" / "paper" / "README.md",
    ]
)
DOCUMENTS = [ROOT / "README.md", *COMPANIONS]


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", README, flags=re.DOTALL)


def test_nothing_is_left_to_be_filled_in() -> None:
    assert not re.search(r"@[A-Z]+@", README)


def test_it_is_read_in_three_minutes() -> None:
    assert len(README.encode()) < 12_000


def test_links_lead_somewhere_and_every_companion_is_linked() -> None:
    found = set()
    for document in DOCUMENTS:
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
            if not link.startswith("https://"):
                assert (document.parent / link).is_file(), f"{document}: {link}"
                found.add((document.parent / link).resolve())
    assert set(COMPANIONS) <= found
    assert ROOT / "sweeps" / "scaling.svg" in found


def test_its_two_commands_are_a_line_each() -> None:
    [run, check] = [line for block in blocks("") for line in block.splitlines() if "venv .venv" in line]
    assert run.endswith("install -e . && .venv/bin/raysweep launch sweeps/scaling.yaml")
    contributing = (ROOT / ".github" / "CONTRIBUTING.md").read_text()
    ci = (ROOT / ".ci" / "run").read_text()
    [tests] = re.findall(r"sh -c '(.*)'", check)
    assert f"sh -c '{tests}'" in contributing
    assert re.findall(r"^    ((?:ruff|mypy|pytest).*)$", ci, re.MULTILINE) == tests.split(" && ")


def test_every_sweep_is_named() -> None:
    told = (ROOT / "sweeps" / "README.md").read_text()
    for path in (ROOT / "sweeps").glob("*.yaml"):
        assert f"[`{path.stem}`]({path.name})" in told


def test_every_room_is_named() -> None:
    rooms = {path.parent.name for path in (ROOT / "raysweep").glob("*/__init__.py")}
    assert rooms >= {"languages", "engine"}
    for room in rooms:
        assert f"`{room}`" in README, room


def test_every_kind_is_named() -> None:
    for family, *rooms in (
        (registry.languages, "languages"),
        (registry.models, "training"),
        (registry.algorithms, "training"),
        (registry.evaluations, "flatness", "downstream"),
    ):
        document = "".join((ROOT / "raysweep" / room / "README.md").read_text() for room in rooms)
        for kind in family.kinds():
            # Other tests register kinds of their own.
            if family.get(kind).__module__.startswith("raysweep."):
                assert f"`{kind}`" in README, kind
                assert f"`{kind}`" in document, kind


def test_its_commands_exist() -> None:
    known = set(get_command(app).commands)  # type: ignore[attr-defined]
    named = {name for block in blocks("") for name in re.findall(r"bin/raysweep ([\w-]+)", block)}
    assert {"launch", "ui", "status", "report", "export", "language"} <= named
    for document in DOCUMENTS:
        named |= set(re.findall(r"`raysweep ([a-z][\w-]*)", document.read_text()))
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
    assert named <= set(dir(rs))


def test_the_shipped_sweeps_are_valid() -> None:
    # What comes from the Hugging Face hub is replaced by its like on this machine.
    local = {"opt": [f"language.model={local_models.trained_opt()}", "language.keep=100"]}
    # The corpora are in tests/sweep/test_corpora.py and test_transfer.py, on files of this machine.
    corpora = {"openwebtext", "bookcorpus", "transfer"}
    files = sorted((Path(__file__).parents[1] / "sweeps").glob("*.yaml"))
    assert corpora < {file.stem for file in files}
    files = [file for file in files if file.stem not in corpora]
    for file in files:
        sweep = rs.load_sweep(file, overrides=local.get(file.stem, ()))
        assert sweep.name == file.stem
        if file.stem == "first":
            # A look at what a launch does: one run, which proves nothing.
            assert len(sweep.runs) == 1
            assert sweep.questions.claims == ()
            continue
        if file.stem.startswith("theory_") or sweep.search is not None:
            # These test a statement about models, or look for the best one: they compare no algorithms.
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
