"""`raysweep bench` from the command line, in processes of its own, on small sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from raysweep.bench import suites
from raysweep.bench import table as tables
from raysweep.bench.process import call
from raysweep.bench.record import Record, load, save
from raysweep.bench.table import written
from raysweep.cli.app import run
from raysweep.errors import RunFailedError


def test_quick_pcfg(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "record.json"
    only = ["--only", "pcfg-layered", "--only", "pcfg-dense", "--only", "pcfg-sampling"]
    assert run(["bench", "exact", "--quick", *only, "--output", str(file)]) == 0
    record = load(file)
    assert (record.quick, record.environment.threads) == (True, 1)
    assert [case.key for case in record.cases] == ["pcfg-layered", "pcfg-dense", "pcfg-sampling"]
    rows = {(case.key, row.peer): row for case in record.cases for row in case.comparisons}
    for row in rows.values():
        assert row.status == "equal" or (row.status == "absent" and row.reason)
        assert (row.cpu_ratio is None) == (row.status == "absent")
    assert rows["pcfg-layered", "the paper's inside pass"].status == "equal"
    assert rows["pcfg-layered", "numpy inside–outside"].status == "equal"
    assert rows["pcfg-dense", "numpy inside–outside"].status == "equal"
    out, err = capfd.readouterr()
    assert "pcfg-layered  PCFG, all exact conditionals" in out
    # Equality comes first.
    assert err.index("numpy inside–outside: equal") < err.index("pcfg-layered: timed")


def test_quick_million(capfd: pytest.CaptureFixture[str]) -> None:
    request = {"sentences": 5000, "threads": 1}
    found: dict[str, Any] = json.loads(call("raysweep.bench.exact.million", request, threads=1))
    assert found["cpu_seconds"] > 0
    assert 0 < found["peak_gib"] < 8
    assert sum(found["lengths"]) == 5000
    assert sum(found["words"]) == sum(n * count for n, count in enumerate(found["lengths"]))
    assert 0 < found["standard_error"] < found["entropy"]


def test_a_process_that_fails_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RunFailedError, match=r"bench: the process of raysweep\.nothing ended with code 1"):
        call("raysweep.nothing", {}, threads=1)


def test_what_is_not_equal_ends_with_code_3(
    record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suites, "measure", lambda *given, **more: record)
    assert run(["bench", "exact", "--json"]) == 3
    out, err = capsys.readouterr()
    assert json.loads(out) == record.encode()
    assert err == "raysweep: bench exact: not equal to raysweep: first: wrong\n"


def test_a_strict_run_needs_every_peer(
    record: Record, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *others = record.cases
    rows = tuple(row for row in first.comparisons if row.status != "failed")
    equal = record.model_copy(update={"cases": (first.model_copy(update={"comparisons": rows}), *others)})
    monkeypatch.setattr(suites, "measure", lambda *given, **more: equal)
    assert run(["bench", "exact", "--json"]) == 0
    assert run(["bench", "exact", "--json", "--strict"]) == 3
    said = "raysweep: bench exact: absent: third; first: gone; the table says why\n"
    assert capsys.readouterr().err == said


def test_usage_is_checked_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(*given: Any, **more: Any) -> bytes:
        raise AssertionError("ran")

    monkeypatch.setattr(suites, "call", call)
    assert run(["bench", "exact", "--only", "nothing"]) == 2
    assert "--only: bench exact has no case 'nothing'" in capsys.readouterr().err
    assert run(["bench", "exact", "--output", str(tmp_path / "none" / "record.json")]) == 2
    assert "there is no folder" in capsys.readouterr().err
    assert run(["bench", "exact", "--device", "cuda"]) == 2
    assert "--device cuda: bench exact has no case there" in capsys.readouterr().err


def test_table(
    record: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, text = tmp_path / "record.json", tmp_path / "text.md"
    save(record, file)
    assert run(["bench", "table", str(file)]) == 0
    assert capsys.readouterr().out.startswith("| work | raysweep |")
    text.write_text("<!-- bench:exact --><!-- /bench:exact -->")
    monkeypatch.setattr(tables, "README", text)
    assert run(["bench", "table", str(file), "--write"]) == 0
    assert text.read_text() == written("<!-- bench:exact --><!-- /bench:exact -->", record)
    other = tmp_path / "other.md"
    other.write_text("<!-- bench:exact --><!-- /bench:exact -->")
    assert run(["bench", "table", str(file), "--into", str(other)]) == 0
    assert other.read_text() == text.read_text()
    assert run(["bench", "table", "--suite", "nothing"]) == 2
    assert "--suite: there is no record of 'nothing'" in capsys.readouterr().err
