"""The table at the end of a launch, and the report of one sweep or several."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from helpers.transfer_ledger import transfer_sweep
from raysweep.cli.app import run as run_command
from raysweep.cli.results import print_summary
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.sweep import Sweep, load_sweep, tidy
from raysweep.sweep.stored import save_sweep


@pytest.mark.parametrize("width", [80, 120, 400])
def test_many_columns_become_several_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    monkeypatch.setattr("raysweep.cli.results.console", lambda **_: Console(width=width, color_system=None))
    sweep = transfer_sweep(tmp_path)
    print_summary(sweep, tidy(sweep.ledger(), sweep), tmp_path / "report.html")
    _, *lines, _, _ = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line.startswith("model")]
    assert (len(heads) == 1) == (width == 400)
    assert sum(line.startswith("64/1/2/256") for line in lines) == len(heads)
    assert "longer training goes with better: " in " ".join(lines)
    for heading in ("tuned A", "probe area C", "forgets B", "rise noise0.1"):
        assert sum(heading in head for head in heads) == 1


def test_figures_become_files_and_sweeps_are_compared(
    finished: Sweep, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training curves are there before anything has been evaluated."""
    other = load_sweep(finished.path, overrides=["name=other"], storage=finished.storage)
    save_sweep(other)
    for sweep in (finished, other):
        spec = sweep.runs[0]
        [evaluation] = spec.evaluations.values()
        run = sweep.ledger().run(spec)
        run.record_evaluation(2, evaluation, [EXCESS_LOSS.number(0.5, n=8)], seconds=1.0)
    where = ["--storage", str(finished.storage)]
    assert run_command(["report", "small", "--format", "pdf", "-o", str(tmp_path / "new"), *where]) == 0
    paths = [Path(line) for line in capsys.readouterr().out.splitlines()]
    assert {path.name for path in paths} == {"small-curves.pdf", "steps.pdf"}
    assert all(path.parent == tmp_path / "new" and path.is_file() for path in paths)
    assert run_command(["report", "small", "other", *where]) == 0
    page = Path(capsys.readouterr().out.strip())
    assert page == finished.storage / "small-other.html"
    assert "<title>small, other · raysweep</title>" in page.read_text()
    assert run_command(["report", "small", "other", "--format", "svg", "-o", str(tmp_path), *where]) == 0
    assert (tmp_path / "other" / "steps.svg").is_file()
    capsys.readouterr()
    assert run_command(["report", "small", "other", "-o", str(tmp_path / "x.svg"), *where]) == 2
    assert "'.svg' is no known format; use .html" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert run_command(["report", "small", "--format", "svg", "-o", str(tmp_path / "file"), *where]) == 2
    assert "is a file; with --format, name a folder" in capsys.readouterr().err
