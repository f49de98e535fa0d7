"""The files of a suite, what the paper found, and how far each file has come in a storage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers import paper_suite
from raysweep.errors import ConfigError
from raysweep.sweep.lock import SweepLock
from raysweep.sweep.stored import save_sweep
from raysweep.sweep.suite import Member, chosen, opened, standing, suite


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return paper_suite.write_suite(tmp_path / "paper")


def member(folder: Path, stem: str) -> Member:
    [found] = chosen(suite(folder), [stem])
    return found


def words(folder: Path, stem: str) -> str:
    return standing(opened(member(folder, stem), folder.parent / "results")).words


def test_files_come_in_the_order_of_the_paper_with_its_findings(folder: Path) -> None:
    (folder / "fig10-small.yaml").write_text("name: ten\n")
    members = suite(folder)
    assert [(m.stem, m.figure, m.name, m.small) for m in members] == [
        ("fig1", "fig1", "big", False),
        ("fig1-small", "fig1", "tiny", True),
        ("fig2-small", "fig2", "tiny", True),
        ("fig10-small", "fig10", "ten", True),
    ]
    # The small file repeats the figure of the large one, and says nothing of its own.
    assert [m.paper and m.paper.place for m in members] == ["Figure 1", "Figure 1", "Figure 2", None]
    assert members[1].results == folder / "results" / "fig1-small"


def test_the_paper_is_no_part_of_what_a_file_asks_for(folder: Path) -> None:
    before = {m.stem: m.configuration for m in suite(folder)}
    large = (folder / "fig1.yaml").read_text()
    (folder / "fig1.yaml").write_text(
        "# Another comment.\n" + large.replace("& more", "").replace("GPU", "CPU")
    )
    assert {m.stem: m.configuration for m in suite(folder)} == before
    (folder / "fig1.yaml").write_text(large.replace("states: 4", "states: 8"))
    after = {m.stem: m.configuration for m in suite(folder)}
    assert all(after[stem] != before[stem] for stem in before), "the files that extend it ask for it too"


def test_files_are_chosen_by_stem_name_and_path(folder: Path) -> None:
    members = suite(folder)
    for name in ("fig2-small", "fig2-small.yaml", str(folder / "fig2-small.yaml")):
        assert [m.stem for m in chosen(members, [name])] == ["fig2-small"]
    assert chosen(members, ()) == members
    for name in ("fig2", "elsewhere/fig2-small.yaml"):
        with pytest.raises(ConfigError, match=f"'{name}' is no file of the suite in .*paper"):
            chosen(members, [name])


def test_what_is_no_suite_is_refused_by_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"--folder .*nowhere: is no folder"):
        suite(folder / "nowhere")
    (folder / "empty").mkdir()
    with pytest.raises(ConfigError, match=r"empty: holds no sweep files"):
        suite(folder / "empty")
    (folder / "fig3.yaml").write_text("name: x\npaper: {place: Figure 3, found: much}\n")
    with pytest.raises(ConfigError, match=r"fig3.yaml:2:\d+: paper.*(found|question)"):
        suite(folder)
    (folder / "fig3.yaml").write_text("description: x\n")
    with pytest.raises(ConfigError, match=r"fig3.yaml:1:1: name: missing"):
        suite(folder)
    monkeypatch.setattr(
        "raysweep.version.__file__", str(folder / "site-packages" / "raysweep" / "version.py")
    )
    with pytest.raises(ConfigError, match=r"come with a clone .*--folder"):
        suite()


def test_a_file_is_not_run_then_unfinished_then_done(folder: Path) -> None:
    storage = folder.parent / "results"
    assert words(folder, "fig1-small") == "not run"
    paper_suite.measure(folder / "fig2-small.yaml", storage, runs=1)
    # One ledger: a run of the one file is a run of the other.
    assert words(folder, "fig1-small") == "unfinished (1 of 12 runs)"
    assert words(folder, "fig2-small") == "unfinished (1 of 3 runs)"
    assert words(folder, "fig1") == "not run"
    sweep = paper_suite.measure(folder / "fig1-small.yaml", storage)
    assert words(folder, "fig1-small") == "done"
    assert words(folder, "fig2-small") == "unfinished (2 of 3 runs)"
    last = next(spec for spec in sweep.runs if spec.seed == 1)
    for record in sweep.ledger().open(last.run_id).directory.glob("records/*-probe-*"):
        record.unlink()
    assert words(folder, "fig1-small") == "unfinished (11 of 12 runs)"


def test_runs_that_failed_are_told(folder: Path) -> None:
    sweep = paper_suite.measure(folder / "fig2-small.yaml", folder.parent / "results", runs=2)
    sweep.ledger().run(sweep.runs[2]).record_failure("loss is nan", error="FloatingPointError")
    assert words(folder, "fig2-small") == "failed (1 of 3 runs)"


def test_the_file_that_is_being_launched_is_running(folder: Path) -> None:
    storage = folder.parent / "results"
    sweep = paper_suite.measure(folder / "fig2-small.yaml", storage, runs=1)
    with SweepLock(sweep.directory):
        assert words(folder, "fig2-small") == "running (1 of 3 runs)"
        assert words(folder, "fig1-small") == "unfinished (1 of 12 runs)"
        save_sweep(opened(member(folder, "fig1-small"), storage) or sweep)
        assert words(folder, "fig1-small").startswith("running")
        stored = json.loads((sweep.directory / "sweep.json").read_text())
        assert Path(stored["path"]).name == "fig1-small.yaml"
    assert words(folder, "fig2-small") == "unfinished (1 of 3 runs)"
