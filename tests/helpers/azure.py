"""A real Azure Blob server (Azurite, from npm) on this machine, where it is installed."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from raysweep.remote import RemotePath
from raysweep.remote.client import file_system

#: The account that every Azurite has, with its published key.
_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@contextmanager
def azure_server() -> Iterator[RemotePath]:
    """Serve an empty container until the end and yield its root; the environment says where.

    Skips where Azurite or the extra `az` is not installed.
    """
    pytest.importorskip("adlfs", reason="pip install 'raysweep[az]'")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("npm install -g azurite")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [program, "--silent", "--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"]
    server = subprocess.Popen(
        [*line, "--blobHost", "127.0.0.1", "--blobPort", str(port)], stdout=subprocess.DEVNULL
    )
    try:
        deadline = time.monotonic() + 60
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.2)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv(
                "AZURE_STORAGE_CONNECTION_STRING",
                f"DefaultEndpointsProtocol=http;AccountName={_ACCOUNT};AccountKey={_KEY};"
                f"BlobEndpoint=http://127.0.0.1:{port}/{_ACCOUNT};",
            )
            system, _ = file_system("az://results")
            system.mkdir("results")
            yield RemotePath("az://results/sweeps")
    finally:
        server.kill()
        server.wait()
