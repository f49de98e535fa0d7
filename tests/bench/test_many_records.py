"""Made-up records are whole, and the commands on them are measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raysweep.bench.engine import commands, made_up
from raysweep.bench.engine.commands import MOST, measured
from raysweep.bench.engine.made_up import make_up, many
from raysweep.errors import RunFailedError
from raysweep.sweep import load_sweep, make_plan
from raysweep.sweep.tidy import tidy


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_up, "SHAPES", ("8/1/1/16", "16/2/1/32"))
    monkeypatch.setattr(made_up, "MILESTONES", (10, 20))
    monkeypatch.setattr(made_up, "SEEDS", 2)


def test_made_up_records_are_those_of_done_runs(tmp_path: Path) -> None:
    (tmp_path / "made-up.yaml").write_text(json.dumps(many(7)))
    sweep = load_sweep(tmp_path / "made-up.yaml", storage=tmp_path / "results")
    assert len(sweep.runs) == 8
    make_up(sweep)
    assert make_plan(sweep).counts["done"] == 8
    frame = tidy(sweep.ledger(), sweep)
    losses = frame[frame["metric"] == "excess_loss"]["value"]
    assert len(losses) == losses.nunique() == 16


def test_figures_are_of_each_command(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def run(folder: Path, *arguments: str) -> tuple[float, str]:
        asked.append(arguments[2] if arguments[:2] == ("-m", "raysweep.cli") else arguments[1])
        (folder / "report.html").write_text("page" * 1000)
        return 2.0 + len(asked), json.dumps({"counts": {"done": done}})

    monkeypatch.setattr(commands, "_cpu_seconds", run)
    done = 4
    said: list[str] = []
    found = {figure.name: figure for figure in measured(4, said.append)}
    # The first status writes the index, and the second one what was too young for it.
    alone = ("import torch", commands._LIST)
    tried = [command for command in ("plan", "status", "export", "report", *alone) for _ in range(3)]
    assert asked == ["status", "status", *tried]
    assert found["CPU time of plan"].value == 6.0, "the median of 5, 6 and 7"
    assert found["page of the report"].value == pytest.approx(0.004)
    assert found["CPU time of `import torch` alone"].value == 18.0, "the median of 17, 18 and 19"
    assert found["CPU time of listing all records alone"].value == 21.0
    assert found["CPU time of a status without an index"].goal is None
    for command, most in MOST.items():
        goal = found[f"CPU time of {command}"].goal
        assert goal is not None
        assert goal.value == most
    done = 3
    with pytest.raises(RunFailedError, match="3 of 4 made-up runs count as done"):
        measured(4, said.append)


def test_all_records_are_listed(tmp_path: Path) -> None:
    (tmp_path / "made-up.yaml").write_text(json.dumps(many(7)))
    sweep = load_sweep(tmp_path / "made-up.yaml", storage=tmp_path / "results")
    make_up(sweep)
    runs = sweep.ledger().runs_directory
    _, said = commands._cpu_seconds(tmp_path, "-c", commands._LIST, str(runs))
    assert int(said) == len([*runs.glob("*/run.json"), *runs.glob("*/records/*")])


def test_a_command_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunFailedError, match=r"raysweep\.cli status nothing .* ended with 2"):
        commands._cpu_seconds(tmp_path, *commands._CLI, "status", "nothing", "--storage", str(tmp_path))
