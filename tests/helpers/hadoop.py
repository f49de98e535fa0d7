"""A real Hadoop distributed file system on this machine, where it is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from raysweep.remote import RemotePath


@contextmanager
def hadoop_server(folder: Path) -> Iterator[RemotePath]:
    """Serve an empty file system, whose files are in `folder`, until the end and yield a root in it.

    Skips where Hadoop (`hdfs` of its distribution) or the extra `hdfs` is not installed.
    """
    pytest.importorskip("hdfs_native", reason="pip install 'raysweep[hdfs]'")
    program = shutil.which("hdfs")
    if program is None:
        pytest.skip("no `hdfs` of a Hadoop distribution")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    settings = folder / "settings"
    settings.mkdir()
    url, anywhere = f"hdfs://{address}", "127.0.0.1:0"
    _settings(settings / "core-site.xml", {"fs.defaultFS": url, "hadoop.tmp.dir": str(folder / "data")})
    _settings(
        settings / "hdfs-site.xml",
        {
            "dfs.replication": "1",
            "dfs.permissions.enabled": "false",
            "dfs.webhdfs.enabled": "false",
            "dfs.namenode.http-address": anywhere,
            "dfs.datanode.address": anywhere,
            "dfs.datanode.ipc.address": anywhere,
            "dfs.datanode.http.address": anywhere,
        },
    )
    environment = {**os.environ, "HADOOP_CONF_DIR": str(settings)}
    with open(folder / "log", "wb") as log:

        def started(*line: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([program, *line], env=environment, stdout=log, stderr=log)

        assert started("namenode", "-format", "-nonInteractive").wait() == 0
        servers = [started("namenode"), started("datanode")]
        try:
            root = RemotePath(f"{url}/results")
            deadline = time.monotonic() + 60
            while True:
                assert all(server.poll() is None for server in servers)
                try:
                    (root / "begun").write_bytes(b"at work")
                    break
                except OSError:
                    assert time.monotonic() < deadline
                    time.sleep(0.5)
            (root / "begun").unlink()
            yield root
        finally:
            for server in servers:
                server.kill()
                server.wait()


def _settings(file: Path, values: Mapping[str, str]) -> None:
    properties = "".join(
        f"<property><name>{name}</name><value>{value}</value></property>" for name, value in values.items()
    )
    file.write_text(f"<configuration>{properties}</configuration>")
