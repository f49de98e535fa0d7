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


class HadoopServer:
    """A name node and a data node, whose files are in `folder`."""

    def __init__(self, program: str, folder: Path) -> None:
        self._program, self._folder = program, folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        self.root = RemotePath(f"hdfs://{address}/results")
        self._settings(address)
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.run("namenode", "-format", "-nonInteractive")

    def _settings(self, address: str) -> None:
        anywhere = "127.0.0.1:0"
        (self._folder / "settings").mkdir()
        files: dict[str, Mapping[str, str]] = {
            "core-site.xml": {
                "fs.defaultFS": f"hdfs://{address}",
                "hadoop.tmp.dir": str(self._folder / "data"),
            },
            "hdfs-site.xml": {
                "dfs.replication": "1",
                "dfs.permissions.enabled": "false",
                "dfs.webhdfs.enabled": "false",
                # After a start the name node lets nobody write until this time (ms) is over, too.
                "dfs.namenode.safemode.extension": "3000",
                "dfs.namenode.http-address": anywhere,
                "dfs.datanode.address": anywhere,
                "dfs.datanode.ipc.address": anywhere,
                "dfs.datanode.http.address": anywhere,
            },
        }
        for name, values in files.items():
            properties = (
                f"<property><name>{name}</name><value>{value}</value></property>"
                for name, value in values.items()
            )
            text = f"<configuration>{''.join(properties)}</configuration>"
            (self._folder / "settings" / name).write_text(text)

    def _started(self, *line: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "HADOOP_CONF_DIR": str(self._folder / "settings")}
        with open(self._folder / "log", "ab") as log:
            return subprocess.Popen([self._program, *line], env=environment, stdout=log, stderr=log)

    def run(self, *line: str) -> None:
        """Run a command of `hdfs`."""
        assert self._started(*line).wait() == 0

    def start(self, node: str) -> None:
        """Start the `namenode` or the `datanode`."""
        self._nodes[node] = self._started(node)

    def kill(self, node: str) -> None:
        """Kill a node."""
        process = self._nodes.pop(node)
        process.kill()
        process.wait()

    def wait(self) -> None:
        """Return once files can be written."""
        deadline = time.monotonic() + 60
        while True:
            assert all(node.poll() is None for node in self._nodes.values())
            try:
                (self.root / "begun").write_bytes(b"at work")
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.5)
        (self.root / "begun").unlink()

    def end(self) -> None:
        """Kill what runs."""
        for node in list(self._nodes):
            self.kill(node)


@contextmanager
def hadoop_server(folder: Path) -> Iterator[HadoopServer]:
    """Serve an empty file system until the end.

    Skips where Hadoop (`hdfs` of its distribution) or the extra `hdfs` is not installed.
    """
    pytest.importorskip("hdfs_native", reason="pip install 'raysweep[hdfs]'")
    program = shutil.which("hdfs")
    if program is None:
        pytest.skip("no `hdfs` of a Hadoop distribution")
    server = HadoopServer(program, folder)
    try:
        server.start("namenode")
        server.start("datanode")
        server.wait()
        yield server
    finally:
        server.end()
