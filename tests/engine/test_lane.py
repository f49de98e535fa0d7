"""The lane that a process keeps: for the next run, unless it has given its workers back.  Without Ray."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from raysweep.engine import lane as module
from raysweep.engine.lane import kept_lane, rest_lane
from raysweep.engine.mailbox import IDLE
from raysweep.sweep import Resources


class _Method:
    def __init__(self, said: list[str], name: str, answer: Any) -> None:
        self._said, self._name, self._answer = said, name, answer

    def remote(self, *_: Any) -> Any:
        self._said.append(self._name)
        return self._answer


class _Lane(module.Lane):
    """A lane whose mailbox answers `holds`, and which trains nothing."""

    made: list[_Lane]
    holds: Any = True

    def __init__(self, *_: Any) -> None:
        self.said: list[str] = []
        self.error, self._last = None, None
        self._thread: Any = SimpleNamespace(is_alive=lambda: True)
        self.mailbox = SimpleNamespace(
            hold=_Method(self.said, "hold", self.holds), rest=_Method(self.said, "rest", None)
        )
        self.made.append(self)

    def abandon(self) -> None:
        self.said.append("abandoned")


@pytest.fixture
def lanes(monkeypatch: pytest.MonkeyPatch) -> list[_Lane]:
    monkeypatch.setattr(module, "_KEPT", {})
    monkeypatch.setattr(module, "Lane", _Lane)
    monkeypatch.setattr(_Lane, "made", [], raising=False)

    def get(answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(module.ray, "get", get)
    return _Lane.made


def take(folder: str = "launch") -> Any:
    board: Any = None
    return kept_lane(Resources(), board, Path(folder))


def test_the_next_run_takes_the_lane_that_is_there(lanes: list[_Lane]) -> None:
    first = take()
    rest_lane(Path("launch"))
    assert take() is first
    assert lanes == [first]
    assert first.said == ["rest", "hold"]


def test_a_lane_that_gave_its_workers_back_is_replaced(
    lanes: list[_Lane], monkeypatch: pytest.MonkeyPatch
) -> None:
    for answer in (False, module.ray.exceptions.ActorDiedError()):
        monkeypatch.setattr(_Lane, "holds", answer)
        module._KEPT.clear()
        first = take()
        rest_lane(Path("launch"))
        second = take()
        assert second is not first
        assert first.said == ["rest", "hold", "abandoned"]
        assert module._KEPT[Path("launch")] is second


def test_a_process_without_a_lane_has_none_to_rest(lanes: list[_Lane]) -> None:
    rest_lane(Path("launch"))
    assert lanes == []


def test_seconds_of_rest_bridge_the_start_of_a_trial_and_no_more() -> None:
    assert 5 <= IDLE <= 15
    assert asyncio.run(module.Mailbox().hold())
