"""Commands on a cluster as Ray jobs, from a machine that reaches no more of the cluster than its dashboard.

A job runs on the head and outlives the process that submitted it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, TextIO

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

from raysweep.engine.errand import read_frame
from raysweep.errors import ConfigError, StorageError

#: Seconds in which a dashboard must answer for the first time: half of them to connect, half to speak.
LIMIT = 10.0

#: Seconds for an answer of a dashboard that has answered before; a busy head starts a job slowly.
PATIENCE = 60.0

#: Seconds between two looks at a job.
_PERIOD = 0.5

#: The last lines of a job that has failed.
_LAST = 20

_URL = re.compile(r"https?://[^\s/:]+(?::\d{1,5})?(?:/\S*)?\Z|https?://\[[0-9A-Fa-f:]+\](?::\d{1,5})?/?\Z")
_ENTRY = "Running entrypoint for job "
#: Exit codes of a shell that finds no such program, or may not start it.
_NO_PROGRAM = (126, 127)
_NO_MODULE = re.compile(r"No module named '?raysweep\b")
_NO_DASHBOARD = "something else than the dashboard of Ray listens there"


class _Client(JobSubmissionClient):
    """Ray's client, whose requests give up."""

    def _do_request(self, method: str, endpoint: str, **given: Any) -> requests.Response:
        read = LIMIT / 2 if endpoint == "/api/version" else PATIENCE
        return super()._do_request(method, endpoint, **given, timeout=(LIMIT / 2, read))


class JobServer:
    """The jobs of the cluster whose dashboard is at `address`, such as http://HOST:8265.

    Raises `ConfigError` for an address that is none, and `StorageError` if no Ray answers there within
    `LIMIT` seconds or asks for another token.
    """

    def __init__(self, address: str) -> None:
        if not _URL.match(address):
            raise ConfigError(
                f"--address '{address}' is not http://HOST:PORT, the address of the cluster's dashboard "
                "(port 8265 unless it was given another)"
            )
        self.address = address.rstrip("/")
        for name in ("dashboard.modules.dashboard_sdk", "_private.runtime_env.packaging"):
            logging.getLogger(f"ray.{name}").setLevel(logging.ERROR)
        with self._asked():
            try:
                self._client = _client(self.address)
            except (ValueError, KeyError):  # an answer that names no version
                self._refuse(_NO_DASHBOARD)

    def submit(self, words: Sequence[str], *, name: str, folder: Path | None = None) -> str:
        """Start a command on the head and return the id of its job, which begins with `name`.

        The files of `folder`, if there is one, are sent along, and the command runs in a copy of it.
        """
        job = f"{name}-{uuid.uuid4().hex[:8]}"
        environment = {} if folder is None else {"working_dir": str(folder)}
        with self._asked():
            return self._client.submit_job(
                entrypoint=shlex.join(words), submission_id=job, runtime_env=environment
            )

    def wait_until_begun(self, job: str, say: Callable[[str], None]) -> int | None:
        """Wait until the command of a job has connected to Ray, or has ended; return its exit code then.

        `say` is called with each line that it writes meanwhile.
        """
        told = 0
        while True:
            with self._asked():
                details = self._client.get_job_info(job)
                lines = _written(self._client.get_job_logs(job))
            over = details.status.is_terminal()
            # The last line may not be whole yet.
            for line in lines[told:] if over and lines[-1] else lines[told:-1]:
                say(line)
                told += 1
            if over:
                return self._code(job, lines)
            if details.driver_info is not None:
                return None
            time.sleep(_PERIOD)

    def run(self, arguments: Sequence[str], *, name: str, out: TextIO, err: TextIO) -> int:
        """Run a command of raysweep as a job, write what it writes as it comes, and return its exit code.

        The job is stopped if this is interrupted, and forgotten by the cluster when it has ended.
        """
        job = self.submit(["python", "-m", "raysweep.engine.errand", *arguments], name=name)
        last: deque[str] = deque(maxlen=_LAST)
        streams = {"out": out, "err": err}

        def take(line: str) -> None:
            frame = read_frame(line)
            if frame is not None:
                streams[frame[0]].write(frame[1])
                streams[frame[0]].flush()
            elif line.startswith(_ENTRY):
                last.clear()
            else:
                last.append(line)

        try:
            with self._asked():
                asyncio.run(self._follow(job, take))
            code = self._code(job, list(last))
        except BaseException:
            with suppress(Exception):
                self._client.stop_job(job)
            raise
        finally:
            with suppress(Exception):
                self._client.delete_job(job)
        if code:
            err.writelines(f"{line}\n" for line in last)
        return code

    async def _follow(self, job: str, take: Callable[[str], None]) -> None:
        rest = ""
        async for text in self._client.tail_job_logs(job):
            *lines, rest = (rest + text).split("\n")
            for line in lines:
                take(line)
        if rest:
            take(rest)

    def _code(self, job: str, lines: Sequence[str]) -> int:
        """Return the exit code of a job that has ended or is about to.

        Raises `StorageError` if its command could not be started; the last of its `lines` say why.
        """
        while True:
            with self._asked():
                details = self._client.get_job_info(job)
            if details.status.is_terminal():
                break
            time.sleep(_PERIOD)
        code = details.driver_exit_code
        missing = code in _NO_PROGRAM or any(
            "No module named" in line and "raysweep" in line for line in lines
        )
        words = " ".join(" ".join(lines[-_LAST:]).split()) or details.message or "without a word"
        if missing:
            raise StorageError(
                f"raysweep is not installed on the head of {self.address}, or not on the PATH of its `ray "
                f"start`: install it on all nodes (job {job}: {words})"
            )
        if code is None and details.status != "SUCCEEDED":
            raise StorageError(f"job {job} at {self.address} was {details.status.lower()}: {words}")
        return code or 0

    @contextmanager
    def _asked(self) -> Iterator[None]:
        """Turn the errors of a request into a `StorageError` with the remedy."""
        try:
            yield
        except BrokenPipeError:
            raise  # of this process's own output
        except AuthenticationError:
            self._refuse(
                "it asks for a token that this process does not give: set RAY_AUTH_MODE=token, and "
                "RAY_AUTH_TOKEN (or copy the token of its head to ~/.ray/auth_token here)"
            )
        except (requests.Timeout, TimeoutError):
            self._refuse("something listens there, but no dashboard of Ray has answered in time")
        except (ConnectionError, requests.ConnectionError, aiohttp.ClientError) as error:
            self._refuse(f"nothing answers there{_reason(error)}")
        except requests.RequestException:
            self._refuse(_NO_DASHBOARD)
        except RuntimeError as error:
            self._refuse(" ".join(str(error).split())[:500])

    def _refuse(self, reason: str) -> NoReturn:
        raise StorageError(
            f"the jobs of the Ray cluster at {self.address} cannot be reached: {reason} (check --address, "
            "the address of its dashboard; through a firewall: ssh -L 8265:localhost:8265 HEAD)"
        ) from None


def _client(address: str) -> _Client:
    """Return a client; Ray would let variables of the environment name another address."""
    name = "RAY_API_SERVER_ADDRESS"
    before = os.environ.get(name)
    os.environ[name] = address
    try:
        return _Client(address)
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _written(log: str) -> list[str]:
    """Return the lines that a job's own command has written, without those of Ray before them.

    The last one is "", or has no end yet.
    """
    lines = log.split("\n")
    start = next((k + 1 for k, line in enumerate(lines) if line.startswith(_ENTRY)), len(lines))
    return lines[start:] or [""]


def _reason(error: BaseException) -> str:
    """Return the system's word for a failed connection, in brackets; "" if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        parts = [seen, getattr(seen, "reason", None), *seen.args]
        for part in parts:
            if isinstance(part, OSError) and part.strerror:
                return f" ({part.strerror})"
        inner = next((part for part in parts[1:] if isinstance(part, BaseException)), None)
        seen = inner or seen.__context__
    return ""
