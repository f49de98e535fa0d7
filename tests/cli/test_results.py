"""The table at the end of a launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from helpers.transfer_ledger import transfer_sweep
from raysweep.cli.results import print_summary
from raysweep.sweep import tidy


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
