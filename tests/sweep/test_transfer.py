"""sweeps/transfer.yaml: the text and the tables that its head says how to make, and the runs on them."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

from raysweep.cli.app import run
from raysweep.errors import ConfigError
from raysweep.sweep import Sweep, load_sweep

SWEEPS = Path(__file__).parents[2] / "sweeps"
TEXT = (SWEEPS / "transfer.yaml").read_text(encoding="utf-8")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the repository has of the sweep."""
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "sweeps" / "transfer").mkdir(parents=True)
    for name in ("transfer.yaml", "transfer/grammar.yaml"):
        shutil.copy(SWEEPS / name, tmp_path / "sweeps" / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sweeps"


def test_its_head_says_how_many_test_sentences_the_text_has(folder: Path) -> None:
    (first, _) = re.findall(r"^#   (raysweep .+)$", TEXT, re.MULTILINE)
    assert run(shlex.split(first)[1:]) == 0
    lines = set((folder / "transfer" / "text.txt").read_text(encoding="utf-8").splitlines())
    for name in "ABC":
        table = (folder / "transfer" / name / "validation.jsonl").read_text(encoding="utf-8")
        rows = [json.loads(row)["sentence"] for row in table.splitlines()]
        share = sum(sentence in lines for sentence in rows) / len(rows)
        assert f"# {100 * share:.0f} % of the test sentences are lines of the text" in TEXT


def load(folder: Path, *settings: str) -> Sweep:
    return load_sweep(folder / "transfer.yaml", settings, storage=folder / "results")


def test_the_commands_of_its_head_make_what_it_reads(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        ConfigError,
        match=r"transfer.yaml:21:11: language.source: there is no file.*text.txt.*`raysweep language text",
    ):
        load(folder)
    first, second = re.findall(r"^#   (raysweep .+)$", TEXT, re.MULTILINE)
    assert second == "raysweep launch sweeps/transfer.yaml"
    assert run(shlex.split(first)[1:]) == 0
    # From another folder: what the file names lies beside it.
    monkeypatch.chdir(folder.parent.parent)
    sweep = load(folder)
    assert run(["validate", str(folder / "transfer.yaml")]) == 0
    assert sweep.name == "transfer"
    assert len(sweep.runs) == 4
    assert {run.seed for run in sweep.runs} == {0, 1}
    assert len({run.model.label for run in sweep.runs}) == 2
    spec = sweep.runs[0]
    assert {"held_out_loss", "probe", "finetune", "quantize"} == set(spec.evaluations)
    assert spec.evaluations["probe"].train == (128, 512, 2048)
    # Tokens, rows and tasks are made, and the evaluations fit them.
    sweep.prepare()
    language = sweep.language(spec)
    for name, data in language.data_tasks.items():
        assert data.facts["outside"] == data.facts["repeated"] == 0
        assert data.size("train") == 4096
        assert name in "ABC"
    # Every word of the grammar is one token, so a sentence is not longer than in the grammar.
    lines = (folder / "transfer" / "text.txt").read_text().splitlines()
    words = {word for line in lines for word in line.split()}
    assert len(words) == 24
    assert all(len(ids) == 1 for ids in language.words.known(sorted(words)))
