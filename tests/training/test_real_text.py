"""Real text through the same loop: local files in rows of 128 word pieces, 15 % of them masked."""

import math
from pathlib import Path

import pytest
import torch

from helpers import local_texts
from helpers import training_fakes as fakes
from raysweep.languages import Corpus
from raysweep.training import checkpoint_directory, load_model, pretrain
from raysweep.training.data import batches


def test_an_encoder_learns_words_from_local_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    source, words = str(local_texts.files()["jsonl"]), {"train": "wordpiece", "vocabulary": 400}
    language = Corpus.open(source, tokenizer=words, length=128, held_out=0.2)
    arguments = fakes.arguments(
        language=language,
        model={"shape": "32/1/1/64"},
        algorithm={"warmup_steps": 10, "lr": 1e-2},
        pretrain={
            "steps": 50,
            "batch_size": 16,
            "milestones": [50],
            "mask": 0.15,
            "replace": "bert",
            "checkpoint_every": None,
        },
    )
    journal = fakes.FolderJournal(tmp_path / "run")
    pretrain(journal=journal, **arguments)
    [point] = journal.checkpoints()[0].curve
    assert point.tokens_per_second > 0
    assert 0 < point.mfu < 1

    [batch] = batches(language.held_out, arguments["pretrain"], seed=0, first=1, last=1)
    assert batch.lengths.tolist() == [128] * 16
    # round(0.15 · 128) a row.
    assert batch.count == 16 * 19
    losses = []
    for model in (
        arguments["model"].build(language, seed=5).eval(),
        load_model(checkpoint_directory(journal.directory, 50), arguments["model"], language),
    ):
        with torch.no_grad():
            logits = model.logits_at(batch.ids, batch.index)
            losses.append(torch.nn.functional.cross_entropy(logits, batch.targets).item())
    # From nothing, all words being alike, to how often each occurs, in text never seen.
    assert losses[0] == pytest.approx(math.log(language.vocabulary_size), abs=0.3)
    assert losses[1] < losses[0] - 0.5
