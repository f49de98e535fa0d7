"""`raysweep export-model`: a run of a finished sweep, opened by transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from raysweep.cli.app import run
from raysweep.sweep import Sweep
from raysweep.training import load_model


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
        ([name[:-1]], f"no such run in {finished.storage} (2 runs in 1 sweeps) — did you mean '{name}'?"),
        ([name, "-o", "full"], "--output full: already exists; name a new folder"),
    ):
        output = [] if "-o" in arguments else ["-o", "model"]
        assert run(["export-model", *arguments, *output]) == 2
        assert message in capsys.readouterr().err
    assert not (tmp_path / "model").exists()
