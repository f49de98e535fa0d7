"""The files that go to a cluster with a sweep, and the paths that mean nothing there."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.errors import ConfigError
from raysweep.sweep import load_sweep
from raysweep.sweep.shipment import Shipment, local_paths

BASE = tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n"


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_a_file_goes_with_all_that_it_extends_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    write(project / "base.yaml", BASE)
    write(project / "sweeps" / "middle.yaml", "extends: ../base.yaml\naxes: {seed: [0, 1]}\n")
    file = write(project / "sweeps" / "deep" / "mine.yaml", "extends: ../middle.yaml\nname: mine\n")
    for other in (".git/config", "results/mine/lock", "sweeps/other.yaml"):
        write(project / other, "")
    monkeypatch.chdir(project)
    shipment = Shipment.of(Path("sweeps/deep/mine.yaml"))
    places = [Path("sweeps/deep/mine.yaml"), Path("sweeps/middle.yaml"), Path("base.yaml")]
    assert list(shipment.files) == places
    there = tmp_path / "there"
    shipment.copy(there)
    assert sorted(p.relative_to(there) for p in there.rglob("*") if p.is_file()) == sorted(places)
    shutil.rmtree(project / "sweeps")
    assert not file.exists()
    assert load_sweep(there / places[0], storage=tmp_path).name == "mine"


def test_places_start_where_all_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a" / "base.yaml", BASE)
    write(tmp_path / "b" / "mine.yaml", "extends: ../a/base.yaml\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert Shipment.of(Path("../b/mine.yaml")).files == (Path("b/mine.yaml"), Path("a/base.yaml"))


def test_an_absolute_extends_is_refused(tmp_path: Path) -> None:
    base = write(tmp_path / "base.yaml", BASE)
    mine = write(tmp_path / "mine.yaml", f"extends: {base}\n")
    with pytest.raises(ConfigError, match=r"extends: .*base\.yaml is an absolute path.*write it relative"):
        Shipment.of(mine)


def test_a_missing_file_is_told_as_ever(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Shipment.of(tmp_path / "mine.yaml")


def test_paths_of_this_machine(tmp_path: Path) -> None:
    for name in ("here.txt", "there.txt", "results/kept.txt"):
        write(tmp_path / name, f"the cat of {name} sat on the mat\n\n" * 300)
    file = write(
        tmp_path / "mine.yaml",
        "name: mine\n"
        "language: {kind: corpus, source: here.txt, length: 8,\n"
        "  tokenizer: {train: wordpiece, vocabulary: 300}}\n"
        "model: {kind: encoder, shape: 16/1/1/32}\n"
        "algorithm: {kind: adamw}\n"
        "pretrain: {steps: 2, batch_size: 2}\n"
        f"axes: {{language.source: [here.txt, {tmp_path}/there.txt, {tmp_path}/results/kept.txt]}}\n",
    )
    sweep = load_sweep(file, storage=tmp_path / "results")
    here, there = tmp_path / "here.txt", tmp_path / "there.txt"
    assert local_paths(sweep) == ([f"language.source: {here}"], [f"language.source: {there}"])
    assert local_paths(load_sweep(write(tmp_path / "other.yaml", BASE), storage=tmp_path)) == ([], [])
