"""The summary of a language."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from raysweep.languages import HMM, PCFG, Language
from raysweep.languages.describe import as_text, describe

PCFG_FIELDS: dict[str, Any] = {
    "roots": 2,
    "layers": 2,
    "symbols": 3,
    "rules": 4,
    "words": 6,
    "vocabulary": 12,
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
    }
    for name, task in language.tasks.items():
        labels, found = language.labels(name, sample), facts["tasks"][name]
        for label, count in found["counts"].items():
            assert int((labels == task.classes.index(label)).sum()) == count
        assert sum(found["counts"].values()) == 300
        assert found["majority_rate"] == torch.bincount(labels).max().item() / 300
        assert found["counts"][found["majority"]] == max(found["counts"].values())
    assert len(facts["examples"]) == 3
    for row, example in enumerate(facts["examples"]):
        assert example["ids"] == sample.ids[row, : int(lengths[row])].tolist()
        assert example["text"] == language.draw(sample, row)


def test_text_holds_the_facts(language: Language) -> None:
    facts = describe(language, sentences=100, examples=2)
    text = as_text(facts)
    assert f"entropy {facts['entropy']['value']:.4f} ± {facts['entropy']['standard_error']:.4f} nats" in text
    assert all(example["text"] in text for example in facts["examples"])
    assert all(f"task {name}: " in text for name in language.tasks)
