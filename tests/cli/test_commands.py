"""Messages of the commands on storage, outputs, tracking and plans; nothing here starts Ray."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from helpers.json_output import check, documented
from raysweep.cli import app
from raysweep.cli.app import run
from raysweep.cli.results import print_summary
from raysweep.errors import RunFailedError
from raysweep.report.verdict import Verdict
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.stored import load_stored, save_sweep, select
from raysweep.sweep.tidy import FIXED

FILE = """\
name: small
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 60, batch_size: 16, milestones: [20, 60]}
evaluate: {excess_loss: {sentences: 64}}
axes: {seed: [0, 1]}
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAYSWEEP_STORAGE", "MLFLOW_TRACKING_URI", "RAYSWEEP_TRACEBACK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "our sweep.yaml"
    path.write_text(FILE)
    return path


class Engine:
    """In the place of `raysweep.engine.launch`: stores the sweep and lets the runs it works on fail."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def __call__(self, sweep: Sweep, **given: Any) -> Any:
        from raysweep.sweep.stored import select
        from raysweep.sweep.tidy import tidy

        self.given = given
        save_sweep(sweep)
        for spec in select(sweep, given["only"]).runs:
            sweep.ledger().run(spec).record_failure("no good", error=RunFailedError.__name__)
        failures = {
            spec.run_id: found[-1]
            for spec in select(sweep, given["only"]).runs
            if (found := sweep.ledger().open(spec.run_id).failures())
        }
        return SimpleNamespace(
            sweep=sweep,
            failures=failures,
            unfinished={},
            worked_on=tuple(failures),
            tracked=True,
            to_frame=lambda: tidy(sweep.ledger(), sweep),
        )


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    import raysweep.engine

    fake = Engine()
    monkeypatch.setattr(raysweep.engine, "launch", fake, raising=False)
    return fake


def test_a_part_is_worked_on_and_the_whole_is_stored_and_reported(
    file: Path, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", str(file), "--only", "*-s1-*"]) == 3
    assert engine.given["only"] == ["*-s1-*"]
    stored = load_stored(tmp_path / "results" / "small")
    assert [spec.seed for spec in stored.runs] == [0, 1]
    assert "0 of 2" in (stored.directory / "report.html").read_text()
    assert stored.runs[0].run_id not in capsys.readouterr().err
    assert run(["status", "small", "--json"]) == 0


def test_status_says_what_was_measured_in_a_slower_way(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results")
    save_sweep(sweep)
    notes = {"method": "vmap", "reason": "a Conv is unknown"}
    for spec, said in zip(sweep.runs, (notes, {"method": "ghost norms"}), strict=True):
        [evaluation] = spec.evaluations.values()
        sweep.ledger().run(spec).record_evaluation(20, evaluation, [], seconds=1.0, notes=said)
    expected = "excess_loss was measured by vmap: a Conv is unknown (1 of 2 checkpoints)"
    assert run(["status", "small"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "measured" in line] == [
        f"note: {expected}"
    ]
    assert run(["status", "small", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == [expected]


def test_a_pattern_without_a_run_is_said_before_anything_is_made(
    file: Path, engine: Engine, tmp_path: Path
) -> None:
    assert run(["launch", str(file), "--only", "nothing"]) == 2
    assert engine.given == {}
    assert not (tmp_path / "results").exists()


def test_the_command_that_tries_again_can_be_pasted(
    file: Path, engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--set", "pretrain.batch_size=8", "--storage", str(tmp_path / "our results")]
    assert run(["launch", str(file), *options]) == 3
    printed = capsys.readouterr()
    [line] = [line for line in printed.err.splitlines() if "--retry-failed" in line and "raysweep" in line]
    words = shlex.split(line[line.index("raysweep launch") :])
    assert words == ["raysweep", "launch", str(file), *options, "--retry-failed"]
    assert run([*words[1:], "--dry-run"]) == 0
    assert "2 new" in capsys.readouterr().out
    [line] = [line for line in printed.out.splitlines() if line.startswith("MLflow: ")]
    assert shlex.split(line)[1:] == ["raysweep", "ui", "small", "--storage", str(tmp_path / "our results")]


def test_a_launch_prints_the_fields_that_are_documented(
    file: Path, engine: Engine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", str(file), "--json"]) == 3
    check(json.loads(capsys.readouterr().out), documented()["launch FILE"])


def test_the_default_storage_is_not_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def said(**options: Any) -> str:
        print_summary(load_sweep(file, **options), pd.DataFrame(columns=FIXED), Path("r.html"), [])
        return capsys.readouterr().out

    assert "raysweep ui small\n" in said()
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(tmp_path / "there"))
    assert "raysweep ui small\n" in said()
    assert f"raysweep ui small --storage {tmp_path / 'results'}\n" in said(storage="results")
    monkeypatch.setenv("RAYSWEEP_STORAGE", "s3://bucket")
    assert f"raysweep ui small --storage {tmp_path / 'results'}\n" in said(storage="results")


def test_a_verdict_is_one_line_in_a_pipe(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sentence = "Task A: at equal loss, flatter goes with better: not enough data " + 10 * "(a reason) "
    frame = pd.DataFrame(columns=FIXED)
    print_summary(
        load_sweep(file), frame, Path("r.html"), [cast(Verdict, SimpleNamespace(sentence=sentence))]
    )
    assert sentence in capsys.readouterr().out.splitlines()


def test_dry_run_and_plan_honour_retry_failed(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = load_sweep(file)
    sweep.ledger().run(sweep.runs[0]).record_failure("no good", error="RunFailedError")
    for command in (["launch", "--dry-run"], ["plan"]):
        assert run([*command, str(file)]) == 0
        assert "1 failed" in capsys.readouterr().out
        assert run([*command, str(file), "--retry-failed"]) == 0
        said = capsys.readouterr().out
        assert "2 new" in said
        assert "1 failed" not in said
    assert sweep.ledger().open(sweep.runs[0].run_id).failures()  # nothing was changed


def test_the_time_of_a_plan_is_for_this_machine_unless_the_sweep_says_otherwise(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from raysweep.sweep import planner

    sweep = load_sweep(file)
    timed = {spec.run_id: 10.0 for spec in sweep.runs}
    monkeypatch.setattr(planner, "measure", lambda *_: timed)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert run(["plan", str(file)]) == 0
    said = capsys.readouterr().out
    # 60 steps of 10 seconds for each of the two runs, and what is beside training.
    assert _minutes(said) == (12, 17)
    # There is room for three runs, and there are two.
    assert "for this machine, with 3 CPUs and 2 runs at once" in said
    wide = ["--set", "resources.workers=2", "--set", "resources.per_worker={CPU: 2}"]
    assert run(["plan", str(file), *wide]) == 0
    said = capsys.readouterr().out
    low, high = _minutes(said)
    assert 20 <= low < high <= 40
    assert "1 run at once" in said
    assert run(["plan", str(file), "--set", "resources.max_concurrent=2"]) == 0
    assert "this machine" not in capsys.readouterr().out
    assert run(["plan", str(file), "--set", "resources.per_worker={GPU: 1}"]) == 0
    said = capsys.readouterr().out
    assert "for this machine" not in said
    assert "20 min of work" in said


def _minutes(plan: str) -> tuple[int, int]:
    """Return the ends of the estimate of a plan."""
    found = re.search(r"estimate: (\d+) min to (\d+) min, ", plan)
    assert found is not None, plan
    return int(found[1]), int(found[2])


def test_storage_that_cannot_be_made(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", str(file), "--storage", "/proc/nope"]) == 4
    error = capsys.readouterr().err
    assert error.startswith("raysweep: storage /proc/nope/small cannot be made")
    assert "--storage" in error
    assert "Traceback" not in error
    taken = tmp_path / "taken"
    taken.write_text("a file")
    assert run(["launch", str(file), "--storage", str(taken)]) == 2
    error = capsys.readouterr().err
    assert error == f"raysweep: storage '{taken}': {taken} is no folder; --storage names another one\n"


def test_a_disk_that_fails_later_is_storage_and_a_defect_stays_one(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(error: OSError) -> None:
        def plan(*_: Any, **__: Any) -> None:
            raise error

        monkeypatch.setattr("raysweep.sweep.make_plan", plan)

    fail(OSError(28, "No space left on device"))
    assert run(["plan", str(file)]) == 4
    assert capsys.readouterr().err == (
        "raysweep: storage: No space left on device; make room and run this again\n"
    )
    fail(PermissionError(13, "Permission denied", "/shared/x.json"))
    assert run(["plan", str(file)]) == 4
    assert capsys.readouterr().err == (
        "raysweep: storage: /shared/x.json: Permission denied; make it writable, or name another place "
        "(--storage, or --output where there is one)\n"
    )
    fail(FileNotFoundError(2, "No such file or directory", "forgotten"))
    assert run(["plan", str(file)]) == 1
    assert "this is a defect" in capsys.readouterr().err
    assert 2 not in app.TROUBLE


def test_words_that_have_no_place_do_not_change_the_exit_code(file: Path) -> None:
    # Each write to this device fails as on a full disk.
    with open("/dev/full", "w") as full:
        for command, code in ((["plan", f"{file}.absent"], 2), (["plan", "--nonsense"], 2)):
            program = (sys.executable, "-m", "raysweep.cli", *command)
            assert subprocess.run(program, stderr=full, timeout=120, check=False).returncode == code


def test_the_end_of_a_file_is_no_interruption(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def plan(*_: Any, **__: Any) -> None:
        raise EOFError("Ran out of input")

    monkeypatch.setattr("raysweep.sweep.make_plan", plan)
    assert run(["plan", str(file)]) == 4
    assert "raysweep: a file has ended too early" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error_and_another_broken_pipe_is_one(file: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for command in (["plan", str(file)], ["plan", "--help"]):
        program = (sys.executable, "-m", "raysweep.cli", *command)
        left = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, timeout=120, check=False)
        assert (left.returncode, left.stderr) == (0, b"")
    os.close(writer)
    code = (
        "import sys, raysweep.cli.app as app, raysweep.sweep as sweep\n"
        "def plan(*_, **__): raise BrokenPipeError(32, 'Broken pipe')\n"
        "sweep.make_plan = plan\n"
        "sys.exit(app.run(sys.argv[1:]))"
    )
    other = subprocess.run(
        (sys.executable, "-c", code, "plan", str(file)), capture_output=True, timeout=120, check=False
    )
    assert other.returncode == 1
    assert b"this is a defect" in other.stderr


@pytest.mark.parametrize("command", ["export", "report"])
def test_outputs_that_cannot_be_written(
    command: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ending = "csv" if command == "export" else "html"
    assert run([command, str(file), "-o", f"{tmp_path}/absent/x.{ending}"]) == 2
    assert f"there is no folder {tmp_path}/absent" in capsys.readouterr().err
    assert run([command, str(file), "-o", f"/proc/x.{ending}"]) == 2
    error = capsys.readouterr().err
    assert f"--output /proc/x.{ending}: cannot be written: No such file or directory" in error
    (tmp_path / f"folder.{ending}").mkdir()
    assert run([command, str(file), "-o", f"folder.{ending}"]) == 2
    assert "is a folder" in capsys.readouterr().err
    assert run([command, str(file), "-o", f"x.{ending}"]) == 0
    assert (tmp_path / f"x.{ending}").stat().st_size > 0


def test_a_table_may_be_printed(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["export", str(file), "-o", "table.csv"]) == 0
    capsys.readouterr()
    for output in (["-o", "-"], []):
        assert run(["export", str(file), *output]) == 0
        assert capsys.readouterr().out == (tmp_path / "table.csv").read_text()


@pytest.mark.parametrize("uri", ["sqlite:///rel.db", "./mlruns", "file:///x"])
def test_a_tracking_uri_that_cannot_work_is_refused_before_anything_is_made(
    uri: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["launch", str(file), "--tracking-uri", uri]) == 2
    assert capsys.readouterr().err.startswith(f"raysweep: tracking_uri: '{uri}'")
    assert not (tmp_path / "results").exists()


def test_status_prints_ids_that_other_commands_take(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = load_sweep(file, storage=tmp_path / "results")
    save_sweep(sweep)
    for width in ("60", "160"):
        monkeypatch.setenv("COLUMNS", width)
        assert run(["status", "small"]) == 0
        heading, *lines = capsys.readouterr().out.splitlines()
        at = heading.index("id ")
        assert len(lines) == 2
        for line, spec in zip(lines, sweep.runs, strict=True):
            shown = line[at:].split()[0]
            assert (shown == spec.run_id) == (width == "160")
            assert [found.run_id for found in select(sweep, [shown]).runs] == [spec.run_id]
    assert run(["status", "small", "--json"]) == 0
    assert [found["name"] for found in json.loads(capsys.readouterr().out)["runs"]] == ["seed 0", "seed 1"]


def test_a_mistyped_sweep_is_suggested(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_sweep(load_sweep(file, storage=tmp_path / "results"))
    assert run(["status", "smal"]) == 2
    assert "— did you mean 'small'? (there: small)" in capsys.readouterr().err


def test_overrides_need_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_sweep(load_sweep(file))
    assert run(["plan", "small", "--set", "pretrain.steps=80"]) == 2
    assert "name its file" in capsys.readouterr().err


def test_a_mistyped_override_of_a_language(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["language", "show", str(file), "--set", "langauge.states=9"]) == 2
    assert "did you mean 'language'" in capsys.readouterr().err


def test_help_says_what_is_done_where_an_option_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    for command, told in (
        (["launch"], "RAY_ADDRESS, else Ray on this machine"),
        (["report"], "report.html in the sweep's folder"),
        (["language", "show"], "all; 16 where a conditional costs seconds"),
        (["language", "generate"], "as many as there is room for"),
    ):
        assert run([*command, "--help"]) == 0
        assert f"[default: ({told})]" in capsys.readouterr().out
