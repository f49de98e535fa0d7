"""Reasons that name the change, and stored runs that the file no longer has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from helpers.json_output import check, documented
from raysweep.cli.app import run
from raysweep.sweep import load_sweep, make_plan
from raysweep.sweep.changes import Changes
from raysweep.sweep.stored import save_sweep, select

FILE = """\
name: small
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 8/2/1/16}
algorithm: {kind: adamw}
pretrain: {steps: 100, batch_size: 8, milestones: [50, 100]}
evaluate: {excess_loss: {sentences: 8}}
axes: {seed: [0, 1]}
"""


@pytest.fixture
def made(tmp_path: Path) -> Any:
    """Make the sweep with overrides; its runs are finished where that is asked for."""
    (tmp_path / "small.yaml").write_text(FILE, encoding="utf-8")

    def make(*overrides: str, finish: bool = False) -> Any:
        sweep = load_sweep(tmp_path / "small.yaml", overrides=overrides, storage=tmp_path / "results")
        if finish:
            save_sweep(sweep)
            for spec in sweep.runs:
                tiny.finish(sweep.ledger().run(spec), spec)
        return sweep

    return make


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("pretrain.batch_size=16", "pretrain.batch_size 8 → 16"),
        ("model.shape=16/2/1/32", "model.shape 8/2/1/16 → 16/2/1/32"),
        ("language.states=8", "language.states 4 → 8"),
        ("language.seed=5", "language.seed 0 → 5"),
        ("algorithm={kind: sgd, lr: 0.1}", "algorithm.kind adamw → sgd"),
        ("model={kind: lstm, shape: 8/1}", "model.kind encoder → lstm"),
        ("pretrain.mask=0.15", "pretrain.mask one → 0.15"),
    ],
)
def test_a_run_is_new_because_of_a_change(made: Any, override: str, reason: str) -> None:
    before = made(finish=True)
    plan = make_plan(made(override))
    assert [(found.state, found.reason) for found in plan.runs] == [("new", reason)] * 2
    assert [stray.run_id for stray in plan.strays] == sorted(spec.run_id for spec in before.runs)
    assert {(stray.step, stray.changes) for stray in plan.strays} == {(100, reason)}


def test_each_run_has_changed_since_its_own_counterpart(made: Any) -> None:
    made("axes.algorithm.lr=[1e-3, 3e-3]", finish=True)
    plan = make_plan(made("axes.algorithm.lr=[1e-3, 3e-3]", "pretrain.batch_size=32"))
    assert {found.reason for found in plan.runs} == {"pretrain.batch_size 8 → 32"}


def test_a_further_value_of_an_axis_is_no_change(made: Any) -> None:
    made(finish=True)
    plan = make_plan(made("axes.seed=[0, 1, 2]"))
    assert [found.reason for found in plan.runs] == ["", "", "not trained yet"]
    assert plan.strays == ()
    # Runs of another batch size are in the storage, and another seed of this one is nearer.
    made("pretrain.batch_size=16", finish=True)
    plan = make_plan(made("pretrain.batch_size=16", "axes.seed=[0, 1, 2]"))
    assert [found.reason for found in plan.runs] == ["", "", "not trained yet"]
    assert len(plan.strays) == 2


def test_many_changes_are_cut_short(made: Any) -> None:
    made(finish=True)
    settings = ("pretrain.batch_size=16", "pretrain.mask=0.15", "algorithm.lr=0.1", "model.dropout=0.5")
    plan = make_plan(made(*settings))
    assert plan.runs[0].reason.endswith(", 1 more")
    assert plan.runs[0].reason.count("→") == 3


def test_what_is_not_trained_differs_by_its_algorithm(made: Any) -> None:
    made("axes=null", "algorithm={kind: lookup_table}", finish=True)
    assert [stray.changes for stray in make_plan(made()).strays] == ["algorithm.kind lookup_table → adamw"]


def test_runs_that_only_leaves_out_are_those_of_the_file_too(made: Any) -> None:
    made(finish=True)
    strays = make_plan(select(made("pretrain.batch_size=16"), ["seed 1"])).strays
    assert [stray.changes for stray in strays] == ["pretrain.batch_size 8 → 16"] * 2


def test_only_hides_no_run_of_the_file(made: Any) -> None:
    made(finish=True)
    assert make_plan(select(made(), ["seed 1"])).strays == ()
    [found] = make_plan(select(select(made("axes.seed=[0, 1, 2]"), ["*seed*"]), ["seed 2"])).runs
    assert found.reason == "not trained yet"


def test_runs_that_the_file_has_no_longer_are_listed(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is used again with another language hides runs: they are said to be there."""
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(tmp_path / "results"))
    monkeypatch.setenv("COLUMNS", "160")
    gone = sorted(spec.run_id for spec in made(finish=True).runs)
    file = ["--set", "language.states=8", "--set", "language.seed=1"]
    for command in (["plan"], ["launch", "--dry-run"]):
        assert run([command[0], str(tmp_path / "small.yaml"), *command[1:], *file]) == 0
        said = capsys.readouterr().out
        assert "2 runs in the storage are not in the file, and in no table or report:" in said
        for run_id in gone:
            assert f"{run_id}  to step 100; the file has language.seed 0 → 1, language.states 4 → 8" in said
        assert run([command[0], str(tmp_path / "small.yaml"), *command[1:], *file, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        prices = set() if command[0] == "plan" else {"gpu_hours", "cpu_hours", "cpu_cost"}
        check(found, documented()["plan FILE"] - prices)
        assert [stray["run_id"] for stray in found["no_longer_in_file"]] == gone
    # After the launch of the new file, the status says it, too.
    save_sweep(made("language.states=8", "language.seed=1"))
    assert run(["status", "small"]) == 0
    said = capsys.readouterr().out
    assert all(f"{run_id}  to step 100; the latest launch has" in said for run_id in gone)
    assert run(["status", "small", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check(found, documented()["status NAME"])
    assert [(stray["run_id"], stray["step"]) for stray in found["no_longer_in_file"]] == [
        (run_id, 100) for run_id in gone
    ]


def test_the_status_of_a_launch_with_overrides_says_how_to_see_the_other_runs(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(tmp_path / "results"))
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.chdir(tmp_path)
    other = made(finish=True).runs[1].run_id
    save_sweep(made("axes.seed=[0]"))
    assert run(["status", "small"]) == 0
    shown, told, stray = capsys.readouterr().out.rpartition(
        "1 run in the storage is not in the latest launch"
    )
    assert other not in shown
    [line, stray] = (told + stray).splitlines()
    assert line.endswith("; `raysweep status small.yaml` shows those of its file:")
    assert stray == f"  {other}  to step 100; the latest launch has seed 1 → 0"
    assert run(["status", "small.yaml"]) == 0
    shown = capsys.readouterr().out
    assert other in shown
    assert "in the storage" not in shown


def test_runs_of_another_file_of_the_name_are_counted_alone(
    made: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(tmp_path / "results"))
    made(finish=True)
    other = tmp_path / "other.yaml"
    other.write_text("extends: small.yaml\nlanguage: {states: 8}\naxes: {seed: [0]}\n", encoding="utf-8")
    second = load_sweep(other, storage=tmp_path / "results")
    told = "other runs in the storage belong to sweep files of the same name: small.yaml (2)"
    # Before its launch and after.
    for _ in range(2):
        plan = make_plan(second)
        assert (plan.strays, plan.elsewhere) == ((), {"small.yaml": 2})
        assert plan.lines()[-1].strip() == told
        assert plan.runs[0].reason == "not trained yet"
        save_sweep(select(second, None))
    assert run(["status", "small"]) == 0
    assert told in capsys.readouterr().out
    assert run(["status", "small", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["no_longer_in_file"], found["in_other_files"]) == ([], {"small.yaml": 2})
    # What a file asks for is what it asked for last: the runs of a former version are in no file.
    for spec in second.runs:
        tiny.finish(second.ledger().run(spec), spec)
    save_sweep(made("axes.seed=[0]"))
    plan = make_plan(second)
    assert (len(plan.strays), plan.elsewhere) == (1, {"small.yaml": 1})
    # A selection of runs asks for all of its file.
    save_sweep(select(made(), ["seed 1"]))
    assert make_plan(second).elsewhere == {"small.yaml": 2}


def test_a_damaged_note_on_a_file_says_nothing(made: Any) -> None:
    sweep = made(finish=True)
    for name, text in (("a.yaml", "torn"), ("b.yaml", "[]"), ("c.yaml", '{"runs": 3}')):
        (sweep.directory / "files" / f"{name}.json").write_text(text)
    plan = make_plan(made("pretrain.batch_size=16"))
    assert (len(plan.strays), plan.elsewhere) == (2, {})


def test_lines_about_many_runs_are_cut_short(made: Any) -> None:
    made("axes.seed=[0, 1, 2, 3, 4, 5, 6, 7]", finish=True)
    lines = make_plan(made("language.states=8")).lines(limit=3)
    [at] = [k for k, line in enumerate(lines) if "8 runs in the storage are not in the file" in line]
    assert len(lines) == at + 5
    assert lines[-1].strip() == "... and 5 more runs"


def test_what_is_no_run_is_not_listed(made: Any) -> None:
    sweep = made(finish=True)
    for name, content in (("a", None), ("b", "torn"), ("c", '{"content": 1, "language": 2}'), ("d", "[]")):
        folder = sweep.ledger().runs_directory / name
        folder.mkdir()
        if content is not None:
            (folder / "run.json").write_text(content)
    assert Changes(sweep.ledger(), sweep).strays() == ()
