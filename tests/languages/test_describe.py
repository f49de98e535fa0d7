"""The summary of a language."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import local_glue, local_models, local_texts
from raysweep.languages import HMM, PCFG, Language
from raysweep.languages.causal_lm import CausalLM
from raysweep.languages.corpus import Corpus
from raysweep.languages.describe import FEW, as_text, describe

PCFG_FIELDS: dict[str, Any] = {
    "roots": 2,
    "layers": 2,
    "symbols": 3,
    "rules": 4,
    "words": 6,
    "vocabulary": 12,
    "stop": 0.4,
}


@pytest.fixture(params=["pcfg", "hmm"])
def language(request: pytest.FixtureRequest) -> Language:
    if request.param == "pcfg":
        return PCFG.random(**PCFG_FIELDS)
    return HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2, 5))


def test_facts_are_those_of_the_sample(language: Language) -> None:
    facts = json.loads(json.dumps(describe(language, sentences=300, seed=7, examples=3)))
    sample = language.sample_latent(300, seed=7)
    lengths = language.lengths(sample.ids)
    assert facts["lengths"]["mean"] == lengths.double().mean().item()
    assert sum(facts["lengths"]["counts"].values()) == 300
    assert facts["entropy"] == {
        "value": language.entropy(300, seed=7).value,
        "standard_error": language.entropy(300, seed=7).standard_error,
        "n": 300,
        "unit": "nats",
        "positions": "all",
    }
    for name, task in language.tasks.items():
        labels, found = language.labels(name, sample), facts["tasks"][name]
        for label, count in found["counts"].items():
            assert int((labels == task.classes.index(label)).sum()) == count
        assert sum(found["counts"].values()) == 300
        rate = torch.bincount(labels).max().item() / 300
        assert found["majority_rate"] == rate
        assert found["majority_standard_error"] == pytest.approx((rate * (1 - rate) / 300) ** 0.5)
        assert found["counts"][found["majority"]] == max(found["counts"].values())
    assert len(facts["examples"]) == 3
    for row, example in enumerate(facts["examples"]):
        assert example["ids"] == sample.ids[row, : int(lengths[row])].tolist()
        assert example["drawing"] == language.draw(sample, row)
        assert example["text"] == language.text(sample.ids[row])


def test_the_best_possible_accuracy_is_that_of_the_sample(language: Language) -> None:
    facts = json.loads(json.dumps(describe(language, sentences=300, seed=7)))
    ids, text = language.sample(300, seed=7), as_text(facts)
    for name in language.tasks:
        best = facts["tasks"][name]["best"]
        values = language.label_posterior(name, ids).max(dim=1).values
        assert best["value"] == pytest.approx(values.mean().item())
        assert best["standard_error"] == pytest.approx(values.std().item() / 300**0.5)
    if isinstance(language, PCFG):
        assert (
            text.count("the label is a function of the sentence, so the best possible accuracy is 100 %") == 3
        )
    else:
        best = facts["tasks"]["2"]["best"]
        assert f"the best possible accuracy is {best['value']:.1%} ± {best['standard_error']:.1%}\n" in text
        assert facts["tasks"]["2"]["majority_rate"] < best["value"] < 1


def test_tasks_of_data_sets_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    tasks = [
        {"glue": name, "source": str(local_glue.write(tmp_path / name, name))} for name in ("rte", "stsb")
    ]
    language = Corpus.open(
        str(local_texts.files()["txt"]), tokenizer={"train": "wordpiece", "vocabulary": 400}, length=16,
        tasks=tasks,
    )  # fmt: skip
    facts = json.loads(json.dumps(describe(language, sentences=5)))
    found = facts["data_tasks"]["rte"]
    assert (found["counts"], found["majority_rate"]) == ({"entailment": 8, "not_entailment": 8}, 0.5)
    text = as_text(facts)
    assert "scored by accuracy\n  40 training and 16 test examples; " in text
    assert "tokens are outside the vocabulary and kept as the unknown word; " in text
    assert "  test: entailment 8, not_entailment 8; the most frequent is right in 50.0%\n" in text
    mean = sum(row["label"] for row in local_glue.rows("stsb", 16, seed=1)) / 16
    assert "scored by pearson, spearman\n" in text
    assert f"  a regression; the mean of the test is {mean:.3f}" in text


def test_lengths_are_exact_where_they_are_known() -> None:
    language = PCFG.random(**PCFG_FIELDS)
    facts = describe(language, sentences=2, entropy_sentences=0, examples=0)
    probabilities = facts["lengths"]["probabilities"]
    assert sum(probabilities.values()) == pytest.approx(1.0, abs=1e-12)
    n = 20_000
    counts = torch.bincount(language.lengths(language.sample(n, seed=3)), minlength=language.max_length + 1)
    for length in range(language.max_length + 1):
        p = probabilities.get(str(length), 0.0)
        assert abs(int(counts[length]) - n * p) <= 4.5 * (n * p * (1 - p)) ** 0.5
    mean = sum(int(length) * p for length, p in probabilities.items())
    assert f"lengths (exact): 2 to 4, mean {mean:.2f}" in as_text(facts)

    fixed = describe(HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,)), sentences=2)
    assert fixed["lengths"]["probabilities"] == {"5": 1.0}
    assert "lengths (exact): always 5" in as_text(fixed)


def test_lengths_of_a_sample_say_so() -> None:
    language = PCFG.random(**PCFG_FIELDS)
    language.length_probabilities = None
    facts = describe(language, sentences=200, entropy_sentences=0, examples=0)
    assert f"lengths (of 200 sentences): 2 to 4, mean {facts['lengths']['mean']:.2f}" in as_text(facts)


def test_text_holds_the_facts(language: Language) -> None:
    language.notes = ("symbol S7 occurs in no sentence",)
    facts = describe(language, sentences=100, examples=2)
    text = as_text(facts)
    assert f"entropy {facts['entropy']['value']:.4f} ± {facts['entropy']['standard_error']:.4f} nats" in text
    assert "(100 sentences of seed 0)" in text
    assert all(example["text"] in text for example in facts["examples"])
    assert all(example["drawing"] in text for example in facts["examples"])
    assert all(f"task {name}: " in text for name in language.tasks)
    assert "note: symbol S7 occurs in no sentence\n" in text


def test_words_are_shown_where_they_have_names() -> None:
    language = PCFG.random(**PCFG_FIELDS)
    ids = language.sample(20, seed=0)
    row = int(language.lengths(ids).argmin())
    n = int(language.lengths(ids)[row])
    assert n < language.max_length
    assert language.text(ids[row]).split() == [language.words[word] for word in ids[row, :n].tolist()]


def test_costly_conditionals_are_few_and_said_to_be() -> None:
    language = CausalLM.load(str(local_models.random_opt()), keep=8, length=6)
    facts = describe(language, sentences=40, seed=2, examples=1)
    expected = language.entropy(FEW, seed=2, positions="random")
    assert facts["entropy"]["value"] == expected.value
    assert (facts["entropy"]["n"], facts["entropy"]["positions"]) == (FEW, "random")
    ids = language.sample(1, seed=2)[0]
    assert facts["examples"][0]["text"] == language.text(ids)
    text = as_text(facts)
    assert f"({FEW} sentences of seed 2, one drawn position each, because conditionals are costly)" in text
    assert "lengths (exact): always 6" in text
    none = describe(language, sentences=4, entropy_sentences=0)
    assert none["entropy"] is None
    assert "entropy: not measured" in as_text(none)


def test_nobody_knows_the_entropy_of_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path))
    language = Corpus.open(
        str(local_texts.files()["txt"]), tokenizer={"train": "wordpiece", "vocabulary": 400}, length=16
    )
    facts = json.loads(json.dumps(describe(language, sentences=20, examples=2)))
    assert facts["entropy"] is None
    text = as_text(facts)
    assert "entropy: nobody knows the exact conditionals of this language" in text
    sample = language.sample_latent(20, seed=0)
    assert facts["examples"][1]["text"] == language.text(sample.ids[1])
    assert facts["examples"][1]["drawing"] is None
    assert text.count(language.text(sample.ids[1])) == 1
