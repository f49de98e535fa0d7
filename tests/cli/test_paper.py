"""`raysweep paper`: the list, what is launched, and what is kept; a launch itself is in tests/integration."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import paper_suite
from raysweep.cli import paper
from raysweep.cli.app import run
from raysweep.sweep.suite import Member, suite


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("RAYSWEEP_STORAGE", raising=False)
    monkeypatch.chdir(tmp_path)
    return paper_suite.write_suite(tmp_path / "paper")


def paper_command(folder: Path, *words: str) -> int:
    return run(["paper", *words, "--folder", str(folder)])


def test_the_list_has_every_file_with_its_state(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    assert paper_command(folder) == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1] == "fig1        Figure 1      not run"
    assert lines[2].startswith(
        "fig1-small  Figure 1      done                      Task 1: flatter goes with better: "
    )
    assert lines[4].startswith("fig2-small  Figure 2      unfinished (2 of 3 runs)  Task 2: ")
    assert paper_command(folder, "--json") == 0
    data = json.loads(capsys.readouterr().out)
    assert data["storage"] == str(folder.parent / "results")
    assert [(f["state"], f["done"], f["runs"], f["committed"]) for f in data["files"]] == [
        ("not run", 0, 0, False), ("done", 12, 12, False), ("unfinished", 2, 3, False),
    ]  # fmt: skip
    assert data["files"][0]["paper"]["finding"] == "ρ = −0.7 & more"
    assert data["files"][1]["verdicts"][0]["verdict"] == "supported"


def test_collect_keeps_what_is_done_and_what_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    assert paper_command(folder, "collect") == 0
    said = capsys.readouterr()
    assert "fig2-small: unfinished (2 of 3 runs): left out; name it" in said.err
    assert str(folder / "README.md") in said.out
    assert sorted(path.name for path in (folder / "results").iterdir()) == ["fig1-small"]
    assert "small](results/fig1-small/result.json): Task 1: flatter" in (folder / "README.md").read_text()
    assert paper_command(folder, "collect", "fig2-small") == 0
    assert json.loads((folder / "results/fig2-small/result.json").read_text())["done"] == 2
    assert paper_command(folder, "collect", "fig1") == 2
    assert "fig1: nothing was measured in" in capsys.readouterr().err
    # A storage that has nothing shows what is committed.
    assert paper_command(folder, "--storage", "elsewhere") == 0
    shown = capsys.readouterr().out
    assert "not run; committed" in shown
    assert "unfinished: 2 of 3 runs are done" in shown


def test_options_before_the_command_are_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["paper", "--folder", str(folder), "run"]) == 2
    assert "--folder: belongs after the command: raysweep paper run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("codes", "expected", "tried"),
    [
        ({}, 0, ["fig1-small", "fig2-small"]),
        ({"fig1-small": 3}, 3, ["fig1-small", "fig2-small"]),
        ({"fig1-small": 3, "fig2-small": 4}, 4, ["fig1-small", "fig2-small"]),
        ({"fig1-small": 2, "fig2-small": 4}, 2, ["fig1-small", "fig2-small"]),
        ({"fig1-small": -9}, 4, ["fig1-small", "fig2-small"]),
        ({"fig1-small": 130}, 130, ["fig1-small"]),
    ],
)
def test_a_failure_is_named_and_stops_nothing(
    codes: dict[str, int],
    expected: int,
    tried: list[str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    launched = []

    def launch(member: Member, storage: Path, retry_failed: bool) -> tuple[int, bool]:
        assert (storage, retry_failed) == (folder.parent / "results", True)
        launched.append(member.stem)
        return codes.get(member.stem, 0), False

    monkeypatch.setattr(paper, "_launched", launch)
    assert paper_command(folder, "run", "--retry-failed") == expected
    assert launched == tried
    said = capsys.readouterr().err
    for stem, code in codes.items():
        words = "interrupted" if code == 130 else f"{stem}: ended with exit code {code}"
        assert words in said


def test_what_is_done_is_not_launched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    paper_suite.measure(folder / "fig1-small.yaml", folder.parent / "results")
    launched = []

    def launch(member: Member, storage: Path, retry_failed: bool) -> tuple[int, bool]:
        launched.append(member.stem)
        return 0, False

    monkeypatch.setattr(paper, "_launched", launch)
    assert paper_command(folder, "run") == 0
    assert launched == ["fig2-small"]
    assert "fig1-small: nothing to do" in capsys.readouterr().err
    # A file that is not valid is named, and the others go on.
    (folder / "fig0-small.yaml").write_text("extends: fig1.yaml\nname: tiny\nalgorithm: {kind: adam}\n")
    assert paper_command(folder, "run") == 2
    assert launched == ["fig2-small"] * 2
    assert "fig0-small.yaml:3:" in capsys.readouterr().err


def test_only_small_files_are_launched_unasked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    launched = []
    monkeypatch.setattr(paper, "_launched", lambda member, *_: (launched.append(member.stem) or 0, False))
    assert paper_command(folder, "run", "fig1", "fig2-small.yaml") == 0
    assert launched == ["fig1", "fig2-small"]
    for path in folder.glob("*-small.yaml"):
        path.unlink()
    assert paper_command(folder, "run") == 2


PROGRAM = """\
import sys
from pathlib import Path
from typing import Any
from raysweep.cli import paper
from raysweep.sweep.suite import suite
sys.executable = sys.argv[2]
print(paper._launched(suite(Path(sys.argv[1]))[0], Path("results"), False))
"""
#: A launch that writes down its words, waits for a signal, and counts them.
LAUNCH = """\
#!{python}
import signal, sys, time
caught = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: caught.append(number))
print(*sys.argv[1:], flush=True)
while not caught:
    time.sleep(0.01)
time.sleep(0.5)
print("caught", *[int(number) for number in caught], flush=True)
sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_the_launch_once_and_its_end_is_awaited(folder: Path, number: int) -> None:
    """A terminal sends its signals to a whole group of processes, and a second one ends a launch at once."""
    script = folder / "launch"
    script.write_text(LAUNCH.format(python=sys.executable))
    script.chmod(0o755)
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), str(script)],
        stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert child.stdout is not None
    words = child.stdout.readline()
    os.killpg(child.pid, number)
    rest = child.stdout.read().splitlines()
    assert child.wait(60) == 0
    assert words == f"-m raysweep.cli launch {folder / 'fig1.yaml'} --storage results --yes\n"
    assert rest == [f"caught {int(number)}", "(130, True)"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_signal_while_the_launch_starts_reaches_it_once(
    when: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended this process and left the launch without one that knows of it."""
    sent: list[int] = []

    class Child:
        def __init__(self, *_: Any, **__: Any) -> None:
            if when == "before":
                signal.raise_signal(signal.SIGTERM)

        def send_signal(self, number: int) -> None:
            sent.append(number)

        def wait(self) -> int:
            if when == "after":
                signal.raise_signal(signal.SIGTERM)
            return 130

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(subprocess, "Popen", Child)
    assert paper._launched(suite(folder)[0], Path("results"), False) == (130, True)
    assert sent == [signal.SIGTERM]
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_page_of_the_suite(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "--suite", "--folder", str(folder), "-o", "page.html"]) == 0
    assert capsys.readouterr().out.strip() == str(folder.parent / "page.html")
    assert "0 of 3 sweeps have results" in Path("page.html").read_text()
    for words, message in (
        (["report", "--suite", "scaling"], "--suite: is the page of all files, without NAME"),
        (["report", "--suite", "-o", "x.svg"], "is no known format; use .html"),
        (["report", "scaling", "--folder", "x"], "--folder: names the folder of a suite; add --suite"),
        (["report"], "NAME: missing; name a sweep, or --suite"),
    ):
        assert run(words) == 2
        assert message in capsys.readouterr().err
