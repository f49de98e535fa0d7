"""The committed results of the paper's suite: whole, of the files as they are, and in README."""

from __future__ import annotations

import hashlib

from raysweep.report.committed import MOST_BYTES, TABLE
from raysweep.report.suite import render_suite
from raysweep.report.suite_tables import committed, readme_text
from raysweep.sweep.suite import RESULTS, suite, suite_folder

ENTRIES = committed(suite())


def test_the_readme_has_the_tables_of_the_files_and_their_results() -> None:
    """`raysweep paper collect` writes them anew."""
    text = (suite_folder() / "README.md").read_text(encoding="utf-8")
    assert readme_text(text, ENTRIES) == text


def test_every_folder_of_results_is_of_a_file() -> None:
    found = {path.name for path in (suite_folder() / RESULTS).glob("*")}
    assert found == {entry.member.stem for entry in ENTRIES if entry.result is not None}


def test_the_page_has_every_file() -> None:
    page = render_suite(ENTRIES)
    for entry in ENTRIES:
        assert f">{entry.member.stem}<" in page


def test_results_are_whole_and_of_the_files_as_they_are() -> None:
    for entry in ENTRIES:
        if entry.result is None:
            continue
        stem, written = entry.member.stem, entry.result.written
        assert not entry.stale, f"{stem} has changed since: launch and collect it again"
        assert (written.file, written.name) == (entry.member.path.name, entry.member.name)
        assert (entry.member.results / TABLE).stat().st_size <= MOST_BYTES
        table = entry.result.frame.to_csv(index=False).encode()
        assert hashlib.sha256(table).hexdigest() == written.content, stem
        assert written.verdicts, stem
        assert written.provenance.measured_with, f"{stem}: a launch says with what it measured"
