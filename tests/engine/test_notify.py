"""Notices of the end of a launch, to commands and to a web server of this machine."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import raysweep as rs
from helpers import tiny_sweeps as tiny
from raysweep.cli.app import run
from raysweep.engine import notify as room
from raysweep.engine.notify import noticed, notify
from raysweep.errors import ConfigError, LockedError, StorageError
from raysweep.sweep import Sweep, SweepLock
from raysweep.sweep.cancel import cancel_runs
from raysweep.sweep.stored import save_sweep

CONTENT = {"event": "done", "sweep": "tiny", "text": "raysweep: tiny done"}


class Server(ThreadingHTTPServer):
    """Keeps what is posted; answers `/hang` never, and `/wrong` with an error."""

    daemon_threads = True

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict[str, Any]]] = []
        self.released = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.posted.append((self.path, content))
        if self.path == "/hang":
            self.server.released.wait(60)
        self.send_response(500 if self.path == "/wrong" else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("RAYSWEEP_STORAGE", "results")
    made = Server()
    thread = threading.Thread(target=made.serve_forever)
    thread.start()
    yield made
    made.released.set()
    made.shutdown()
    thread.join()
    made.server_close()


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    """A sweep that is done."""
    monkeypatch.chdir(tmp_path)
    text = tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\naxes: {seed: [0, 1]}\n"
    (tmp_path / "tiny.yaml").write_text(text)
    loaded = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    for spec in loaded.runs:
        tiny.finish(loaded.ledger().run(spec), spec)
    return loaded


def test_a_launch_posts_that_it_is_done(sweep: Sweep, server: Server, tmp_path: Path) -> None:
    with (tmp_path / "tiny.yaml").open("a") as file:
        file.write(f"notify: ['{server.url('/secret')}', \"cat > told; echo $RAYSWEEP_EVENT >> told\"]\n")
    loaded = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    assert loaded.runs == sweep.runs
    rs.launch(loaded, notify=[server.url("/more")])
    assert sorted(path for path, _ in server.posted) == ["/more", "/secret"]
    content = server.posted[0][1]
    assert content["text"].startswith("raysweep: tiny done after ")
    expected = {
        "event": "done",
        "sweep": "tiny",
        "directory": str(sweep.directory),
        "runs": {"done": 2, "failed": 0, "cancelled": 0, "unfinished": 0},
        "failures": {},
        "error": None,
    }
    assert {name: content[name] for name in expected} == expected
    assert set(content) == {*expected, "host", "pid", "seconds", "text"}
    told, event = (tmp_path / "told").read_text().rsplit("}", 1)
    assert (json.loads(told + "}"), event) == (content, "done\n")
    # The address may be a secret: no file of the storage has it.
    files = [path for path in (tmp_path / "results").rglob("*") if path.is_file()]
    assert len(files) > 5
    assert not [path for path in files if b"/secret" in path.read_bytes()]


def test_the_command_line_takes_targets(sweep: Sweep, server: Server) -> None:
    assert run(["launch", "tiny.yaml", "--notify", server.url("/a"), "--notify", "cat > told"]) == 0
    assert [path for path, _ in server.posted] == ["/a"]
    assert json.loads(Path("told").read_text()) == server.posted[0][1]


@pytest.mark.parametrize("target", ["", "  ", "ftp://host/x", "https://", "http://[x"])
def test_a_target_that_is_none(sweep: Sweep, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", "tiny.yaml", "--notify", target]) == 2
    assert "--notify: " in capsys.readouterr().err
    with pytest.raises(ConfigError, match="notify: "):
        rs.launch(sweep, notify=[target])
    with pytest.raises(ConfigError, match=r"notify: "):
        rs.load_sweep("tiny.yaml", [f"notify=[{json.dumps(target)}]"])


@pytest.mark.parametrize("value", ["3", "{url: x}", "[[x]]", "[null]"])
def test_a_field_that_names_no_target(sweep: Sweep, value: str) -> None:
    with pytest.raises(ConfigError, match=r"notify: .* is neither a command nor an address"):
        rs.load_sweep("tiny.yaml", [f"notify={value}"])


def events(server: Server) -> list[tuple[str, Any]]:
    return [(content["event"], content["error"]) for _, content in server.posted]


def test_how_a_launch_ends(sweep: Sweep, server: Server) -> None:
    targets = [server.url("/")]
    for error in (KeyboardInterrupt(), SystemExit(15), StorageError("the disk\nis full")):
        with pytest.raises(type(error)), noticed(sweep, targets):
            raise error
    first, second = sweep.runs
    with noticed(sweep, targets):
        pass
    assert events(server) == [
        ("interrupted", None),
        ("interrupted", None),
        ("failed", "the disk is full"),
        ("done", None),
    ]
    # A run that is cancelled has not failed by its own fault.
    for spec in (first, second):
        for path in (sweep.ledger().open(spec.run_id).directory / "records").glob("evaluation-*"):
            path.unlink()
    sweep.ledger().open(first.run_id).record_failure("the loss is nan", error="RunFailedError")
    cancel_runs(sweep, [second])
    with noticed(sweep, targets):
        pass
    content = server.posted[-1][1]
    assert content["event"] == "failed"
    assert content["runs"] == {"done": 0, "failed": 1, "cancelled": 1, "unfinished": 0}
    assert content["failures"][first.run_id] == "the loss is nan"


def test_a_failure_is_one_line_and_never_more(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A webhook that hangs and a command that hangs are given up together; the others are as they are."""
    monkeypatch.setattr(room, "LIMIT", 1.0)
    unused = Server()
    unused.server_close()
    targets = [
        server.url("/hang"),
        server.url("/wrong"),
        unused.url("/secret"),
        "sleep 100",
        "echo one >&2; echo two >&2; exit 3",
        "no-such-command",
        "true",
    ]
    began = time.monotonic()
    with caplog.at_level(logging.WARNING):
        notify(targets, CONTENT)
    assert time.monotonic() - began < 60
    said = {record.getMessage() for record in caplog.records}
    assert len(said) == 6
    assert all("\n" not in line and "secret" not in line for line in said)
    assert "notify: sleep 100: ended after 1 s" in said
    assert "notify: echo one >&2; echo two >&2; exit 3: exit code 3: two" in said
    assert any("HTTP Error 500" in line for line in said)
    assert any("refused" in line for line in said)


def test_a_notice_that_cannot_be_made_hides_nothing(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def payload(*_: Any, **__: Any) -> Any:
        raise OSError("the storage has gone")

    monkeypatch.setattr(room, "payload", payload)
    with pytest.raises(StorageError), noticed(sweep, ["true"]):
        raise StorageError("the disk is full")
    assert "notify: OSError: the storage has gone" in caplog.text


def test_a_launch_that_is_refused_tells_nobody(sweep: Sweep, server: Server) -> None:
    save_sweep(sweep)
    with SweepLock(sweep.directory), pytest.raises(LockedError):
        rs.launch(sweep, notify=[server.url("/")])
    assert server.posted == []
