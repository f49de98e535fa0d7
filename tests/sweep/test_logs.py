"""Logs are read as they grow, in the order of their times, whatever becomes of their files."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from raysweep.sweep import logs
from raysweep.sweep.logs import BoundedLog, Logs, logs_of


def line(second: int, text: str) -> str:
    return f"2026-01-01 00:00:{second:02d},000 INFO raysweep: {text}\n"


def texts(found: Logs) -> list[tuple[str, str]]:
    return [(entry.log, entry.text.partition(": ")[2]) for entry in found.new()]


def test_entries_of_several_logs_are_in_the_order_of_their_times(tmp_path: Path) -> None:
    (tmp_path / "trial.log").write_text(line(1, "a\nTraceback:\n  b") + line(4, "d"))
    (tmp_path / "train-0.log").write_text(line(2, "c") + line(5, "e"))
    assert texts(logs_of(tmp_path)) == [
        ("trial", "a\nTraceback:\n  b"),
        ("train-0", "c"),
        ("trial", "d"),
        ("train-0", "e"),
    ]


def test_only_what_is_new_and_whole_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trial.log"
    followed = logs_of(tmp_path)
    assert followed.new() == []
    path.write_text(line(1, "a") + line(2, "unfinished")[:-3])
    assert texts(followed) == [("trial", "a")]
    with path.open("a") as file:
        file.write("ed\n" + line(3, "b"))
    assert texts(followed) == [("trial", "unfinished"), ("trial", "b")]
    assert followed.new() == []
    (tmp_path / "train-0.log").write_text(line(2, "another"))
    assert texts(followed) == [("train-0", "another")]


def test_a_log_is_bounded_and_loses_nothing_to_who_follows_it(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "trial.log"
    log = BoundedLog(path)
    followed, seen = logs_of(path.parent), []
    for k in range(40_000):
        log.handle(logging.LogRecord("raysweep", logging.INFO, "", 0, "line %d", (k,), None))
        if k % 1000 == 0:
            seen += [entry.text.rpartition("line ")[2] for entry in followed.new()]
    seen += [entry.text.rpartition("line ")[2] for entry in followed.new()]
    log.close()
    assert seen == [str(k) for k in range(40_000)]
    assert sorted(p.name for p in path.parent.iterdir()) == ["trial.log", "trial.log.1"]
    assert all(p.stat().st_size <= logs.MOST_BYTES for p in path.parent.iterdir())
    # Who begins to read now gets the newest entries, of both files.
    late = [entry.text.rpartition("line ")[2] for entry in logs_of(path.parent).new()]
    assert len(late) > 10_000
    assert late == seen[-len(late) :]


def test_a_log_that_is_being_moved_aside_is_not_read_twice(tmp_path: Path) -> None:
    path = tmp_path / "trial.log"
    followed = Logs(lambda: [path])
    path.write_text(line(1, "a") + line(2, "b"))
    assert texts(followed) == [("trial", "a"), ("trial", "b")]
    with path.open("a") as file:
        file.write(line(3, "c"))
    path.rename(tmp_path / "trial.log.1")
    assert texts(followed) == []
    path.write_text(line(4, "d"))
    assert texts(followed) == [("trial", "c"), ("trial", "d")]


def test_a_log_that_cannot_be_written_is_no_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = BoundedLog(tmp_path / "trial.log")
    (tmp_path / "trial.log").mkdir()
    log.handle(logging.LogRecord("raysweep", logging.INFO, "", 0, "a line", None, None))
    # A handler of Python's own prints the error with its stack.
    assert capsys.readouterr() == ("", "")
    assert list((tmp_path / "trial.log").iterdir()) == []
