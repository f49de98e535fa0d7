"""`raysweep submit` with a cluster that writes down what it gets, and commands that are done elsewhere."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from helpers import tiny_sweeps as tiny
from helpers.json_output import check, documented
from raysweep.cli.app import run
from raysweep.engine import jobs

BASE = tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n"
TOKENIZER = "{train: wordpiece, vocabulary: 300}"
HEAD = "http://head:8265"


class Cluster:
    """Writes down what is submitted and run."""

    made: ClassVar[list[str]] = []
    sent: ClassVar[list[tuple[list[str], dict[str, str]]]] = []
    ran: ClassVar[list[list[str]]] = []
    code: ClassVar[int | None] = None

    def __init__(self, address: str) -> None:
        self.made.append(address)

    def submit(self, words: Sequence[str], *, name: str, folder: Path) -> str:
        files = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
        self.sent.append((list(words), files))
        return f"{name}-1234"

    def wait_until_begun(self, job: str, say: Callable[[str], None]) -> int | None:
        say("a line of the launch")
        return self.code

    def run(self, arguments: Sequence[str], *, out: Any, **_: Any) -> int:
        self.ran.append(list(arguments))
        out.write("there\n")
        return 3


@pytest.fixture(autouse=True)
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Cluster]:
    for name in ("RAYSWEEP_STORAGE", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)
    for name in ("made", "sent", "ran"):
        monkeypatch.setattr(Cluster, name, [])
    monkeypatch.setattr(Cluster, "code", None)
    monkeypatch.setattr(jobs, "JobServer", Cluster)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "results").mkdir()
    (tmp_path / "mine.yaml").write_text("extends: base.yaml\nname: mine\naxes: {seed: [0, 1]}\n")
    return Cluster


def submit(*words: str) -> int:
    return run(["submit", "mine.yaml", "--address", HEAD, "--storage", "/shared/results", *words])


def test_a_sweep_is_sent_with_its_options(cluster: type[Cluster], capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--set", "algorithm.lr=2e-3", "--set", "model={kind: encoder, shape: 16/2/1/32}"]
    options += ["--only", "16/2/1/32 seed 0", "--notify", "mail -s 'a b' me", "--retry-failed"]
    assert submit(*options) == 0
    [(words, files)] = cluster.sent
    assert words[:3] == ["raysweep", "launch", "mine.yaml"]
    assert words[3:] == [*options, "--storage", "/shared/results"]
    assert sorted(files) == ["base.yaml", "mine.yaml"]
    assert files["base.yaml"] == BASE
    out, err = capsys.readouterr()
    where = "--address http://head:8265 --storage /shared/results"
    assert out.splitlines() == [
        "job mine-1234 at http://head:8265",
        f"  raysweep status mine {where}",
        f"  raysweep logs mine -f {where}",
        f"  raysweep cancel mine {where}",
    ]
    assert "a line of the launch" in err
    assert "the launch is at work" in err


def test_what_is_printed_runs_there(cluster: type[Cluster], capsys: pytest.CaptureFixture[str]) -> None:
    assert submit("--json") == 0
    told = json.loads(capsys.readouterr().out)
    check(told, documented()["submit FILE"])
    assert (told["job"], told["sweep"]) == ("mine-1234", "mine")
    for name in ("status", "logs", "cancel"):
        assert run(shlex.split(told[name])[1:]) == 3
    assert cluster.ran == [
        ["status", "--storage", "/shared/results", "mine"],
        ["logs", "--follow", "--storage", "/shared/results", "mine"],
        ["cancel", "--storage", "/shared/results", "mine"],
    ]
    assert cluster.made == [HEAD] * 4
    assert capsys.readouterr().out == "there\n" * 3


@pytest.mark.parametrize(("code", "said"), [(0, "nothing was left to do"), (2, "exit code 2"), (3, "code 3")])
def test_a_launch_that_ends_at_once_decides_the_exit(
    cluster: type[Cluster],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: int,
    said: str,
) -> None:
    monkeypatch.setattr(cluster, "code", code)
    assert submit() == code
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["submit", "mine.yaml", "--address", HEAD], "--storage (or RAYSWEEP_STORAGE): is needed"),
        (["submit", "mine.yaml", "--address", HEAD, "--storage", "results"], "--storage results: a relative"),
        (["submit", "mine.yaml", "--storage", "/shared"], "--address (or RAY_API_SERVER_ADDRESS): name the"),
        (["submit", "none.yaml", "--address", HEAD, "--storage", "/shared"], "none.yaml: no such file"),
        (["submit", "mine.yaml"], "--print makes a cluster\n--storage (or RAYSWEEP_STORAGE): is needed"),
        (["status", "mine", "--address", HEAD], "--storage (or RAYSWEEP_STORAGE): is needed"),
    ],
)
def test_nothing_is_sent_without_a_place(
    cluster: type[Cluster], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(words) == 2
    assert said in capsys.readouterr().err
    assert cluster.made == []


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (["--set", "algorithm.lr=fast"], "--set algorithm.lr=fast: algorithm.lr"),
        (["--set", "pretrain.stepz=3"], "pretrain.stepz: unknown field"),
        (["--only", "nothing"], "nothing"),
        (["--notify", ""], "--notify"),
        (["--tracking-uri", "file:/x"], "tracking_uri"),
    ],
)
def test_bad_input_is_told_before_anything_is_sent(
    cluster: type[Cluster], option: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert submit(*option) == 2
    assert said in capsys.readouterr().err
    assert cluster.made == []


def corpus(folder: Path, source: str) -> None:
    (folder / "here.txt").write_text("the cat sat on the mat\n\n" * 300)
    (folder / "mine.yaml").write_text(
        "extends: base.yaml\nname: mine\n"
        f"language: {{kind: corpus, source: {source}, length: 8, tokenizer: {TOKENIZER}}}\n"
        "evaluate: {excess_loss: null, held_out_loss: {}}\n"
    )


def test_files_of_this_machine_are_told(
    cluster: type[Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus(tmp_path, "here.txt")
    assert submit() == 2
    err = capsys.readouterr().err
    assert f"names what is on this machine alone: language.source: {tmp_path}/here.txt; copy it" in err
    assert cluster.made == []
    corpus(tmp_path, f"{tmp_path}/here.txt")
    assert submit() == 0
    assert (
        f"must be on every node of the cluster under the same path: language.source: {tmp_path}/here.txt"
        in (capsys.readouterr().err)
    )


def test_the_check_can_be_left_to_the_cluster(
    cluster: type[Cluster], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus(tmp_path, "/only/there.txt")
    assert submit() == 2
    assert submit("--no-check", "--set", "name=other") == 0
    assert "job other-1234" in capsys.readouterr().out
    assert [words[2] for words, _ in cluster.sent] == ["mine.yaml"]


def test_a_command_elsewhere_has_all_that_was_given(
    cluster: type[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAYSWEEP_STORAGE", "/shared")
    given = ["cancel", "mine.yaml", "--only", "a b", "--only", "c", "--wait", "5", "--json"]
    assert run([*given, "--address", HEAD]) == 3
    assert run(["status", "--address", HEAD]) == 3
    assert run(["logs", "mine/x", "-n", "0", "--address", HEAD]) == 3
    assert cluster.ran == [
        ["cancel", "--only", "a b", "--only", "c", "--wait", "5.0", "--storage", "/shared", "--json", "mine"],
        ["status", "--storage", "/shared"],
        ["logs", "--lines", "0", "--storage", "/shared", "mine/x"],
    ]
