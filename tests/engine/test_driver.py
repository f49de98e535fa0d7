"""A launch that finds nothing to do."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

import raysweep as rs
from helpers import tiny_sweeps as tiny
from raysweep.engine import driver, forks


@pytest.mark.parametrize("connected", [True, False])
def test_a_server_that_began_early_is_ended_but_not_that_of_the_callers_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, connected: bool
) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    ended: list[str] = []
    server = SimpleNamespace(alive=True, close=lambda: ended.append("closed"))
    monkeypatch.setattr(forks, "_SERVERS", [server])
    monkeypatch.setattr(driver.ray, "is_initialized", lambda: connected)
    assert rs.launch(sweep).worked_on == ()
    assert ended == ([] if connected else ["closed"])
