"""A look at a cluster before Ray connects: nobody there, another thing there, another version there."""

from __future__ import annotations

import http.server
import json
import os
import platform
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import pytest
import ray
from ray.core.generated.gcs_service_pb2 import InternalKVGetReply
from ray.core.generated.gcs_service_pb2_grpc import (
    InternalKVGcsServiceServicer,
    add_InternalKVGcsServiceServicer_to_server,
)

from raysweep.engine import cluster as module
from raysweep.engine.cluster import connect
from raysweep.engine.reach import check_cluster
from raysweep.errors import ConfigError, RaysweepError, StorageError

HERE = {"ray_version": ray.__version__, "python_version": platform.python_version()}


class ControlStore(InternalKVGcsServiceServicer):
    """A control store that says of its cluster what it shall say, or ends the call with a code."""

    def __init__(self, says: bytes = b"", code: grpc.StatusCode | None = None) -> None:
        self.says, self.code = says, code

    def InternalKVGet(self, request: Any, context: grpc.ServicerContext) -> InternalKVGetReply:
        assert (request.namespace, request.key) == (b"cluster", b"CLUSTER_METADATA")
        if self.code is not None:
            context.abort(self.code, "no")
        return InternalKVGetReply(value=self.says)


@pytest.fixture
def serve() -> Iterator[Any]:
    """Serve a control store on a free port and return its address."""
    servers = []

    def start(store: ControlStore) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(max_workers=1))
        add_InternalKVGcsServiceServicer_to_server(store, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        servers.append(server)
        return f"127.0.0.1:{port}"

    yield start
    for server in servers:
        server.stop(None)


def refused(address: str, limit: float = 10.0) -> str:
    with pytest.raises(StorageError) as raised:
        check_cluster(address, limit)
    message = str(raised.value)
    assert raised.value.exit_code == 4
    assert "\n" not in message
    assert f"the Ray cluster at {address} " in message
    return message


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def test_nobody_is_there() -> None:
    message = refused(f"127.0.0.1:{closed_port()}")
    assert "nothing listens there (Connection refused)" in message
    assert "--address" in message
    assert "no.such.host.invalid:6379 cannot be reached: nothing listens there" in refused(
        "no.such.host.invalid:6379"
    )


def test_who_listens_and_says_nothing_is_not_waited_for() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        message = refused(f"127.0.0.1:{server.getsockname()[1]}", limit=0.5)
    assert "no Ray has answered within 0.5 s" in message


def test_another_server_is_no_ray() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            message = refused(f"127.0.0.1:{server.server_address[1]}")
        finally:
            server.shutdown()
            thread.join()
    assert "something else than Ray's control store listens there" in message


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"ray_version": "1.2.3"}, f"has Ray 1.2.3 and Python {platform.python_version()}"),
        ({"python_version": "3.4.5"}, f"has Ray {ray.__version__} and Python 3.4.5"),
    ],
)
def test_a_ray_of_another_version_is_told_with_both(serve: Any, other: dict[str, str], said: str) -> None:
    message = refused(serve(ControlStore(json.dumps(HERE | other).encode())))
    assert said in message
    assert f"this machine has Ray {ray.__version__} and Python {platform.python_version()}" in message


def test_a_ray_of_this_version_is_accepted(serve: Any) -> None:
    check_cluster(serve(ControlStore(json.dumps(HERE).encode())))


@pytest.mark.parametrize("says", [b"", b"{}", b"[1]", b"\xff"])
def test_a_control_store_without_a_version(serve: Any, says: bytes) -> None:
    assert "does not say its version" in refused(serve(ControlStore(says)))


def test_a_ray_that_asks_for_a_token_is_no_other_thing(serve: Any) -> None:
    message = refused(serve(ControlStore(code=grpc.StatusCode.UNAUTHENTICATED)))
    assert "RAY_AUTH_MODE=token" in message


@pytest.mark.parametrize(
    "address", ["head", "head:", ":6379", "head:port", "head:70000", "head:0", "h:" + "9" * 5000]
)
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(ConfigError, match="is not HOST:PORT"):
        check_cluster(address)


@pytest.mark.parametrize("address", ["auto", "local", "ray://head:10001"])
def test_what_ray_finds_itself_is_left_to_it(address: str) -> None:
    check_cluster(address)


def test_ray_is_not_asked_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(module.ray, "init", lambda **_: pytest.fail("Ray was asked"))
    with pytest.raises(RaysweepError, match="nothing listens there"):
        connect(f"127.0.0.1:{closed_port()}")


SWEEP = """\
name: tiny
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 8/1/1/16}
algorithm: {kind: adamw}
pretrain: {steps: 2, batch_size: 4}
"""


def test_a_launch_says_it_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(SWEEP)
    address = f"127.0.0.1:{closed_port()}"
    ended = subprocess.run(
        [sys.executable, "-m", "raysweep.cli", "launch", "tiny.yaml", "--address", address],
        capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False,
    )  # fmt: skip
    assert ended.returncode == 4, ended.stderr
    assert ended.stdout == ""
    assert ended.stderr.splitlines()[-2:] == [
        f"connecting to the Ray cluster at {address}",
        f"raysweep: the Ray cluster at {address} cannot be reached: nothing listens there "
        "(Connection refused) (check --address / RAY_ADDRESS, or leave both out to run on this machine)",
    ]
