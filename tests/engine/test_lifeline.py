"""The watch over Ray's ports, on sockets of this test."""

from __future__ import annotations

import socket
import threading

import pytest

from raysweep.engine import lifeline
from raysweep.engine.lifeline import Part, watched


@pytest.fixture
def server() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def part(server: socket.socket) -> Part:
    return Part("GCS", "127.0.0.1", server.getsockname()[1])


def test_a_lost_part_is_told_once_it_has_been_silent(
    server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifeline, "PERIOD", 0.02)
    monkeypatch.setattr(lifeline, "PATIENCE", 0.2)
    lost, told = part(server), threading.Event()
    found: list[Part] = []

    def on_loss(one: Part) -> None:
        found.append(one)
        told.set()

    with watched([lost], on_loss):
        assert not told.wait(0.5)
        server.close()
        assert told.wait(10)
    assert found == [lost]


def test_nothing_is_told_after_the_end(server: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifeline, "PERIOD", 0.02)
    monkeypatch.setattr(lifeline, "PATIENCE", 0.2)
    told = threading.Event()
    with watched([part(server)], lambda _: told.set()):
        pass
    server.close()
    assert not told.wait(1.0)
