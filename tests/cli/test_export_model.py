"""`raysweep export-model`: a run of a finished sweep, opened by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import local_texts
from helpers import tiny_sweeps as tiny
from raysweep.cli.app import run
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.stored import save_sweep
from raysweep.training import load_model, pretrain


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, finished: Sweep) -> None:
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(finished.storage))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("suffix", "step"), [("@2", 2), ("@4", 4), ("", 4)])
def test_transformers_gives_the_runs_logits(
    suffix: str, step: int, finished: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import transformers

    spec = finished.runs[1]
    assert run(["export-model", spec.run_id + suffix, "-o", "model"]) == 0
    assert capsys.readouterr().out == f"model: {spec.run_id}@{step}\n"
    language = finished.language(spec)
    directory = finished.ledger().open(spec.run_id).checkpoint_directory(step)
    model = load_model(directory, spec.model, language)
    ids = language.sample(6, seed=0)
    ids[:, 1] = language.mask_id
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    other: Any = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "model").eval()
    text = [language.text(row[:1]) + " [MASK] " + language.text(row[2:]) for row in ids]
    batch = tokenizer(text, return_tensors="pt")
    assert torch.equal(batch["input_ids"], ids)
    with torch.no_grad():
        found, expected = other(**batch).logits, model.head(model.encode(ids))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_a_pattern_names_the_run_where_it_is_the_only_one(
    finished: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["export-model", "*-s1-*@2", "-o", "model"]) == 0
    assert finished.runs[1].run_id in capsys.readouterr().out


def test_what_is_not_there_is_an_error_with_what_is(
    finished: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = finished.runs[0].run_id
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    for arguments, message in (
        ([f"{name}@3"], f"run {name} has no checkpoint of step 3; it has steps 2, 4"),
        ([f"{name}@last"], f"'last' is not a step; write RUN@STEP, e.g. {name}@1000"),
        (["8-2-1-16*"], "'8-2-1-16*': matches 2 runs"),
        ([f"x{name[1:]}"], f"no such run in {finished.storage} (2 runs in 1 sweep) — did you mean '{name}'?"),
        ([name, "-o", "full"], "--output full: already exists; name a new folder"),
    ):
        output = [] if "-o" in arguments else ["-o", "model"]
        assert run(["export-model", *arguments, *output]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_model_of_word_pieces_is_exported_without_a_tokenizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its tokenizer has special tokens among its words, and splits words into pieces."""
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    source = local_texts.files()["jsonl"]
    (tmp_path / "pieces.yaml").write_text(
        f"name: pieces\nlanguage: {{kind: corpus, source: {source}, length: 16, held_out: 0.2,\n"
        "  tokenizer: {train: wordpiece, vocabulary: 300}}\nmodel: {kind: encoder, shape: 8/2/1/16}\n"
        "algorithm: {kind: adamw}\npretrain: {steps: 2, batch_size: 4, milestones: [2]}\n"
        "evaluate: {held_out_loss: {sentences: 8}}\n"
    )
    sweep = load_sweep(tmp_path / "pieces.yaml", storage=tmp_path / "results")
    sweep.prepare()
    save_sweep(sweep)
    [spec] = sweep.runs
    journal, language = sweep.ledger().run(spec), sweep.language(spec)
    pretrain(
        language=language, model=spec.model, algorithm=spec.algorithm, pretrain=spec.pretrain, seed=0,
        journal=journal,
    )  # fmt: skip
    storage = ["--storage", str(tmp_path / "results")]
    assert run(["export-model", spec.run_id, "-o", "model", *storage]) == 0
    assert "without a tokenizer" in (told := capsys.readouterr().out)
    assert "padding is 300, the mask 301" in told
    assert not (tmp_path / "model" / "tokenizer.json").exists()
    # And it is measured again on the language of its sweep file, with the evaluations there.
    assert run(["evaluate", "model", "--language", "pieces.yaml", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)["evaluations"]
    assert found["config"]["sentences"] == 8


def test_a_look_up_table_has_no_model_to_export(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = tiny.HEAD + "evaluate: {excess_loss: {sentences: 8}}\n"
    (tmp_path / "tiny.yaml").write_text(text)
    given = ["axes=null", "algorithm={kind: lookup_table}"]
    sweep = load_sweep(tmp_path / "tiny.yaml", given, storage=tmp_path / "results")
    save_sweep(sweep)
    [spec] = sweep.runs
    assert run(["export-model", spec.run_id, "-o", "model", "--storage", str(sweep.storage)]) == 2
    told = f"run {spec.run_id} has no model to export or evaluate: lookup_table trains none"
    assert told in capsys.readouterr().err
    # Its folder holds records and no checkpoint.
    folder = sweep.ledger().run(spec).directory
    assert run(["evaluate", str(folder)]) == 2
    assert told in capsys.readouterr().err
