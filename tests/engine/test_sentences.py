"""A shard of training sentences that a task makes and stores, without Ray."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import local_models
from raysweep.engine.sentences import _store_sentences, fill
from raysweep.errors import ConfigError, DataError, StorageError
from raysweep.languages import CausalLMConfig
from raysweep.sweep import load_sweep
from raysweep.sweep import sentences as module
from raysweep.sweep.sentences import Wanted
from raysweep.sweep.shards import ShardStore


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wanted:
    monkeypatch.setattr(module, "SHARD", 32)
    config = CausalLMConfig(model=str(local_models.random_opt()), keep=4, length=3)
    return Wanted(
        language=config,
        fingerprint=config.build().fingerprint,
        seed=0,
        drawn_by=5,
        total=80,
        storage=tmp_path,
    )


def test_shards_are_stored_and_found_and_completed(one: Wanted) -> None:
    store = one.make()
    assert [_store_sentences(one, shard) for shard in (2, 0)] == [{"reused": False}] * 2
    assert _store_sentences(one, 2) == {"reused": True}
    sentences = one.language.build().sample(100, seed=5).numpy()
    for shard, size in ((0, 32), (2, 16)):
        found = store.read(shard)
        assert found is not None
        np.testing.assert_array_equal(found["ids"], sentences[32 * shard :][:size])
    longer = replace(one, total=100)
    assert _store_sentences(longer, 2) == {"reused": False}
    assert _store_sentences(one, 2) == {"reused": True}
    found = store.read(2)
    assert found is not None
    np.testing.assert_array_equal(found["ids"], sentences[64:96])


def test_a_node_with_another_language_or_without_the_folder_is_told(one: Wanted) -> None:
    with pytest.raises(StorageError, match="not visible"):
        _store_sentences(one, 0)
    other = replace(one, fingerprint="0" * 64)
    other.make()
    with pytest.raises(DataError, match="another one than the driver's"):
        _store_sentences(other, 0)
    assert ShardStore(other.folder).stored() == []


def test_a_sweep_without_stored_sentences_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "dyck.yaml"
    file.write_text(
        "{name: few, language: {kind: dyck, length: 4}, model: {kind: encoder, shape: 8/1/2/16}, algorithm: "
        "{kind: adamw}, pretrain: {steps: 2, batch_size: 2}, evaluate: {held_out_loss: {sentences: 8}}}"
    )
    sweep = load_sweep(file, storage=tmp_path)
    with pytest.raises(ConfigError, match="sweep 'few' trains on no sentences that are stored"):
        fill(sweep)
    assert not (tmp_path / "sentences").exists()
