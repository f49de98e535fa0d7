"""Committed results, the tables of a suite's README and its page, from made-up measurements."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pandas as pd
import pytest

from helpers import paper_suite
from raysweep.errors import ConfigError, DataError
from raysweep.report import committed as module
from raysweep.report.claims import sweep_verdicts
from raysweep.report.committed import Result, Software, read_result, result_of, write_result
from raysweep.report.suite import newest, render_suite
from raysweep.report.suite_tables import committed, readme_text, verdicts_table, write_readme
from raysweep.sweep.suite import Member, chosen, opened, standing, suite
from raysweep.sweep.tidy import tidy

OURS = Software(raysweep="0.2.0", commit=None, dirty=None, torch=None, python=None, processor=None)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return paper_suite.write_suite(tmp_path / "paper")


def member(folder: Path, stem: str) -> Member:
    [found] = chosen(suite(folder), [stem])
    return found


def stored(folder: Path, stem: str) -> Result:
    file = member(folder, stem)
    sweep = opened(file, folder.parent / "results")
    assert sweep is not None
    found = result_of(file, sweep, standing(sweep), OURS)
    assert found is not None
    return found


def collect(folder: Path, stem: str) -> Path:
    place = member(folder, stem).results
    write_result(stored(folder, stem), place)
    return place


def test_committed_results_are_those_of_the_records(folder: Path) -> None:
    sweep = paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    frame = tidy(sweep.ledger(), sweep)
    place = collect(folder, "fig1-small")
    files = {path.name for path in place.iterdir()}
    assert files == {
        "cells.parquet", "result.json", "fig1-small-1-excess_loss.svg", "fig1-small-1-trace.svg",
        "fig1-small-steps-1.svg",
    }  # fmt: skip
    assert all(path.stat().st_size < 200_000 for path in place.iterdir())
    found = read_result(place)
    assert found is not None
    pd.testing.assert_frame_equal(found.frame, frame)
    # Anybody can read the table, and its rates are numbers there.
    assert pd.read_parquet(place / "cells.parquet")["algorithm.lr"].max() == 6e-4
    written = found.written
    assert (written.file, written.name, written.state, written.runs, written.done) == (
        "fig1-small.yaml", "tiny", "done", 12, 12
    )  # fmt: skip
    assert written.content == hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()
    assert list(written.verdicts) == [verdict.encode() for verdict in sweep_verdicts(sweep, frame)]
    assert written.verdicts[0]["verdict"] == "supported"
    assert written.questions.claims == sweep.questions.claims
    [software] = written.provenance.measured_with
    assert (software.commit, software.dirty, software.processor) == (
        "0123456789abcdef", False, "Xeon (family 6, model 207)"
    )  # fmt: skip
    assert written.provenance.launches == 1


def test_equal_records_are_equal_bytes(folder: Path) -> None:
    paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    place = collect(folder, "fig1-small")
    before = {path.name: path.read_bytes() for path in place.iterdir()}
    (place / "fig1-small-left.svg").write_text("of a claim that is no longer asked")
    collect(folder, "fig1-small")
    assert {path.name: path.read_bytes() for path in place.iterdir()} == before


def test_seconds_that_overlap_count_once(folder: Path) -> None:
    sweep = paper_suite.measure(folder / "fig2-small.yaml", folder.parent / "results")
    origin = stored(folder, "fig2-small").written.provenance
    # Every run has trained 0.5 s a step, up to second 400 of the clock; measuring took 2 s each, at once.
    times = [record.time for run in sweep.runs for record in sweep.ledger().open(run.run_id).evaluations()]
    assert origin.wall_seconds == pytest.approx(200 + max(times) - min(times) + 2, abs=1.0)
    assert origin.time == max(times)


def test_processor_time_is_that_of_all_records_or_not_known(folder: Path) -> None:
    sweep = paper_suite.measure(folder / "fig2-small.yaml", folder.parent / "results", processor=True)
    # Each took a quarter less than the clock says; a run's last checkpoint counts all of its training.
    trained = sum(0.375 * max(spec.milestones) for spec in sweep.runs)
    measured = sum(1.5 * len(spec.milestones) * len(spec.evaluations) for spec in sweep.runs)
    found = stored(folder, "fig2-small").written.provenance.cpu_seconds
    assert found == pytest.approx(trained + measured, abs=0.1)
    collect(folder, "fig2-small")
    paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    assert stored(folder, "fig1-small").written.provenance.cpu_seconds is None
    collect(folder, "fig1-small")
    told = {row[0]: row[-1] for row in verdicts_table(committed(suite(folder))) if row[0]}
    assert told["file"] == "processor minutes"
    assert told["[fig1-small](fig1-small.yaml)"] == "–"
    assert told["[fig2-small](fig2-small.yaml)"] == f"{found / 60:.1f}"


def test_a_table_that_is_too_large_keeps_what_the_report_shows(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    whole = tidy(sweep.ledger(), sweep)
    shown = whole.assign(report=whole["metric"] != "probe/2")
    monkeypatch.setattr(module, "tidy", lambda ledger, sweep: shown.copy())
    small = len(module._parquet(shown[shown["report"]]))
    assert small < len(module._parquet(shown))
    monkeypatch.setattr(module, "MOST_BYTES", small)
    result = stored(folder, "fig1-small")
    assert set(result.frame["metric"]) == set(whole["metric"]) - {"probe/2"}
    assert result.written.metrics == "those that the report shows"
    monkeypatch.setattr(module, "MOST_BYTES", small - 1)
    with pytest.raises(DataError, match=r"fig1-small.yaml: a table of [\d,]+ rows takes .* fewer milestones"):
        stored(folder, "fig1-small")


def test_axes_of_words_and_numbers_can_be_committed(folder: Path) -> None:
    sweep = paper_suite.measure(folder / "fig2-small.yaml", folder.parent / "results")
    frame = tidy(sweep.ledger(), sweep)
    frame["trace.common"] = pd.Series([None, "auto", 7] * len(frame), dtype=object)[: len(frame)]
    place = folder / "mixed"
    place.mkdir()
    (place / "cells.parquet").write_bytes(module._parquet(frame))
    assert list(module._table(place / "cells.parquet")["trace.common"][1:3]) == ["auto", "7"]


def test_damaged_results_are_named_with_the_remedy(folder: Path) -> None:
    assert read_result(folder / "results" / "fig1-small") is None
    paper_suite.measure(folder / "fig2-small.yaml", folder.parent / "results")
    place = collect(folder, "fig2-small")
    text = (place / "result.json").read_text()
    (place / "result.json").write_text(text.replace('"runs": 3', '"runs": "many"', 1))
    with pytest.raises(DataError, match=r"result.json: damaged .*raysweep paper collect"):
        read_result(place)
    (place / "result.json").unlink()
    with pytest.raises(DataError, match=r"fig2-small: cells.parquet or result.json is missing; restore it"):
        committed(suite(folder))


def test_the_readme_says_what_was_found(folder: Path) -> None:
    readme = folder / "README.md"
    write_readme(readme, committed(suite(folder)))
    assert "& more | not run |" in readme.read_text()
    assert "None of the files has results yet." in readme.read_text()
    paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    collect(folder, "fig1-small")
    paper_suite.measure(folder / "fig2-small.yaml", folder.parent / "results", runs=2)
    collect(folder, "fig2-small")
    write_readme(readme, committed(suite(folder)))
    text = readme.read_text()
    # In Markdown, a bar within a cell is escaped.
    assert (
        "| [fig1](fig1.yaml) | Figure 1 | At equal loss, is a flatter model better? | ρ = −0.7 & more | "
        "[small](results/fig1-small/result.json): Task 1: flatter goes with better: supported; "
        "Task 1: longer training goes with better: " in text
    )
    assert "| [fig2](fig2-small.yaml) | Figure 2 |" in text
    assert "unfinished: 2 of 3 runs are done |" in text
    row = next(line for line in text.splitlines() if line.startswith("| [fig1-small](fig1-small.yaml) |"))
    assert re.search(r"\| supported \| ρ = −1\.00 \[−[\d.]+, −[\d.]+\] \| [\d.e-]+ \| 12 \| \d", row)
    assert readme_text(text, committed(suite(folder))) == text
    # After an edit of the file its results are no longer of it.
    small = folder / "fig2-small.yaml"
    small.write_text(small.read_text().replace("[1e-4]", "[2e-4]"))
    assert "measured with an earlier version of this file" in readme_text(text, committed(suite(folder)))
    readme.write_text("# Ours\n")
    with pytest.raises(ConfigError, match=r"README.md: the text needs one line '<!-- paper:figures -->'"):
        write_readme(readme, committed(suite(folder)))


def test_the_page_has_all_figures_beside_the_papers_numbers(folder: Path) -> None:
    storage = folder.parent / "results"
    paper_suite.measure(folder / "fig1-small.yaml", storage)
    page = render_suite(newest(suite(folder), storage))
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert {"fig1", "fig2"} <= set(ids)
    assert page.count("<figure>") == 2 + 1 + 1
    assert "<p><b>The paper:</b> ρ = −0.7 &amp; more.</p>" in page
    assert re.search(r"flatter goes with better: <b>supported</b> \(ρ = −1\.00", page)
    assert "Figure 2: Is a later checkpoint better?" in page
    assert "unfinished: 0 of 3 runs are done" not in page
    assert "unfinished (2 of 3 runs)" in page
    assert "fig1: not run." in page
    assert "raysweep 0.2.0 (commit 0123456789), torch 2.13.0, Xeon (family 6, model 207)." in page
    assert render_suite(newest(suite(folder), storage)) == page


def test_a_page_without_results_says_so(folder: Path) -> None:
    page = render_suite(newest(suite(folder), folder.parent / "results"))
    assert "0 of 3 sweeps have results" in page
    assert page.count(">not run</td>") == 3
    assert "<figure>" not in page


def test_the_newer_of_two_results_counts_unless_it_lacks_runs(folder: Path) -> None:
    storage, empty = folder.parent / "results", folder.parent / "elsewhere"
    paper_suite.measure(folder / "fig2-small.yaml", storage)
    place = collect(folder, "fig2-small")
    there = read_result(place)
    assert there is not None

    def shown(where: Path) -> Result:
        [entry] = [e for e in newest(suite(folder), where) if e.member.stem == "fig2-small"]
        assert entry.result is not None
        return entry.result

    assert shown(empty).written == there.written
    again = folder.parent / "again"
    paper_suite.measure(folder / "fig2-small.yaml", again, runs=1)
    assert shown(again).written == there.written, "newer, but with one run of three"
    paper_suite.measure(folder / "fig2-small.yaml", again)
    assert shown(again).written.provenance.time > there.written.provenance.time
    [entry] = [e for e in newest(suite(folder), empty) if e.member.stem == "fig2-small"]
    assert entry.standing.state == "not run"
    assert ">done</td>" in render_suite([entry])
