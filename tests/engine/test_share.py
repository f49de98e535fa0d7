"""Fair shares of a cluster: who takes part, what each may take, and what the autoscaler is asked for."""

from __future__ import annotations

import math
import random
import sys
from typing import Any

import pytest

from raysweep.engine import share as module
from raysweep.engine.board import NAMESPACE, _Board
from raysweep.engine.share import AHEAD, Others, Share, portion
from raysweep.sweep import Resources


def poured(total: float, wants: list[float]) -> list[float]:
    """Return max-min fair shares: pour drops into the emptiest glass that is not full."""
    shares, drop = [0.0] * len(wants), total / 20000
    for _ in range(20000):
        open_ = [k for k, want in enumerate(wants) if shares[k] + drop / 2 < want]
        if open_:
            shares[min(open_, key=lambda k: shares[k])] += drop
    return shares


def test_a_portion_is_the_max_min_fair_one() -> None:
    rng = random.Random(0)
    for _ in range(20):
        total, number = rng.uniform(1, 20), rng.randint(0, 4)
        others = [rng.choice([0.0, math.inf, rng.uniform(0, total)]) for _ in range(number)]
        expected = poured(total, [*others, math.inf])[-1]
        assert portion(total, others) == pytest.approx(expected, abs=total / 1000)


class FakeRay:
    """Boards of launches by name; what a board answers comes with the next look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.boards: dict[str, Any] = {}
        self.silent: set[str] = set()
        self.cluster = {"CPU": 8.0, "GPU": 2.0, "memory": 1e9}
        monkeypatch.setattr(module, "list_named_actors", self._list)
        for name, stand_in in {
            "get_actor": self._get_actor,
            "wait": lambda refs, timeout: ([r for r in refs if r[0] not in self.silent], []),
            "get": lambda ref: ref[1],
            "cluster_resources": lambda: self.cluster,
        }.items():
            monkeypatch.setattr(module.ray, name, stand_in)

    def _list(self, all_namespaces: bool) -> list[dict[str, str]]:
        ours = [{"name": name, "namespace": NAMESPACE} for name in self.boards]
        return [*ours, {"name": "launch-x", "namespace": "theirs"}, {"name": "x", "namespace": NAMESPACE}]

    def _get_actor(self, name: str, namespace: str) -> Any:
        assert namespace == NAMESPACE
        if self.boards[name] is None:
            raise ValueError("no such actor")
        return _Handle(name, self.boards[name])

    def launch(self, name: str, wants: dict[str, float] | None = None) -> _Board:
        board = self.boards[name] = _Board()
        if wants is not None:
            board.want(wants)
        return board


class _Handle:
    """The handle of a board's actor."""

    def __init__(self, name: str, board: _Board) -> None:
        self._name, self._board = name, board

    @property
    def wants(self) -> Any:
        return self

    def remote(self) -> Any:
        return self._name, self._board.wants()


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    return FakeRay(monkeypatch)


def test_launches_know_one_another_by_their_boards(fake: FakeRay) -> None:
    fake.launch("launch-a")
    others = Others("launch-a")
    assert others.look() == {}
    board = fake.launch("launch-b", {"CPU": 2.0})
    # The answer comes with the next look.
    assert others.look() == {"launch-b": None}
    assert others.look() == {"launch-b": {"CPU": 2.0}}
    board.want({"CPU": 1.0})
    others.look()
    assert others.look() == {"launch-b": {"CPU": 1.0}}
    # Who does not answer wants what it wanted.
    board.want({"CPU": 4.0})
    fake.silent.add("launch-b")
    assert others.look() == {"launch-b": {"CPU": 1.0}}
    del fake.boards["launch-b"]
    assert others.look() == {}


def test_a_board_that_ends_just_now_is_no_error(fake: FakeRay) -> None:
    fake.boards["launch-b"] = None
    assert Others("launch-a").look() == {"launch-b": None}


class _Own:
    """The board of the launch itself."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.wants: list[dict[str, float]] = []

    def want(self, resources: dict[str, float]) -> None:
        self.wants.append(resources)


class _Coordinator:
    """Ray's coordinator of requests to the autoscaler."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ray.data._internal.cluster_autoscaler import default_autoscaling_coordinator as ours

        self.asked: list[tuple[str, list[dict[str, float]]]] = []
        monkeypatch.setattr(ours, "get_or_create_autoscaling_coordinator", lambda: self)

    @property
    def request_resources(self) -> Any:
        return self

    def remote(self, *, requester_id: str, resources: list[dict[str, float]], expire_after_s: float) -> None:
        assert 30 <= expire_after_s <= 120
        self.asked.append((requester_id, resources))


def shared(name: str, **resources: Any) -> tuple[Share, _Own]:
    own: Any = _Own(name)
    return Share(own, Resources(**resources)), own


def test_two_launches_get_half_each_of_what_both_want(fake: FakeRay) -> None:
    share, own = shared("launch-b", workers=2)
    assert share.look(9, 0) == (fake.cluster, 0, 0)
    fake.launch("launch-a")
    # It has just begun, and counts at once.
    offer, place, rivals = share.look(9, 0)
    assert (offer["CPU"], place, rivals) == (4.0, 1, 1)
    fake.boards["launch-a"].want({"CPU": 1.0})
    share.look(9, 0)
    offer, place, rivals = share.look(9, 0)
    assert (offer["CPU"], offer["GPU"], place, rivals) == (7.0, 2.0, 1, 1)
    assert own.wants == [{"CPU": 18.0}] * 4


def test_launches_that_want_other_things_are_no_rivals(fake: FakeRay) -> None:
    fake.launch("launch-b", {"GPU": 8.0})
    share, _ = shared("launch-a")
    share.look(9, 0)
    offer, _, rivals = share.look(9, 0)
    assert (offer["CPU"], rivals) == (8.0, 0)
    fake.boards["launch-b"].want({})
    share.look(9, 0)
    assert share.look(9, 0) == (fake.cluster, 0, 0)


def test_the_autoscaler_is_asked_for_room_and_asked_again(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    coordinator, now = _Coordinator(monkeypatch), [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    share, own = shared("launch-a", workers=2, per_worker={"GPU": 1.0})
    share.look(3, 0)
    assert coordinator.asked == []
    share.look(3, 2)
    assert coordinator.asked == [("raysweep-launch-a", [{"GPU": 1.0}] * 4)]
    share.look(3, 2)
    assert len(coordinator.asked) == 1
    now[0] += 20.0
    share.look(3, 2)
    assert len(coordinator.asked) == 2
    share.look(9999, 9999)
    assert len(coordinator.asked[-1][1]) == 2 * AHEAD
    share.close()
    assert coordinator.asked[-1][1] == []
    assert own.wants[-1] == {}
    share.close()
    assert len(coordinator.asked) == 4


def test_a_ray_without_a_coordinator_is_said_once(
    fake: FakeRay, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    package = "ray.data._internal.cluster_autoscaler"
    monkeypatch.setitem(sys.modules, f"{package}.default_autoscaling_coordinator", None)
    share, _ = shared("launch-a")
    for waiting in (2, 3, 0):
        share.look(3, waiting)
    assert [record.message for record in caplog.records if "no coordinator" in record.message] == [
        "this Ray has no coordinator, so its autoscaler learns of runs as they begin"
    ]
