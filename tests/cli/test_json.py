"""The JSON of commands: the fields that `raysweep/cli/README.md` tells, all of them and no others."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.json_output import check, documented
from raysweep.cli.app import run
from raysweep.sweep import Sweep
from raysweep.sweep.format import STORED

FIELDS = documented()
Printed = Callable[..., Any]


@pytest.fixture
def printed(finished: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Printed:
    """Run a command with `--json` and return what it prints."""
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(finished.storage))

    def call(*words: str, code: int = 0) -> Any:
        assert run([*words, "--json"]) == code
        return json.loads(capsys.readouterr().out)

    return call


def test_the_check_finds_what_it_looks_for() -> None:
    fields = {"a", "b[].c", "d.*.e"}
    good = {"a": {"any": 1}, "b": [{"c": 1}], "d": {"x": {"e": 1}}}
    check(good, fields)
    for bad in (
        {"a": 1},
        good | {"f": 1},
        good | {"b": [{}]},
        good | {"b": 1},
        good | {"d": {"x": {"f": 1}}},
    ):
        with pytest.raises(AssertionError):
            check(bad, fields)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("status", ["status"]),
        ("status NAME", ["status", "small"]),
        ("clean NAME", ["clean", "small"]),
        ("retry NAME", ["retry", "small"]),
        ("diff A B", ["diff", "seed 0", "seed 1"]),
        ("evaluate RUN@STEP", ["evaluate", "seed 0", "-e", "excess_loss.sentences=8"]),
        ("kinds", ["kinds"]),
        ("kinds KIND", ["kinds", "corpus"]),
        ("kinds KIND", ["kinds", "dyck"]),
        ("language show NAME", ["language", "show", "small", "--sentences", "8"]),
        ("paper", ["paper"]),
        ("doctor", ["doctor"]),
    ],
)
def test_of_a_finished_sweep(command: str, words: list[str], printed: Printed) -> None:
    check(printed(*words), FIELDS[command])


@pytest.mark.parametrize("words", [["plan"], ["launch", "--dry-run"]])
def test_of_a_plan(words: list[str], finished: Sweep, printed: Printed) -> None:
    prices = {"gpu_hours", "cpu_hours", "cpu_cost"}
    found = printed(*words, str(finished.path), "--set", "axes.seed=0..2")
    assert found["runs"]
    check(found, FIELDS["plan FILE"] - (prices if words[0] == "launch" else set()))


def test_of_a_file_and_of_its_mistakes(finished: Sweep, printed: Printed) -> None:
    check(printed("validate", str(finished.path)), FIELDS["validate FILE"])
    found = printed("validate", str(finished.path), "--set", "pretrain.stepz=3", code=2)
    check(found, FIELDS["validate of a file with mistakes"])


def test_of_logs(finished: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "small").mkdir()
    shutil.copy(finished.directory / STORED, tmp_path / "small")
    (tmp_path / "small" / "launch.log").write_text("2026-01-01 00:00:00,000 INFO raysweep.launch: launch\n")
    assert run(["logs", "small", "--json", "--storage", str(tmp_path)]) == 0
    [line] = capsys.readouterr().out.splitlines()
    check(json.loads(line), FIELDS["logs RUN"])


def test_of_time(printed: Printed) -> None:
    check(printed("status", "small", "--time"), FIELDS["status NAME --time"])
