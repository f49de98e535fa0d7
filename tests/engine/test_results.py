"""Results in Python: of a launch, and of a sweep that was launched before."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

import raysweep as rs
from helpers.transfer_ledger import transfer_sweep
from raysweep.engine.results import Figures
from raysweep.errors import ConfigError
from raysweep.sweep.stored import save_sweep


@pytest.fixture
def stored(tmp_path: Path) -> rs.Sweep:
    """A sweep with results, as a launch leaves it."""
    sweep = transfer_sweep(tmp_path, "claims=[{beats: {task: A}}]")
    save_sweep(sweep)
    return sweep


def test_a_sweep_is_opened_by_its_name_and_by_its_file(stored: rs.Sweep) -> None:
    named = rs.open(stored.name, storage=stored.storage)
    pd.testing.assert_frame_equal(named.to_frame(), rs.Results(
        sweep=stored, failures={}, unfinished={}
    ).to_frame())  # fmt: skip
    by_file = rs.open(
        stored.path,
        storage=stored.storage,
    )
    assert [spec.run_id for spec in by_file.sweep.runs] == [spec.run_id for spec in stored.runs]
    assert named.worked_on == ()
    # The runs of the example have their measurements and no checkpoints.
    assert set(named.unfinished) <= {spec.run_id for spec in stored.runs}


def test_a_name_that_is_not_there_is_refused_with_the_next(stored: rs.Sweep) -> None:
    with pytest.raises(ConfigError, match=f"did you mean '{stored.name}'"):
        rs.open(stored.name[:-1], storage=stored.storage)


def test_a_wide_table_has_the_numbers_of_the_tidy_one(stored: rs.Sweep) -> None:
    results = rs.open(stored.name, storage=stored.storage)
    tidy, wide = results.to_frame(), results.to_frame(wide=True)
    assert len(wide) == len(tidy[["run_id", "step"]].drop_duplicates())
    assert wide.columns.is_unique
    seen = 0
    for row in tidy.itertuples():
        [one] = wide[(wide["run_id"] == row.run_id) & (wide["step"] == row.step)].to_dict(orient="records")
        assert one[row.metric] == row.value
        assert one["algorithm"] == row.algorithm
        error = one.get(f"{row.metric}_se", math.nan)
        assert error == row.standard_error or (math.isnan(error) and math.isnan(row.standard_error))
        seen += 1
    metrics = set(tidy["metric"])
    assert wide[sorted(metrics)].notna().sum().sum() == seen


def test_figures_are_those_of_the_report_and_can_be_saved(stored: rs.Sweep, tmp_path: Path) -> None:
    figures = rs.open(stored.name, storage=stored.storage).plot()
    assert figures
    assert all(isinstance(figure, Figure) for figure in figures.values())
    page = figures._repr_html_()
    assert page.count("data:image/png;base64,") == len(figures)
    name, figure = next(iter(figures.items()))
    figure.savefig(tmp_path / "figure.pdf")
    assert (tmp_path / "figure.pdf").stat().st_size > 1000
    with pytest.raises(KeyError, match=f"did you mean '{name}'"):
        figures[name + "x"]
    with pytest.raises(KeyError, match="there are: none"):
        Figures()["a"]


def test_a_python_prompt_shows_a_line_for_a_sweep_and_its_results(stored: rs.Sweep) -> None:
    number = len(stored.runs)
    assert repr(stored) == f"Sweep({stored.name!r}: {number} runs of {stored.path})"
    results = rs.open(stored.name, storage=stored.storage)
    failed, unfinished = len(results.failures), len(results.unfinished)
    assert (
        str(results) == f"Results({stored.name!r}: {number} runs, {failed} failed, {unfinished} unfinished)"
    )
    lines = repr(rs.make_plan(stored)).splitlines()
    assert lines[0] == f"sweep {stored.name}: {number} runs"
    assert len(lines) < 50


def test_a_notebook_shows_verdicts_and_the_last_checkpoints(stored: rs.Sweep) -> None:
    results = rs.open(stored.name, storage=stored.storage)
    page = results._repr_html_()
    [verdict] = results.verdicts()
    assert f"<li>{verdict.sentence}</li>" in page
    assert "look-up table" in page
    assert page.count("<table") == 1


def test_a_prompt_and_a_notebook_show_the_verdicts_as_sentences(stored: rs.Sweep) -> None:
    results = rs.open(stored.name, storage=stored.storage)
    found = results.verdicts()
    [verdict] = found
    told = verdict.sentence.partition(" (")[0]
    assert told.endswith(f": {verdict.outcome}")
    assert repr(verdict) == f"Verdict({told!r})"
    assert repr(found) == f"[Verdict({told!r})]"
    assert found._repr_html_() == f"<ul>\n<li>{verdict.sentence}</li>\n</ul>"


def test_a_file_in_place_of_a_sweep_is_refused_with_the_call_that_reads_it(
    stored: rs.Sweep, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: tuple[Callable[[Any], object], ...] = (rs.launch, rs.make_plan, rs.tuner)
    for call in calls:
        for given in ("small.yaml", Path("small.yaml")):
            with pytest.raises(
                ConfigError, match=r"^sweep: 'small.yaml' is the .*rs.load_sweep\('small.yaml'\)$"
            ):
                call(given)
        with pytest.raises(ConfigError, match=r"^sweep: Results is not a sweep; give what rs.load_sweep"):
            call(rs.open(stored.name, storage=stored.storage))


def test_a_star_import_leaves_pythons_open() -> None:
    code = "from raysweep import *; import builtins; assert open is builtins.open"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    assert "open" in dir(rs)
