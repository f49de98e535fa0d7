"""The sweeps on real text: loaded without reading a word of it; the same path on local files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers

from helpers import local_texts
from raysweep.errors import ConfigError
from raysweep.sweep import load_sweep, make_plan

SWEEPS = Path(__file__).parents[2] / "sweeps"

SMALL = [
    "language.length=16",
    "language.held_out=0.2",
    "language.tokenizer={train: wordpiece, vocabulary: 300}",
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpus"


def local(name: str, *settings: str, tmp_path: Path):
    source = ["language.source=" + str(local_texts.files()["jsonl"]), "language.revision=null"]
    overrides = [*source, "language.rows_per_document=1", *settings]
    return load_sweep(SWEEPS / f"{name}.yaml", overrides, storage=tmp_path / "results")


@pytest.mark.parametrize(("name", "runs"), [("openwebtext", 1), ("bookcorpus", 2)])
def test_the_shipped_sweeps_plan_without_tokenising(
    name: str, runs: int, tmp_path: Path, cache: Path
) -> None:
    words = json.dumps({"[UNK]": 0, "[SEP]": 1, **{f"w{k}": k + 2 for k in range(30520)}})
    model = tokenizers.models.WordPiece(json.loads(words), unk_token="[UNK]")
    (tmp_path / "tokenizer").mkdir()
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    sweep = local(name, f"language.tokenizer={tmp_path / 'tokenizer'}", tmp_path=tmp_path)
    assert len(sweep.runs) == runs
    assert len(make_plan(sweep).to_do) == runs
    assert not cache.exists()
    for spec in sweep.runs:
        assert (spec.pretrain.batch_size, spec.pretrain.mask, spec.algorithm.warmup_steps) == (
            4096,
            0.15,
            5000,
        )
        assert sweep.language(spec).vocabulary_size == 30522


def test_preparing_a_sweep_checks_what_is_known_then(tmp_path: Path, cache: Path) -> None:
    sweep = local("openwebtext", *SMALL, tmp_path=tmp_path)
    with pytest.raises(
        ConfigError, match=r"evaluate.held_out_loss.sentences: 16384 are asked for, \d+ are held"
    ):
        sweep.prepare()
    assert cache.exists()
    # Now it is known at once.
    with pytest.raises(ConfigError, match=r"evaluate.held_out_loss.sentences: 16384 are asked for"):
        local("openwebtext", *SMALL, tmp_path=tmp_path)
    local("openwebtext", *SMALL, "evaluate.held_out_loss.sentences=50", tmp_path=tmp_path).prepare()


def test_what_needs_exact_conditionals_is_refused_on_text(tmp_path: Path, cache: Path) -> None:
    for setting, message in (
        ("evaluate.excess_loss={}", "evaluate.excess_loss: nobody knows the exact conditionals of a Corpus"),
        ("algorithm={kind: lookup_table}", "algorithm.kind: 'lookup_table' answers with exact conditionals"),
        ("evaluate.probe={}", "evaluate.probe.tasks: the language has no downstream tasks"),
    ):
        with pytest.raises(ConfigError, match=message):
            local("openwebtext", *SMALL, setting, tmp_path=tmp_path)
    assert not cache.exists()


def test_local_sources_are_beside_the_file_that_names_them(tmp_path: Path, cache: Path) -> None:
    local_texts.write(tmp_path / "texts", local_texts.documents())
    text = (
        "name: local\nlanguage: {kind: corpus, source: texts/*.txt, length: 16, held_out: 0.2,\n"
        "  tokenizer: {train: wordpiece, vocabulary: 300}}\n"
        "model: {kind: encoder, shape: 64/1/1/64}\nalgorithm: {kind: adamw}\n"
        "pretrain: {steps: 2, batch_size: 4, mask: 0.15}\n"
    )
    (tmp_path / "sweep.yaml").write_text(text)
    (spec,) = load_sweep(tmp_path / "sweep.yaml", storage=tmp_path / "results").runs
    assert spec.language.source == str(tmp_path / "texts" / "*.txt")
    (tmp_path / "sweep.yaml").write_text(text.replace("texts/*.txt", "./nothing.txt"))
    with pytest.raises(ConfigError, match=r"sweep.yaml:2:1: language: source: there is no file"):
        load_sweep(tmp_path / "sweep.yaml", storage=tmp_path / "results")
