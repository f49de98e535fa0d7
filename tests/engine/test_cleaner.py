"""The death of a controller as Ray's control store tells it."""

from __future__ import annotations

from typing import Any

import pytest
from ray._private import state

from raysweep.engine import cleaner


@pytest.mark.parametrize(
    ("found", "alive"),
    [
        ({"State": "ALIVE"}, True),
        ({"State": "PENDING_CREATION"}, True),
        ({"State": "DEAD"}, False),
        # The store keeps the dead, so one that it does not know is no sign of death.
        ({}, True),
    ],
)
def test_only_the_dead_are_dead(found: dict[str, Any], alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "actors", lambda actor_id: found if actor_id == "ab" else None)
    assert cleaner.alive("ab", 1.0) is alive


def test_a_store_that_does_not_answer_says_nothing_of_death(monkeypatch: pytest.MonkeyPatch) -> None:
    def actors(actor_id: str) -> None:
        raise RuntimeError("no connection")

    monkeypatch.setattr(state, "actors", actors)
    assert cleaner.alive("ab", 1.0)
