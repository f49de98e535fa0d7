"""`raysweep status`: a summary of many runs, and a view that goes on until no run is left."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from helpers import tiny_sweeps as tiny
from raysweep import registry
from raysweep.cli import status
from raysweep.cli.app import run
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.cancel import cancel_runs
from raysweep.sweep.counted import counts, summary
from raysweep.sweep.lock import SweepLock
from raysweep.sweep.run_state import LaunchState, RunState, run_states
from raysweep.sweep.stored import save_sweep
from raysweep.sweep.under_way import Teller
from raysweep.training.seeds import Seeds

FILE = tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n"


@pytest.fixture
def sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweep:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSWEEP_STORAGE", "results")
    monkeypatch.setenv("COLUMNS", "160")
    (tmp_path / "tiny.yaml").write_text(FILE + "axes: {seed: [0, 1, 2]}\n")
    loaded = load_sweep(tmp_path / "tiny.yaml")
    save_sweep(loaded)
    return loaded


def finish(sweep: Sweep, k: int) -> None:
    tiny.finish(sweep.ledger().run(sweep.runs[k]), sweep.runs[k])


def fail(sweep: Sweep, k: int, message: str = "the loss is nan") -> None:
    sweep.ledger().run(sweep.runs[k]).record_failure(message, error="RunFailedError")


def test_five_thousand_runs_are_summarised(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = sweep.runs[0]
    runs = tuple(replace(spec, seeds=Seeds.of(k), axes={"seed": k}) for k in range(5000))
    many = replace(sweep, runs=runs)
    monkeypatch.setattr(status, "results_of", lambda *_: many)
    for k in range(30):
        fail(many, k, f"step {k}: the training loss is nan")
    finish(many, 40)
    assert run(["status", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 20
    assert lines[0] == "5,000 runs: 4,969 queued, 1 done, 30 failed"
    assert "  ... and 4,992 more values" in lines
    first = runs[0].run_id
    assert f"failed: 30 runs, such as {first}: step 0: the training loss is nan" in lines
    # 50 seconds of training, and two evaluations of 2 seconds each.
    assert f"  {runs[40].run_id}  54 s, done" in lines
    assert run(["status", "tiny", "--all"]) == 0
    assert len(capsys.readouterr().out.splitlines()) >= 5000


def state(run_id: str, **values: Any) -> RunState:
    return RunState(run_id=run_id, model="m", label=run_id, steps=100, **values)


def test_a_summary_is_bounded_in_every_direction() -> None:
    states = [state(f"r{k}", state="failed", trouble=chr(97 + k % 26) * 500) for k in range(2000)]
    axes = {f"r{k}": {f"model.a{j}": k // (j + 1) for j in range(30)} for k in range(2000)}
    lines = summary(states, axes)
    assert len(lines) < 120
    assert max(map(len, lines)) < 250
    assert "... and 18 more reasons" in lines
    assert "... and 22 more axes" in lines


def test_values_with_failures_come_first_and_reasons_are_grouped() -> None:
    states = [state(f"r{k}", state="queued") for k in range(20)]
    states[17] = state("r17", state="failed", trouble="step 7: nan", seconds=3.0)
    states[18] = state("r18", state="failed", trouble="step 1,200: nan", seconds=90.0)
    states[19] = state("r19", state="cancelled", trouble="cancelled from here")
    lines = summary(states, {f"r{k}": {"seed": k, "model.shape": "x"} for k in range(20)})
    assert lines == [
        "20 runs: 17 queued, 2 failed, 1 cancelled",
        "by seed:",
        "  seed 17  1 failed",
        "  seed 18  1 failed",
        *(f"  seed {k:<2}  1 queued" for k in range(6)),
        "  ... and 12 more values",
        "failed: 2 runs, such as r17: step 7: nan",
        "cancelled: r19: cancelled from here",
        "the most time of training and measuring took:",
        "  r18  90 s, failed",
        "  r17  3 s, failed",
    ]
    assert counts(states) == {"queued": 17, "failed": 2, "cancelled": 1}


def test_help_explains_the_columns(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = map(registry.evaluations.get, registry.evaluations.kinds())
    live = [q for kind in kinds for q in kind.example(tmp_path).quantities() if q.live]
    names = {"run", "id", "state", "step", "tokens/s", "MFU"} | {q.short or q.heading for q in live}
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["status", "-h"]) == 0
    said = capsys.readouterr().out.partition("╭")[0]
    assert names <= set(re.findall(r"(?m)^ +(\S+)  +\S", said))
    assert max(map(len, map(str.rstrip, said.splitlines()))) <= 80
    assert all(word in said for word in ("steps/s", "left", "in one space"))


def test_few_runs_are_listed(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    finish(sweep, 0)
    long = "the loss is nan " + 300 * "x"
    fail(sweep, 1, long)
    cancel_runs(sweep, [sweep.runs[2]])
    assert run(["status", "tiny"]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"seed 0 .* done +100/100", shown)
    assert f"failed: {sweep.runs[1].run_id}: {long}\n" in shown
    assert f"cancelled: {sweep.runs[2].run_id}: cancelled from " in shown
    assert run(["status", "tiny", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["counts"] == {"done": 1, "failed": 1, "cancelled": 1}
    assert [row["seconds"] for row in answer["runs"]] == [54.0, 0.0, 0.0]


@pytest.mark.parametrize("failed", [False, True])
def test_a_pipe_has_a_block_for_each_change_until_the_end(
    sweep: Sweep, failed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between two looks nothing happens, or a run ends."""
    happens = [lambda: None, lambda: finish(sweep, 0), lambda: None, lambda: finish(sweep, 1)]
    happens.append(lambda: fail(sweep, 2) if failed else finish(sweep, 2))
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        happens[len(slept) - 1]()

    monkeypatch.setattr(status.time, "sleep", sleep)
    with SweepLock(sweep.directory):
        assert run(["status", "tiny", "--watch", "--every", "7"]) == (3 if failed else 0)
    assert slept == [7.0] * 5
    blocks = capsys.readouterr().out.split("\n\n")
    assert [block.count(" done ") for block in blocks] == [0, 1, 2, 2 if failed else 3]
    assert all(re.match(r"\d\d:\d\d:\d\d\n", block) for block in blocks)


def test_watching_ends_when_nobody_is_at_work(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A launch that died left its runs queued, and they were watched for ever."""
    lock = SweepLock(sweep.directory).acquire()
    finish(sweep, 0)
    happens = [lambda: None, lock.release, lambda: finish(sweep, 1)]
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        happens[len(slept) - 1]()

    monkeypatch.setattr(status.time, "sleep", sleep)
    assert run(["status", "tiny", "--watch"]) == 3
    # The look after the last launch has gone shows what it did before.
    assert len(slept) == 3
    shown = capsys.readouterr()
    assert shown.out.split("\n\n")[-1].count(" done ") == 2
    assert shown.err == "tiny: nobody is at work on it; runs left: 1\n"


def test_steps_are_no_news_in_a_pipe(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five looks at a run that trains, over 80 seconds: its start, and a sign of life after a minute."""
    lock, rows, now = SweepLock(sweep.directory).acquire(), run_states(sweep), 1000.0
    rows[1].state = "training"
    tell = Teller(sweep.directory)

    def sleep(seconds: float) -> None:
        nonlocal now
        now += 20.0
        rows[1].step += 5
        tell(LaunchState(runs=rows, elapsed=9.0))
        if now > 1080:
            lock.release()
            raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "monotonic", lambda: now)
    monkeypatch.setattr(status.time, "sleep", sleep)
    tell(LaunchState(runs=rows, elapsed=9.0))
    assert run(["status", "tiny", "--watch"]) == 130
    assert re.findall(r"training +(\d+)/100", capsys.readouterr().out) == ["0", "15"]


def test_a_terminal_is_redrawn(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Console(force_terminal=True, width=120, height=40)
    monkeypatch.setattr(status, "console", lambda **_: terminal)
    monkeypatch.setattr(status.time, "sleep", lambda _: [finish(sweep, k) for k in range(3)])
    assert run(["status", "tiny", "-w"]) == 0
    shown = capsys.readouterr().out
    # The state has a colour.
    assert re.search(r"seed 0 .*queued", shown)
    assert re.search(r"seed 0 .*done", shown)
    # The cursor goes up to draw over what was there.
    assert "\x1b[1A" in shown


def test_watching_prints_no_json(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["status", "tiny", "--watch", "--json"]) == 2
    assert "--watch" in capsys.readouterr().err


def test_a_pipe_has_a_line_for_each_run(
    sweep: Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS")
    finish(sweep, 0)
    axes = {"model.shape": "64/4/2/256", "algorithm.lr": 0.003, "pretrain.batch_size": 256}
    runs = tuple(replace(spec, axes={**axes, **spec.axes}) for spec in sweep.runs)
    monkeypatch.setattr(status, "results_of", lambda *_: replace(sweep, runs=runs))
    assert run(["status", "tiny"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == [
        f"64/4/2/256 lr 0.003 batch_size 256 seed {k}" for k in range(3)
    ]


def test_without_a_name_there_is_a_line_for_each_sweep(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(sweep, 0)
    fail(sweep, 1)
    (sweep.storage / "broken").mkdir()
    (sweep.storage / "broken" / "sweep.json").write_text("{")
    assert run(["status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"broken  {sweep.storage}/broken/sweep.json: damaged (")
    assert lines[1:] == ["tiny    1 queued, 1 done, 1 failed"]
    assert run(["status", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["sweeps"]
    assert [(one["name"], one["counts"]) for one in found] == [
        ("broken", {}),
        ("tiny", {"queued": 1, "done": 1, "failed": 1}),
    ]
    assert run(["status", "--watch"]) == 2
    assert "raysweep: --watch: is for one sweep; name it" in capsys.readouterr().err
    assert run(["status", "--storage", "elsewhere"]) == 0
    assert capsys.readouterr().out.startswith("no sweep has been launched into ")


def test_runs_at_work_have_their_state_and_step(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    """As the launch has told last; without a launch at work, what it told counts for nothing."""
    finish(sweep, 0)
    rows = run_states(sweep)
    rows[1].state, rows[1].step = "training", 37
    Teller(sweep.directory)(LaunchState(runs=rows, elapsed=9.0, share=0.4, left=(60.0, 90.0)))
    assert run(["status", "tiny"]) == 0
    assert "37/100" not in capsys.readouterr().out
    with SweepLock(sweep.directory):
        assert run(["status", "tiny"]) == 0
        head, *lines = capsys.readouterr().out.splitlines()
        assert head.startswith("being launched by process ")
        assert head.endswith("; 40% of all work, 60 s to 90 s left")
        [line] = [line for line in lines if "37/100" in line]
        assert "training" in line.split()
        assert run(["status", "tiny", "--json"]) == 0
        answer = json.loads(capsys.readouterr().out)
        assert (answer["share"], answer["seconds_left"]) == (0.4, [60.0, 90.0])
        assert answer["counts"] == {"queued": 1, "training": 1, "done": 1}
        assert run(["status"]) == 0
        assert "1 training" in capsys.readouterr().out


def test_the_time_is_a_table_or_data(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    for k in range(3):
        finish(sweep, k)
    assert run(["status", "tiny", "--time"]) == 0
    head, *rows, last = capsys.readouterr().out.splitlines()
    assert head.split() == ["what", "took", "time", "times", "seconds", "processor", "s", "share"]
    assert [row.split() for row in rows] == [["training", "3", "150.0"], ["excess_loss", "6", "12.0"]]
    assert last == "seconds of works that went on at once are added up"
    assert run(["status", "tiny", "--time", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [part["seconds"] for part in answer["parts"]] == [150.0, 12.0]
    assert answer["busy"] is None


@pytest.mark.parametrize(
    ("words", "said"), [(["--time"], "name it"), (["tiny", "--time", "--watch"], "without --watch")]
)
def test_the_time_is_of_one_sweep_at_one_moment(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert run(["status", *words]) == 2
    error = capsys.readouterr().err
    assert "--time: " in error
    assert said in error
