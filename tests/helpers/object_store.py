"""A real S3-compatible server (moto's) on this machine, which counts requests and fails where a test asks."""

from __future__ import annotations

import logging
import re
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

from raysweep.remote import RemotePath
from raysweep.remote.client import file_system

BUCKET = "results"

_UNAVAILABLE = (
    b'<?xml version="1.0" encoding="UTF-8"?><Error><Code>SlowDown</Code>'
    b"<Message>Please reduce your request rate.</Message></Error>"
)


@dataclass
class Fault:
    """The fate of the next `times` requests that match: `refused`, `hung` (seconds), or `unanswered`.

    A request that is unanswered is carried out, and its connection is cut before the answer.
    """

    method: str
    pattern: str
    times: int = 1
    refused: bool = False
    hung: float = 0.0
    unanswered: bool = False

    def takes(self, method: str, target: str) -> bool:
        """Return whether it befalls a request, and count it."""
        if self.times < 1 or method != self.method or not re.search(self.pattern, target):
            return False
        self.times -= 1
        return True


@dataclass
class ObjectStore:
    """The server: the URL of its bucket, the requests so far by what they do, and the faults to come."""

    root: RemotePath
    endpoint: str
    requests: Counter[str] = field(default_factory=Counter)
    faults: list[Fault] = field(default_factory=list)
    #: Whether it writes over an object that it is asked to create, as some stores do.
    careless: bool = False


class _Handler(WSGIRequestHandler):
    # Answers of two packets would wait 40 ms for each other.
    disable_nagle_algorithm = True

    def log_request(self, *_: Any) -> None:
        pass

    def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
        pass


def _kind(method: str, path: str, query: str) -> str:
    if method == "GET":
        return "LIST" if "list-type=2" in query else "GET"
    return method


def _app(store: ObjectStore) -> Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]:
    inner = DomainDispatcherApplication(create_backend_app)
    lock = threading.Lock()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        method, path, query = environ["REQUEST_METHOD"], environ["PATH_INFO"], environ.get("QUERY_STRING", "")
        target = f"{path}?{query}"
        if store.careless:
            environ.pop("HTTP_IF_NONE_MATCH", None)
        with lock:
            store.requests[_kind(method, path, query)] += 1
            fault = next((each for each in store.faults if each.takes(method, target)), None)
        if fault is not None:
            if fault.hung:
                time.sleep(fault.hung)
            if fault.refused:
                # The request's body is not read, so the connection ends here.
                start_response(
                    "503 Slow Down", [("Content-Type", "application/xml"), ("Connection", "close")]
                )
                return [_UNAVAILABLE]
            if fault.unanswered:
                list(inner(environ, lambda *_: None))
                environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
                raise ConnectionAbortedError("the answer is lost, as asked")
        return inner(environ, start_response)

    return app


@contextmanager
def object_server() -> Iterator[ObjectStore]:
    """Serve an empty bucket until the end; the environment says where.

    A client takes a second of a processor to make, so all tests of a module share one; see `anew`.
    """
    import fsspec
    from moto.s3.models import s3_backends

    logging.getLogger("werkzeug").setLevel(logging.CRITICAL)
    store = ObjectStore(RemotePath(f"s3://{BUCKET}/sweeps"), "")
    server = make_server("127.0.0.1", 0, _app(store), threaded=True, request_handler=_Handler)
    store.endpoint = f"http://127.0.0.1:{server.server_port}"
    systems = fsspec.get_filesystem_class("s3")
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": store.endpoint,
        }.items():
            patch.setenv(name, value)
        # An outage ends after seconds, not a minute.
        patch.setattr("raysweep.remote.client._RETRIES", {"s3": 1})
        systems.clear_instance_cache()
        try:
            s3_backends.reset()
            file_system(f"s3://{BUCKET}")[0].mkdir(BUCKET)
            yield store
        finally:
            systems.clear_instance_cache()
            server.shutdown()
            thread.join()
            server.server_close()


def anew(server: ObjectStore, folder: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """Return a server with an empty root and nothing counted; copies go to `folder`."""
    monkeypatch.setenv("RAYSWEEP_CACHE", str(folder / "cache"))
    server.root = RemotePath(f"s3://{BUCKET}/{secrets.token_hex(4)}")
    server.requests.clear()
    server.faults.clear()
    server.careless = False
    return server
