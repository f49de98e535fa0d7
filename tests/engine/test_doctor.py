"""`raysweep doctor`: what a launch needs, and what is wrong with it."""

from __future__ import annotations

import json
import os
import shutil
import socket
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from helpers.object_store import anew, object_server
from raysweep.cli.app import run
from raysweep.engine import doctor
from raysweep.engine.doctor import Finding, _object_store, examine, healthy
from raysweep.models import gpu
from raysweep.remote import RemotePath


def findings(look: Iterator[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in look}


def test_a_good_machine_is_healthy_and_nothing_is_left_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert run(["doctor", "--storage", str(tmp_path / "a" / "b")]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.split()[1] for line in lines]
    assert list(dict.fromkeys(found)) == [
        *("python", "packages", "processor", "memory", "gpu", "kernels", "ray", "storage", "disk", "mlflow"),
    ]
    assert {line.split()[0] for line in lines} <= {"ok", "warn"}
    assert torch.__version__.partition("+")[0] in "\n".join(lines)
    assert list(tmp_path.iterdir()) == []


def test_an_address_where_nobody_is_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        monkeypatch.chdir(tmp_path)
        assert run(["doctor", "--address", f"127.0.0.1:{port}", "--json"]) == 4
    answer = json.loads(capsys.readouterr().out)
    assert answer["ok"] is False
    [ray] = [finding for finding in answer["findings"] if finding["name"] == "ray"]
    assert ray["state"] == "fail"
    assert "nothing listens there" in ray["found"]
    assert {finding["name"] for finding in answer["findings"]} >= {"storage", "mlflow"}


@pytest.mark.parametrize("storage", ["ftp://host/results", "/dev/null/results"])
def test_a_storage_that_is_none_fails(storage: str) -> None:
    found = findings(examine(storage=Path(storage) if "//" not in storage else storage))  # type: ignore[arg-type]
    assert found["storage"].state == "fail"
    assert not healthy(found.values())
    assert found["mlflow"].state == "ok"


def test_a_storage_that_cannot_be_written_fails_and_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor, "write_new", full)
    found = findings(doctor._storage(tmp_path))
    assert found["storage"].state == "fail"
    assert str(found["storage"]) == (
        f"fail  storage    {tmp_path}: No space left on device: "
        "records need rename, fsync, locks and new files in it; --storage names another folder"
    )


def test_a_file_system_without_exclusive_files_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "write_new", lambda path, content: path.write_bytes(content))
    assert findings(doctor._storage(tmp_path))["storage"].state == "fail"


def test_a_slow_or_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(100 << 30, 99 << 30, 1 << 30))
    monkeypatch.setattr(doctor, "_SLOW", 0.0)
    found = findings(doctor._storage(tmp_path))
    assert found["disk"].state == "warn"
    assert found["disk"].found == "1.0 GiB free of 100.0 GiB"
    assert found["storage"].state == "warn"
    assert "a durable record in" in found["storage"].found
    assert healthy(found.values())


def test_a_package_of_another_version_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor._installed
    monkeypatch.setattr(
        doctor, "requires", lambda name: ["numpy>=2", "mlflow<1", "none-such>=1", "x; extra == 'y'"]
    )
    monkeypatch.setattr(doctor, "_installed", lambda name: "9" if name == "raysweep" else installed(name))
    wrong = [finding for finding in doctor._versions() if finding.state == "fail"]
    assert [finding.found for finding in wrong] == [
        f"mlflow is {installed('mlflow')}, raysweep needs <1",
        "none-such is not installed, raysweep needs >=1",
    ]
    assert wrong[1].remedy == "pip install 'none-such>=1'"


def test_little_memory_and_a_cache_that_cannot_be_written_are_warnings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(doctor, "_available", lambda: 1 << 30)
    assert next(doctor._memory()).state == "warn"
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    [kernels] = doctor._kernels()
    assert kernels.state == "warn"
    assert "NUMBA_CACHE_DIR" in kernels.remedy


def test_a_server_of_mlflow_that_is_silent_is_a_warning() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        uri = f"http://127.0.0.1:{server.getsockname()[1]}"
        assert findings(doctor._mlflow(uri))["mlflow"].state == "warn"
        server.listen()
        assert findings(doctor._mlflow(uri))["mlflow"].state == "ok"
    assert "is not contacted" in findings(doctor._mlflow("postgresql://host/db"))["mlflow"].found


def test_an_installation_that_is_broken_does_not_hide_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> int:
        raise RuntimeError("no driver")

    monkeypatch.setattr(torch.cuda, "device_count", broken)
    found = findings(examine())
    assert found["gpu"] == Finding("gpu", "fail", "RuntimeError: no driver", "repair the installation")
    assert found["mlflow"].state == "ok"


@pytest.mark.parametrize(
    ("lacking", "told"),
    [("triton", "Triton is not"), ("compiler", "no C compiler"), ("headers", "headers"), (None, None)],
)
def test_what_the_kernels_of_a_gpu_lack_is_a_warning(
    lacking: str | None, told: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Python.h").touch()
    paths = {"include": str(tmp_path / "none" if lacking == "headers" else tmp_path)}
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(gpu, "find_spec", lambda name: None if lacking == "triton" else name)
    monkeypatch.setattr(
        gpu, "which", lambda name: name if name == "clang" and lacking != "compiler" else None
    )
    monkeypatch.setattr(gpu, "get_paths", lambda: paths)
    # Both answers are kept for the life of a process.
    monkeypatch.setattr(gpu, "missing", gpu.missing.__wrapped__)
    available = gpu.available.__wrapped__
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    card = SimpleNamespace(name="H100", total_memory=80 << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: card)
    fine, *others = doctor._gpus()
    assert (fine.state, fine.found) == ("ok", "H100, 80.0 GiB")
    assert [(one.state, told is not None and told in one.found) for one in others] == (
        [] if lacking is None else [("warn", True)]
    )
    assert available() == (lacking is None)


def test_an_object_store_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with object_server() as served:
        store = anew(served, tmp_path, monkeypatch)
        (fine,) = _object_store(store.root)
        assert fine.state == "ok"
        assert store.root.names() == []
        (bad,) = _object_store(RemotePath("s3://nowhere/results"))
        assert (bad.state, "bucket does not exist" in bad.found) == ("fail", True)
