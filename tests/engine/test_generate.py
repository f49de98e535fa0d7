"""A shard that a task makes and stores, without Ray."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raysweep.engine.generate import _store_shard
from raysweep.errors import DataError, StorageError
from raysweep.generation import Work, make_shard, plan
from raysweep.languages import HMMConfig, Language, PCFGConfig
from raysweep.sweep.shards import ShardStore

CONFIG = PCFGConfig(roots=2, layers=2, symbols=3, rules=4, words=6, vocabulary=12, stop=0.4)


@pytest.fixture(scope="module")
def language() -> Language:
    return CONFIG.build()


def asked(language: Language, out: Path | None) -> Work:
    return plan(
        CONFIG,
        language,
        what=("statistics", "entropy"),
        sizes={"sentences": 1000},
        seed=5,
        positions=None,
        out=out,
        shard_size=256,
    )


def test_shards_are_stored_and_found_and_damage_is_repaired(language: Language, tmp_path: Path) -> None:
    work = asked(language, tmp_path)
    store = ShardStore.make(tmp_path / "sentences", work.identity("sentences"))
    first = _store_shard(work, "sentences", 2)
    stored, made = store.read(2), make_shard(language, work, "sentences", 2)
    assert stored is not None
    assert stored.keys() == made.keys()
    assert all(np.array_equal(stored[name], made[name]) for name in made)
    content = store.path(2).read_bytes()
    again = _store_shard(work, "sentences", 2)
    assert (first.pop("reused"), again.pop("reused")) == (False, True)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    store.path(2).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert not _store_shard(work, "sentences", 2)["reused"]
    assert store.path(2).read_bytes() == content


def test_a_node_with_another_language_or_without_the_folder_is_told(
    language: Language, tmp_path: Path
) -> None:
    with pytest.raises(StorageError, match="not visible"):
        _store_shard(asked(language, tmp_path / "absent"), "sentences", 0)
    other = HMMConfig(states=4, vocabulary=6, length=3, blocks=2, tasks=()).build()
    with pytest.raises(DataError, match="another one than the driver's"):
        _store_shard(asked(other, None), "sentences", 0)
