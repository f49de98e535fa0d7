"""Files are whole or absent, whatever is killed, full or done twice."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.processes import forked
from raysweep import files
from raysweep.files import move_aside, names, rename, replacing, write_atomic, write_new


@pytest.mark.parametrize("delay", [0.0, 0.001, 0.003, 0.01, 0.03, 0.1])
def test_a_writer_killed_at_any_moment_leaves_whole_files(tmp_path: Path, delay: float) -> None:
    def write(ready: Callable[[], None]) -> None:
        for k in itertools.count():
            write_atomic(tmp_path / f"r{k % 3}.json", str(k % 10).encode() * 100_000)
            if k == 2:
                ready()

    with forked(write):
        time.sleep(delay)
    found = [path.read_bytes() for path in sorted(tmp_path.glob("r*.json"))]
    assert [(len(content), len(set(content))) for content in found] == [(100_000, 1)] * 3


def test_readers_see_whole_files_while_they_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "f"
    write_atomic(path, b"a" * 50_000)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            for letter in (b"a", b"b"):
                write_atomic(path, letter * 50_000)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        seen: set[int] = set()
        deadline = time.monotonic() + 60
        # At least 300 looks, and on until both contents were there to be seen.
        for look in itertools.count(1):
            content = path.read_bytes()
            assert len(content) == 50_000
            assert len(set(content)) == 1
            seen.add(content[0])
            if look >= 300 and len(seen) == 2:
                break
            assert time.monotonic() < deadline
    finally:
        stop.set()
        writer.join()


def test_a_write_makes_its_folder_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "f"
    write_atomic(path, b"old")
    write_atomic(path, b"new")
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["f"]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_refused_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_atomic(tmp_path / "f", b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(OSError, match="No space left"):
        write_atomic(tmp_path / "f", b"new")
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_an_interrupted_replacement_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    write_atomic(tmp_path / "f", b"old")

    def interrupted() -> None:
        with replacing(tmp_path / "f") as fresh:
            fresh.write_bytes(b"half")
            assert names(tmp_path) == ["f"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == ["f"]
    assert (tmp_path / "f").read_bytes() == b"old"


def test_content_reaches_the_disk_before_its_name_and_then_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    sync, replace = os.fsync, os.replace

    def noted_sync(handle: int) -> None:
        done.append("folder" if os.path.isdir(f"/proc/self/fd/{handle}") else "content")
        sync(handle)

    def noted_replace(source: Path, target: Path) -> None:
        done.append("name")
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", noted_sync)
    monkeypatch.setattr(files.os, "replace", noted_replace)
    write_atomic(tmp_path / "f", b"x")
    assert done == ["content", "name", "folder"]
    done.clear()
    write_atomic(tmp_path / "new" / "f", b"x")
    assert done == ["folder", "content", "name", "folder"]
    done.clear()
    rename(tmp_path / "f", tmp_path / "new" / "g")
    assert done == ["name", "folder", "folder"]


def test_a_new_file_does_not_replace_one(tmp_path: Path) -> None:
    write_new(tmp_path / "f", b"old")
    with pytest.raises(FileExistsError):
        write_new(tmp_path / "f", b"new")
    assert (tmp_path / "f").read_bytes() == b"old"


def test_files_and_folders_of_one_name_are_moved_aside_next_to_each_other(tmp_path: Path) -> None:
    aside = tmp_path / "quarantine"
    moved = []
    for content in (b"1", b"2"):
        write_atomic(tmp_path / "f" / "inner", content)
        moved.append(move_aside(tmp_path / "f", aside))
        assert not (tmp_path / "f").exists()
    assert sorted(path.name for path in moved if path) == names(aside)
    assert [(path / "inner").read_bytes() for path in moved if path] == [b"1", b"2"]
    assert move_aside(tmp_path / "f", aside) is None


def test_names_are_those_of_finished_files(tmp_path: Path) -> None:
    (tmp_path / "b").touch()
    (tmp_path / "a").mkdir()
    (tmp_path / f"{files.TEMPORARY}c-1-aa").touch()
    assert names(tmp_path) == ["a", "b"]
    assert names(tmp_path / "b") == names(tmp_path / "none") == []
