"""The request of a generation, its shards, and what they add up to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.generation import Tally, Work, counts_of, make_shard, plan
from raysweep.generation.request import SHARD, SHARD_BYTES
from raysweep.generation.tally import merged, moments
from raysweep.languages import HMMConfig, Language, PCFGConfig
from raysweep.languages.splits import TaskFacts, draw_split

CONFIG = PCFGConfig(roots=2, layers=2, symbols=3, rules=4, words=6, vocabulary=12, stop=0.4)


@pytest.fixture(scope="module")
def language() -> Language:
    return CONFIG.build()


def asked(language: Language, **changes: Any) -> Work:
    arguments: dict[str, Any] = {
        "what": ("statistics", "entropy", "tasks:A,C"),
        "sizes": {"sentences": 1000, "train": 300, "test": 200},
        "seed": 5,
        "positions": None,
        "out": None,
        "shard_size": 256,
    }
    return plan(CONFIG, language, **{**arguments, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"what": ()}, "asks for nothing"),
        ({"what": ("entropie",)}, "unknown 'entropie' — did you mean 'entropy'"),
        ({"what": ("entropy:A",)}, "unknown 'entropy:A'"),
        ({"what": ("tasks:A,D",)}, "unknown task 'D'.*has A, B, C"),
        ({"what": ("conditionals",)}, r"name a folder \(out\)"),
        ({"sizes": {"sentences": 0, "train": 1, "test": 1}}, "sentences: 0 is less than 1"),
        ({"sizes": {"sentences": 9, "train": 1, "test": -1}}, "test: -1 is less than 1"),
        ({"positions": "some"}, "positions: 'some'"),
        ({"shard_size": 0}, "shard_size: 0"),
    ],
)
def test_what_makes_no_sense_is_refused(language: Language, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(language, **changes)


def test_what_a_language_has_not_is_refused_and_not_asked_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    language = HMMConfig(states=4, vocabulary=6, length=3, blocks=2, tasks=()).build()
    with pytest.raises(ConfigError, match="has no tasks"):
        asked(language, what=("tasks",))
    assert list(asked(language, what=None).sizes) == ["sentences"]
    monkeypatch.setattr(type(language), "exact", False)
    for what in ("entropy", "conditionals"):
        with pytest.raises(ConfigError, match="nobody knows the exact conditionals of a HMM"):
            asked(language, what=(what,))
    work = asked(language, what=None)
    assert not work.entropy
    assert not work.store_conditionals


def test_shards_cover_each_part_once(language: Language) -> None:
    work = asked(language)
    for part, n in work.sizes.items():
        numbers = [number for p, k in work.shards() if p == part for number in work.numbers(part, k)]
        assert numbers == list(range(n))
    assert list(asked(language, what=("tasks",)).sizes) == ["train", "test"]
    assert list(asked(language, what=("statistics",)).sizes) == ["sentences"]


def test_stored_shards_are_bounded(language: Language, monkeypatch: pytest.MonkeyPatch) -> None:
    assert asked(language, shard_size=None).shard_size == SHARD
    monkeypatch.setattr(language, "vocabulary_size", 50_000)
    for positions, rows in (("all", language.max_length), ("random", 1)):
        size = asked(
            language, shard_size=None, what=("conditionals",), out="x", positions=positions
        ).shard_size
        assert size == min(SHARD, SHARD_BYTES // (rows * 50_000 * 4))


def test_costly_conditionals_are_stored_and_drawn_by_default(
    language: Language, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(language), "stores_conditionals", True)
    work = asked(language, out="x")
    assert (work.positions, work.store_conditionals) == ("random", True)
    assert not asked(language).store_conditionals
    assert not asked(language, out="x", what=("statistics", "tasks")).store_conditionals
    assert asked(language, out="x", positions="all").positions == "all"


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.parametrize("positions", ["all", "random"])
def test_shards_hold_what_the_language_says(
    language: Language, tmp_path: Path, positions: str, stored: bool
) -> None:
    what = ("conditionals" if stored else "entropy", "tasks")
    work = asked(language, out=tmp_path, what=what, positions=positions)
    tally = Tally(language, work.tasks)
    shards = {key: make_shard(language, work, *key) for key in work.shards()}
    for arrays in shards.values():
        tally.add(counts_of(arrays))
    found = tally.result(seed=5, positions=positions, out=tmp_path, seconds=0.0)
    ids = language.sample(1000, seed=5)
    expected = language.entropy(1000, seed=5, positions=positions)  # type: ignore[arg-type]
    assert found.entropy is not None
    assert found.length is not None
    assert found.entropy.value == pytest.approx(expected.value, rel=1e-6)
    assert found.entropy.standard_error == pytest.approx(expected.standard_error, rel=1e-6)
    assert (found.entropy.n, found.sentences) == (1000, 1000)
    lengths = language.lengths(ids).double()
    assert found.length.value == pytest.approx(lengths.mean().item())
    assert found.length.standard_error == pytest.approx(lengths.std().item() / 1000**0.5)
    assert found.length_counts == tuple(lengths.long().bincount(minlength=language.max_length + 1).tolist())
    assert found.word_counts == tuple(ids[ids != language.pad_id].bincount(minlength=12).tolist())
    for split, n in (("train", 300), ("test", 200)):
        sample = draw_split(language, split, n, seed=5)  # type: ignore[arg-type]
        parts = [arrays for (part, _), arrays in shards.items() if part == split]
        joined = {name: np.concatenate([arrays[name] for arrays in parts]) for name in parts[0]}
        assert np.array_equal(joined["ids"], sample.ids.numpy())
        for name, task in language.tasks.items():
            labels = language.labels(name, sample)
            assert np.array_equal(joined[f"labels.{name}"], labels.numpy())
            assert found.tasks[name][split] == TaskFacts.of(task, labels)  # type: ignore[index]
    shard = shards["sentences", 1]
    assert ("log_probs" in shard) == stored
    if stored and positions == "all":
        exact = language.conditionals(ids[256:512]).numpy()
        assert np.array_equal(shard["log_probs"], exact, equal_nan=True)
    elif stored:
        drawn = torch.from_numpy(shard["positions"]).long()
        exact = language.conditionals_at(ids[256:512], drawn).numpy()
        assert np.array_equal(shard["log_probs"], exact)
    if stored:
        assert np.array_equal(shard["ids"], ids[256:512].numpy())


def test_moments_of_parts_are_those_of_the_whole() -> None:
    values = np.random.default_rng(0).gamma(0.3, size=10_000) + 1e3
    total = moments(values[:1])
    for part in np.split(values[1:], [1, 700, 701, 5000]):
        total = merged(total, moments(part))
    assert total[0] == 10_000
    assert total[1] == pytest.approx(values.mean(), rel=1e-14)
    assert total[2] == pytest.approx(values.var() * 10_000, rel=1e-10)
