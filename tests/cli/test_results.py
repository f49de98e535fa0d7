"""The table at the end of a launch, and the report: files of figures, and several sweeps on one page."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from helpers.transfer_ledger import transfer_sweep
from raysweep.cli.app import run
from raysweep.cli.results import print_summary
from raysweep.report import sweep_verdicts
from raysweep.report.summary import Summary
from raysweep.sweep import Sweep
from raysweep.sweep.stored import save_sweep
from raysweep.sweep.tidy import tidy


@pytest.mark.parametrize("width", [80, 120, 400])
def test_many_columns_become_several_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], width: int
) -> None:
    terminal = {"force_terminal": True, "color_system": None}
    monkeypatch.setattr("raysweep.cli.results.console", lambda **_: Console(width=width, **terminal))
    sweep = transfer_sweep(tmp_path)
    frame = tidy(sweep.ledger(), sweep)
    print_summary(sweep, frame, tmp_path / "report.html", sweep_verdicts(sweep, frame))
    _, *lines, _, _ = capsys.readouterr().out.splitlines()
    assert "…" not in "".join(lines)
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if line.startswith("model")]
    assert (len(heads) == 1) == (width == 400)
    assert sum(line.startswith("64/1/2/256") for line in lines) == len(heads)
    assert "larger models are better: " in " ".join(lines)
    for heading in ("tuned A", "probe area C", "forgets B", "rise noise0.1"):
        assert sum(heading in head for head in heads) == 1


def test_a_long_name_is_wrapped_beside_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was cut off, and each column had a table of its own."""
    monkeypatch.setattr("raysweep.cli.results.console", lambda **_: Console(width=100, color_system=None))
    name = "64/1/2/256 adamw-lr0.0003-warmup0, batch_size 256, from adamw-lr0.003-warmup100@1000 keep"
    rows = [[name, "57.1k", "0.032 ± 0.002"]]
    found = Summary(headings=["model", "parameters", "excess loss"], rows=rows, title="Means")
    monkeypatch.setattr("raysweep.report.summary.summary", lambda _: found)
    print_summary(transfer_sweep(tmp_path), pd.DataFrame(), Path("report.html"), [])
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()[1:-2]]
    assert lines == [
        "model                                               parameters  excess loss",
        "64/1/2/256 adamw-lr0.0003-warmup0, batch_size 256,       57.1k  0.032±0.002",
        "from adamw-lr0.003-warmup100@1000 keep",
    ]


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> list[Sweep]:
    """Three finished sweeps in one storage, each of another size."""
    folder = tmp_path_factory.mktemp("several")
    found = []
    for name, shape in (("a", "16/1/2/64"), ("b", "32/1/2/128"), ("c", "64/1/2/256")):
        small = "evaluate={excess_loss: {sentences: 64}, trace: {inputs: 64}}"
        found.append(transfer_sweep(folder, f"name={name}", f"axes.model.shape=[{shape}]", small))
        save_sweep(found[-1])
    return found


def reported(capsys: pytest.CaptureFixture[str], sweeps: list[Sweep], *arguments: str) -> list[Path]:
    """Return the paths that `raysweep report` prints of sweeps by name."""
    names = [sweep.name for sweep in sweeps]
    assert run(["report", *names, *arguments, "--storage", str(sweeps[0].storage)]) == 0
    return [Path(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("kind", "start"), [("pdf", b"%PDF-"), ("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_every_figure_is_a_file_of_the_kind(
    sweeps: list[Sweep], tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, start: bytes
) -> None:
    paths = reported(capsys, sweeps[:1], "--format", kind, "-o", str(tmp_path / "new"))
    assert sorted(paths) == sorted((tmp_path / "new").iterdir())
    assert len(paths) > 1
    for path in paths:
        assert path.suffix == f".{kind}"
        assert path.read_bytes().startswith(start), path
        assert path.stat().st_size > 1000, path


def test_figures_go_to_the_folder_of_the_sweep_and_of_several_to_one_each(
    sweeps: list[Sweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = reported(capsys, sweeps[:1], "--format", "svg")
    assert {path.parent for path in own} == {sweeps[0].directory / "figures"}
    of_each = reported(capsys, sweeps[:2], "--format", "svg", "-o", str(tmp_path))
    assert {path.parent for path in of_each} == {tmp_path / "a", tmp_path / "b"}
    assert {path.name for path in of_each if path.parent.name == "a"} == {path.name for path in own}
    (tmp_path / "file").touch()
    where = ["--storage", str(sweeps[0].storage)]
    assert run(["report", "a", "--format", "svg", "-o", str(tmp_path / "file"), *where]) == 2
    assert "is a file; with --format, name a folder" in capsys.readouterr().err
    assert run(["report", "a", "--format", "gif", *where]) == 2


def test_several_sweeps_make_one_page(
    sweeps: list[Sweep], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [path] = reported(capsys, sweeps)
    assert path == sweeps[0].storage / "a-b-c.html"
    page = path.read_text()
    assert "<title>a, b, c · raysweep</title>" in page
    for size in ("16/1/2/64", "32/1/2/128", "64/1/2/256"):
        assert size in page
    [path] = reported(capsys, sweeps[:2], "-o", str(tmp_path / "two.html"))
    assert path == tmp_path / "two.html"
    assert "64/1/2/256" not in path.read_text()
    where = ["--storage", str(sweeps[0].storage)]
    assert run(["report", "a", "b", "-o", str(tmp_path / "x.svg"), *where]) == 2
    assert "'.svg' is no known format; use .html" in capsys.readouterr().err
    assert run(["report", "a", "nothing", *where]) == 2


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_the_tolerance_of_the_command_counts_on_every_page(
    sweeps: list[Sweep], tmp_path: Path, capsys: pytest.CaptureFixture[str], names: tuple[str, ...]
) -> None:
    chosen = [sweep for sweep in sweeps if sweep.name in names]
    pages = []
    for tolerance in ("0.011", "0.31"):
        [path] = reported(capsys, chosen, "--tolerance", tolerance, "-o", str(tmp_path / f"{tolerance}.html"))
        pages.append(path.read_text())
        assert f"{tolerance} nats" in pages[-1]
    assert pages[0] != pages[1]
