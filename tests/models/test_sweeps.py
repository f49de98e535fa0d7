"""Models in sweep files: what makes two of them one run, and what is refused before anything starts."""

from pathlib import Path

import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.evaluation import ModelSubject
from raysweep.flatness import fisher_trace
from raysweep.models import EncoderConfig, to_huggingface
from raysweep.sweep import Sweep, load_sweep
from raysweep.training import load_model, pretrain

BASE = """\
name: tiny
language: {kind: hmm, states: 4, vocabulary: 6, length: 4, blocks: 2, tasks: [2]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 100, batch_size: 8}
"""


def load(folder: Path, text: str) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(BASE + text, encoding="utf-8")
    return load_sweep(path, storage=folder / "results")


def test_fields_with_no_say_in_the_weights_leave_the_identity_alone() -> None:
    assert EncoderConfig(shape="table3-128", checkpointing=True).content() == {
        "kind": "encoder",
        "vocabulary": "own",
        "shape": "128/2/4/512",
        "norm": "pre",
        "dropout": 0.1,
        "layer_norm_eps": 1e-5,
    }


def test_a_name_and_its_numbers_are_one_run(tmp_path: Path) -> None:
    sweep = load(tmp_path, "axes: {model.shape: [table3-64, 64/1/1/256, table3-128]}\n")
    assert [run.model.label for run in sweep.runs] == ["64/1/1/256", "128/2/4/512"]


def test_checkpointing_is_no_other_run_and_the_vocabulary_is(tmp_path: Path) -> None:
    plain = load(tmp_path, "").runs[0]
    sweep = load(tmp_path, "axes: {model.checkpointing: [true, false], model.vocabulary: [own, faithful]}\n")
    assert len(sweep.runs) == 2
    assert sweep.runs[0].run_id == plain.run_id
    assert sweep.runs[1].run_id.startswith("16-1-1-32-faithful-adamw")


def test_encoders_and_lstms_stand_in_one_sweep_with_a_trace(tmp_path: Path) -> None:
    text = "evaluate: {excess_loss: {}, trace: {}}\ninclude: [{model: {kind: lstm, shape: 8/1}}]\n"
    assert [run.model.kind for run in load(tmp_path, text).runs] == ["encoder", "lstm"]


def test_a_trace_of_what_cannot_be_enlarged_is_refused_at_its_place(tmp_path: Path) -> None:
    text = "evaluate: {trace: {enlarged_to: 24/1/2/64}}\ninclude: [{model: {kind: lstm, shape: 8/1}}]\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert "evaluate.trace.enlarged_to" in str(caught.value)


TEXT = """\
name: text
language: {kind: corpus, source: text.txt, document: line, tokenizer: bert, length: 8, held_out: 0.2}
model: {kind: huggingface, path: bert, dropout: 0.0}
algorithm: {kind: adamw, lr: 0.01, warmup_steps: 0}
pretrain: {steps: 20, batch_size: 16, mask: 0.15}
"""


def bert(folder: Path) -> None:
    """Save a small BERT with its WordPiece tokenizer."""
    import tokenizers
    import transformers

    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat", "sat", "##s", "on", "mat", "a"]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordPiece({piece: k for k, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", mask_token="[MASK]", cls_token="[CLS]", unk_token="[UNK]"
    ).save_pretrained(folder)
    config = transformers.BertConfig(
        vocab_size=12,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    transformers.BertForMaskedLM(config).save_pretrained(folder)


def test_a_checkpoint_from_elsewhere_is_trained_on_and_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    bert(tmp_path / "bert")
    lines = [
        "the cat sat on the mat",
        "a cat sat on a mat",
        "the mats sat on the cats",
        "a cat sat on the mat",
    ]
    (tmp_path / "text.txt").write_text("\n".join(f"{line} {'sat ' * k}" for k in range(20) for line in lines))
    (tmp_path / "text.yaml").write_text(TEXT, encoding="utf-8")
    sweep = load_sweep(tmp_path / "text.yaml", storage=tmp_path / "results")
    [spec] = sweep.runs
    assert spec.run_id.startswith("bert-dropout0-adamw")
    language = sweep.language(spec)
    before = ModelSubject(language, spec.model.build(language, seed=0))
    journal = sweep.ledger().run(spec)
    pretrain(
        language=language,
        model=spec.model,
        algorithm=spec.algorithm,
        pretrain=spec.pretrain,
        seed=spec.seed,
        journal=journal,
    )
    trained = load_model(journal.checkpoint_directory(20), spec.model, language)
    after = ModelSubject(language, trained)
    ids = language.held_out.sample(32, seed=0)
    at = torch.arange(32) % 8
    losses = [-s.log_probs(ids, at).gather(1, ids.gather(1, at[:, None])).mean() for s in (before, after)]
    assert losses[1] < losses[0] - 0.5
    assert fisher_trace(trained, ids).value > 0
    # What became of it goes back to where it came from, under the ids of the language.
    to_huggingface(trained, tmp_path / "again")


def test_a_checkpoint_with_other_words_is_refused_at_its_place(tmp_path: Path) -> None:
    bert(tmp_path / "bert")
    text = BASE.replace("{kind: encoder, shape: 16/1/1/32}", "{kind: huggingface, path: bert}")
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(
        ConfigError, match=r":3:34: model\.path: the model has 12 words, the language 6; use a"
    ):
        load_sweep(tmp_path / "sweep.yaml")


def test_a_checkpoint_that_is_not_there_is_one_error(tmp_path: Path) -> None:
    text = BASE.replace("{kind: encoder, shape: 16/1/1/32}", "{kind: huggingface, path: nowhere}")
    (tmp_path / "sweep.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match="no such file") as caught:
        load_sweep(tmp_path / "sweep.yaml")
    assert len(str(caught.value).splitlines()) == 1
