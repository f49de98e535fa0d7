"""Exact conditionals that are kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysweep.engine.references import reference_folder, stored_reference
from raysweep.errors import StorageError
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.languages import HMM
from raysweep.sweep.shards import ShardStore


class Costly(HMM):
    """A language whose conditionals are stored, and that counts how often it computes them."""

    stores_conditionals = True
    computed = 0

    def conditionals(self, *arguments: Any, **options: Any) -> Any:
        type(self).computed += 1
        return super().conditionals(*arguments, **options)


FIELDS: dict[str, Any] = {"states": 4, "vocabulary": 6, "length": 3, "blocks": 2, "tasks": (1,)}


def costly(seed: int = 0) -> Costly:
    drawn = HMM.random(seed=seed, **FIELDS)
    tables = {name: getattr(drawn, name) for name in ("initial", "transition", "emission")}
    return Costly(length=3, **tables)


def test_references_of_a_costly_language_are_computed_once(tmp_path: Path) -> None:
    language = costly()
    evaluation = ExcessLossConfig(sentences=20, shard_size=8, positions="random")
    folder = reference_folder(tmp_path, language, evaluation)
    assert folder is not None
    with pytest.raises(StorageError, match="not visible"):
        stored_reference(language, evaluation, 0, folder)
    store = ShardStore.make(folder, {"evaluation": evaluation.encode()})
    first = [stored_reference(language, evaluation, shard, folder) for shard in range(3)]
    assert store.stored() == [0, 1, 2]
    before = Costly.computed
    for shard in (2, 0, 1):
        again = stored_reference(language, evaluation, shard, folder)
        assert np.array_equal(again, first[shard])
        assert again.dtype == np.float32
    assert Costly.computed == before
    store.path(1).write_bytes(store.path(1).read_bytes()[:-1])
    assert np.array_equal(stored_reference(language, evaluation, 1, folder), first[1])
    assert Costly.computed == before + 1


def test_references_have_a_folder_for_each_language_and_setting(tmp_path: Path) -> None:
    every, one = ExcessLossConfig(), ExcessLossConfig(positions="random")
    assert reference_folder(tmp_path, HMM.random(**FIELDS), every) is None
    folders = {reference_folder(tmp_path, costly(k), asked) for k in (0, 1) for asked in (every, one)}
    assert len(folders) == 4
    assert {folder.parent for folder in folders if folder} == {tmp_path / "conditionals"}
