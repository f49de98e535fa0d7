"""The bounded window, on a stand-in for Ray that counts what is in flight; references kept on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from raysweep.engine import tasks
from raysweep.errors import StorageError
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.languages import HMM
from raysweep.sweep.shards import ShardStore


class FakeRay:
    """References are numbers; each `wait` finishes the oldest one."""

    def __init__(self) -> None:
        self.flying: list[int] = []
        self.most = 0
        self.submitted = 0

    def submit(self) -> int:
        self.submitted += 1
        self.flying.append(self.submitted)
        self.most = max(self.most, len(self.flying))
        return self.submitted

    def wait(self, references: list[int], num_returns: int, timeout: float) -> tuple[list[int], list[int]]:
        if timeout == 0:
            return [], references
        self.flying.remove(references[0])
        return references[:1], references[1:]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    monkeypatch.setattr(tasks, "ray", fake)
    return fake


def test_never_more_in_flight_than_the_window(fake: FakeRay) -> None:
    window: tasks.Window[int] = tasks.Window(3)
    for k in range(10):
        window.add(k, fake.submit)
    found: dict[int, int] = {}
    while len(window):
        found |= dict(window.ready(timeout=1.0))
    assert fake.most == 3
    assert found == {k: k + 1 for k in range(10)}


def test_nothing_is_submitted_before_there_is_room(fake: FakeRay) -> None:
    window: tasks.Window[int] = tasks.Window(2)
    for k in range(5):
        window.add(k, fake.submit)
    assert fake.submitted == 0
    assert len(window) == 5
    assert len(list(window.ready(timeout=1.0))) == 1
    assert fake.submitted == 2
    assert len(window) == 4


def test_an_empty_window_does_not_wait(fake: FakeRay) -> None:
    window: tasks.Window[int] = tasks.Window(2)
    assert list(window.ready(timeout=1e9)) == []


@pytest.mark.parametrize(
    ("resources", "expected"),
    [
        ({"CPU": 1.0}, {"num_cpus": 1.0, "num_gpus": 0}),
        ({"GPU": 0.25}, {"num_cpus": 0, "num_gpus": 0.25}),
        ({"CPU": 1.0, "fast": 2.0}, {"num_cpus": 1.0, "num_gpus": 0, "resources": {"fast": 2.0}}),
    ],
)
def test_resources_of_a_task(resources: dict[str, float], expected: dict[str, Any]) -> None:
    options = tasks.task_options(resources)
    assert options.pop("scheduling_strategy").placement_group is None
    assert options == expected


class Costly(HMM):
    """A language whose conditionals are stored, and that counts how often it computes them."""

    stores_conditionals = True
    computed = 0

    def conditionals(self, *arguments: Any) -> Any:
        type(self).computed += 1
        return super().conditionals(*arguments)


FIELDS: dict[str, Any] = {"states": 4, "vocabulary": 6, "length": 3, "blocks": 2, "tasks": (1,)}


def costly(seed: int = 0) -> Costly:
    drawn = HMM.random(seed=seed, **FIELDS)
    tables = {name: getattr(drawn, name) for name in ("initial", "transition", "emission")}
    return Costly(length=3, **tables)


def test_references_of_a_costly_language_are_computed_once(tmp_path: Path) -> None:
    language = costly()
    evaluation = ExcessLossConfig(sentences=20, shard_size=8, positions="random")
    folder = tasks.reference_folder(tmp_path, language, evaluation)
    assert folder is not None
    with pytest.raises(StorageError, match="not visible"):
        tasks._reference(language, evaluation, 0, folder)
    store = ShardStore.make(folder, {"evaluation": evaluation.encode()})
    first = [tasks._reference(language, evaluation, shard, folder) for shard in range(3)]
    assert store.stored() == [0, 1, 2]
    before = Costly.computed
    for shard in (2, 0, 1):
        again = tasks._reference(language, evaluation, shard, folder)
        assert np.array_equal(again, first[shard])
        assert again.dtype == np.float32
    assert Costly.computed == before
    store.path(1).write_bytes(store.path(1).read_bytes()[:-1])
    assert np.array_equal(tasks._reference(language, evaluation, 1, folder), first[1])
    assert Costly.computed == before + 1


def test_references_have_a_folder_for_each_language_and_setting(tmp_path: Path) -> None:
    every, one = ExcessLossConfig(), ExcessLossConfig(positions="random")
    assert tasks.reference_folder(tmp_path, HMM.random(**FIELDS), every) is None
    folders = {tasks.reference_folder(tmp_path, costly(k), asked) for k in (0, 1) for asked in (every, one)}
    assert len(folders) == 4
    assert {folder.parent for folder in folders if folder} == {tmp_path / "conditionals"}
