"""The bounded window, on a stand-in for Ray that counts what is in flight."""

from __future__ import annotations

from typing import Any

import pytest

from raysweep.engine import window as windows
from raysweep.engine.window import Window, task_options


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
    monkeypatch.setattr(windows, "ray", fake)
    return fake


def test_never_more_in_flight_than_the_window(fake: FakeRay) -> None:
    window: Window[int] = Window(3)
    for k in range(10):
        window.add(k, fake.submit)
    found: dict[int, int] = {}
    while len(window):
        found |= dict(window.ready(timeout=1.0))
    assert fake.most == 3
    assert found == {k: k + 1 for k in range(10)}


def test_nothing_is_submitted_before_there_is_room(fake: FakeRay) -> None:
    window: Window[int] = Window(2)
    for k in range(5):
        window.add(k, fake.submit)
    assert fake.submitted == 0
    assert len(window) == 5
    assert len(list(window.ready(timeout=1.0))) == 1
    assert fake.submitted == 2
    assert len(window) == 4


def test_an_empty_window_does_not_wait(fake: FakeRay) -> None:
    window: Window[int] = Window(2)
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
    options = task_options(resources)
    assert options.pop("scheduling_strategy").placement_group is None
    assert options == expected
