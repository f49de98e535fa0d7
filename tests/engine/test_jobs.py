"""Commands as Ray jobs: who answers at the address, what a job has written, and how it has ended."""

from __future__ import annotations

import http.server
import io
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ray.job_submission import JobStatus

from raysweep.engine import jobs as module
from raysweep.engine.errand import frame, main, read_frame
from raysweep.engine.jobs import JobServer
from raysweep.errors import ConfigError, StorageError

Answer = tuple[int, bytes]
ENTRY = "INFO: Runtime env is setting up.\nRunning entrypoint for job j: words\n"


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Serve one answer to all requests and return the address."""
    servers = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(answer[0])
                self.end_headers()
                self.wfile.write(answer[1])

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def refused(address: str) -> str:
    with pytest.raises(StorageError) as raised:
        JobServer(address)
    message = str(raised.value)
    assert raised.value.exit_code == 4
    assert "\n" not in message
    assert f"the jobs of the Ray cluster at {address} cannot be reached: " in message
    assert "--address" in message
    return message


@pytest.mark.parametrize(
    "address", ["", "auto", "head:6379", "http://", "ray://head:10001", "http://a b", "http://head:x"]
)
def test_an_address_is_that_of_a_dashboard(address: str) -> None:
    with pytest.raises(ConfigError, match="is not http://HOST:PORT"):
        JobServer(address)


def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "nothing answers there (Connection refused)" in refused(f"http://127.0.0.1:{port}")


def test_who_listens_and_says_nothing_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIMIT", 0.4)
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        message = refused(f"http://127.0.0.1:{server.getsockname()[1]}")
    assert "no dashboard of Ray has answered in time" in message


@pytest.mark.parametrize("answer", [(200, b"<html>"), (200, b"{}"), (404, b""), (500, b"")])
def test_another_server_is_no_ray(serve: Callable[[Answer], str], answer: Answer) -> None:
    message = refused(serve(answer))
    assert "something else than the dashboard of Ray listens there" in message or "404" in message


@pytest.mark.parametrize("code", [401, 403])
def test_a_ray_that_asks_for_a_token(serve: Callable[[Answer], str], code: int) -> None:
    message = refused(serve((code, b"no")))
    assert "RAY_AUTH_MODE=token" in message
    assert "RAY_AUTH_TOKEN" in message


def test_no_variable_names_another_cluster(
    serve: Callable[[Answer], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    address = serve((200, json.dumps({"ray_version": "2.55.0"}).encode()))
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    JobServer(address + "/")
    assert os.environ["RAY_API_SERVER_ADDRESS"] == "http://127.0.0.1:1"


@dataclass
class Details:
    status: JobStatus
    driver_info: object = None
    driver_exit_code: int | None = None
    message: str | None = None


@dataclass
class FakeClient:
    """A cluster whose job has, at each look, the next of `looks`: its details, and its log so far."""

    looks: list[tuple[Details, str]]
    submitted: list[dict[str, Any]] = field(default_factory=list)
    stopped: list[str] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    chunks: list[str] = field(default_factory=list)

    def submit_job(self, **given: Any) -> str:
        self.submitted.append(given)
        return str(given["submission_id"])

    def get_job_info(self, _: str) -> Details:
        return self.looks[0][0]

    def get_job_logs(self, _: str) -> str:
        return self.looks.pop(0)[1] if len(self.looks) > 1 else self.looks[0][1]

    async def tail_job_logs(self, _: str) -> AsyncIterator[str]:
        for chunk in self.chunks:
            yield chunk

    def stop_job(self, job: str) -> None:
        self.stopped.append(job)

    def delete_job(self, job: str) -> None:
        self.deleted.append(job)


PENDING, RUNNING = Details(JobStatus.PENDING), Details(JobStatus.RUNNING)
BEGUN = Details(JobStatus.RUNNING, driver_info=object())


def ended(code: int | None, message: str | None = None) -> Details:
    status = JobStatus.SUCCEEDED if code == 0 else JobStatus.FAILED
    return Details(status, driver_exit_code=code, message=message)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[JobServer, FakeClient]]:
    monkeypatch.setattr(module, "_PERIOD", 0.0)

    def make(*looks: tuple[Details, str], chunks: list[str] | None = None) -> tuple[JobServer, FakeClient]:
        client = FakeClient(list(looks), chunks=chunks or [])
        monkeypatch.setattr(module, "_client", lambda _: client)
        return JobServer("http://head:8265"), client

    return make


Make = Callable[..., tuple[JobServer, FakeClient]]


def test_words_are_quoted_and_a_folder_is_sent(server: Make, tmp_path: Path) -> None:
    jobs, client = server((PENDING, ""))
    job = jobs.submit(["raysweep", "launch", "a b.yaml", "--set", "x=$(y)"], name="mine", folder=tmp_path)
    [given] = client.submitted
    assert given["entrypoint"] == "raysweep launch 'a b.yaml' --set 'x=$(y)'"
    assert given["runtime_env"] == {"working_dir": str(tmp_path)}
    assert job == given["submission_id"]
    assert job.startswith("mine-")
    assert jobs.submit(["x"], name="mine") != job


def test_it_waits_until_the_launch_has_connected(server: Make) -> None:
    jobs, _ = server(
        (PENDING, ""),
        (PENDING, "INFO: Runtime env is setting up.\n"),
        (RUNNING, ENTRY + "first\nsec"),
        (BEGUN, ENTRY + "first\nsecond\nthi"),
    )
    said: list[str] = []
    assert jobs.wait_until_begun("j", said.append) is None
    assert said == ["first", "second"]


@pytest.mark.parametrize("log", ["first\nlast", "first\nlast\n"])
@pytest.mark.parametrize("code", [0, 2, 3, 130])
def test_a_launch_that_ends_at_once_gives_its_exit_code(server: Make, code: int, log: str) -> None:
    jobs, _ = server((ended(code), ENTRY + log))
    said: list[str] = []
    assert jobs.wait_until_begun("j", said.append) == code
    assert said == ["first", "last"]


@pytest.mark.parametrize(
    ("code", "line"),
    [(127, "/bin/sh: 1: raysweep: not found"), (1, "/usr/bin/python: No module named raysweep")],
)
def test_a_head_without_raysweep(server: Make, code: int, line: str) -> None:
    jobs, _ = server((ended(code), f"{ENTRY}{line}\n"), chunks=[f"{ENTRY}{line}\n"])
    for act in (
        lambda: jobs.wait_until_begun("j", print),
        lambda: jobs.run(["status"], name="r", out=io.StringIO(), err=io.StringIO()),
    ):
        with pytest.raises(StorageError, match="raysweep is not installed on the head of") as raised:
            act()
        assert line in str(raised.value)


def test_a_job_that_never_starts_says_why(server: Make) -> None:
    jobs, _ = server((ended(None, "Failed to set up the environment"), "INFO: Runtime env is setting up.\n"))
    with pytest.raises(StorageError, match="was failed: Failed to set up the environment"):
        jobs.wait_until_begun("j", print)


def test_a_command_elsewhere_writes_to_both_streams_and_is_forgotten(server: Make) -> None:
    text = (
        ENTRY + frame("out", "ä lin") + "\n" + frame("err", "trouble\n") + "\n" + frame("out", "e\n") + "\n"
    )
    # Chunks need not end where lines do.
    jobs, client = server((ended(3), ""), chunks=[text[:70], text[70:-5], text[-5:]])
    out, err = io.StringIO(), io.StringIO()
    assert jobs.run(["status", "a b"], name="raysweep-status", out=out, err=err) == 3
    assert out.getvalue() == "ä line\n"
    assert err.getvalue() == "trouble\n"
    [given] = client.submitted
    assert given["entrypoint"] == "python -m raysweep.engine.errand status 'a b'"
    assert client.deleted == [given["submission_id"]]
    assert client.stopped == []


def test_a_command_elsewhere_ends_with_this_one(server: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    jobs, client = server((RUNNING, ""))

    async def interrupted(_: str) -> AsyncIterator[str]:
        raise KeyboardInterrupt
        yield ""

    monkeypatch.setattr(client, "tail_job_logs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        jobs.run(["logs", "x", "-f"], name="r", out=io.StringIO(), err=io.StringIO())
    assert client.stopped == [client.submitted[0]["submission_id"]]


def test_an_errand_frames_both_streams_and_keeps_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema"]) == 0
    frames = [read_frame(line) for line in capsys.readouterr().out.splitlines()]
    text = "".join(f[1] for f in frames if f is not None and f[0] == "out")
    assert "properties" in json.loads(text)
    assert len(frames) > 2
    assert main(["validate", "/nowhere.yaml"]) == 2
    found = [read_frame(line) for line in capsys.readouterr().out.splitlines()]
    assert {f[0] for f in found if f is not None} == {"err"}
    assert read_frame("a line of Ray") is None
