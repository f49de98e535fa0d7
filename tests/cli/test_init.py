"""`raysweep init`: what it writes is valid for all options, explained, and never over another file."""

from __future__ import annotations

import itertools
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

import raysweep
from helpers import local_models, local_texts
from raysweep.cli.app import run
from raysweep.sweep import Sweep, load_sweep, make_plan
from raysweep.sweep.document import Node, Problems
from raysweep.sweep.reading import read_file
from raysweep.sweep.starter import TEMPLATES


def sources() -> dict[str, list[str]]:
    """Return the options of each kind of language, with what it is read from on this machine."""
    found: dict[str, list[str]] = {kind: [] for kind in TEMPLATES}
    found["corpus"] = ["--source", str(local_texts.files()["txt"])]
    found["causal_lm"] = ["--source", str(local_models.random_opt())]
    return found


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAYSWEEP_STORAGE", raising=False)


def written(*options: str, file: str = "my.yaml") -> Sweep:
    """Write a file with these options and return its sweep."""
    assert run(["init", file, "--yes", *options]) == 0
    return load_sweep(file)


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_combination_of_options_is_valid_and_has_a_plan(kind: str) -> None:
    source = sources()[kind]
    for sizes, steps, (seeds, rate), gpu in itertools.product(
        ("", "32/2/1/128", "16/1/1/64,32/2/1/128"), ("", "3"), (("1", "1e-3,2e-3"), ("3", "")), (False, True)
    ):
        given = ["--language", kind, *source, "--seeds", seeds, "--force"]
        given += [f"--sizes={sizes}"] * bool(sizes) + [f"--steps={steps}"] * bool(steps)
        given += [f"--lr={rate}"] * bool(rate) + ["--gpu"] * gpu
        sweep = written(*given)
        plan = make_plan(sweep)
        rates = 2 if rate else len(TEMPLATES[kind].rates)
        shapes = {"": len(TEMPLATES[kind].sizes), "32/2/1/128": 1}.get(sizes, 2)
        trained = [one for one in sweep.runs if one.trains]
        assert len(trained) == rates * shapes * int(seeds), given
        assert len(plan.to_dict()["runs"]) == len(sweep.runs), given
        assert sweep.resources.per_worker == {"GPU" if gpu else "CPU": 1.0}
        assert {one.pretrain.steps for one in trained} == {int(steps or TEMPLATES[kind].steps)}


@pytest.mark.parametrize("kind", TEMPLATES)
def test_the_commands_accept_it(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    written("--language", kind, *sources()[kind], "--sizes", "16/1/1/64", "--steps", "20", "--seeds", "1")
    assert capsys.readouterr().out.splitlines()[-1] == "wrote my.yaml; next: raysweep plan my.yaml"
    assert run(["validate", "my.yaml"]) == 0
    capsys.readouterr()
    assert run(["plan", "my.yaml", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sweep"] == "my"


def test_a_corpus_has_the_rows_that_are_asked_for() -> None:
    sweep = written("-l", "corpus", "--source", str(local_texts.files()["txt"]), "--sizes", "16/1/1/64")
    # Would refuse more held-out sentences than there are.
    sweep.prepare()


def test_documents_are_lines_where_no_blank_line_parts_them(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("\n".join(local_texts.documents()) + "\n", encoding="utf-8")
    sweep = written("-l", "corpus", "--source", "lines.txt")
    assert sweep.runs[0].language.encode()["document"] == "line"
    assert sweep.notes == ()


def comments_above(text: str) -> dict[str, str]:
    """Return the comment above each key that has one, by key."""
    found, above = {}, []
    for line in text.splitlines():
        if line.lstrip().startswith("# "):
            above.append(line.strip()[2:])
            continue
        key = re.match(r"\s*(?:- )?([\w.]+):", line)
        if key and above:
            found[key[1]] = " ".join(above)
        above = []
    return found


def mappings(node: Node) -> list[str]:
    """Return the keys of the sections of a file, and of the mappings that stand in them in lines."""
    keys = [key for key, _ in node.items()]
    lines = [inner for _, inner in node.items() if inner.mark.column == 3 or inner.mark.column == 5]
    return keys + [key for inner in lines for key in mappings(inner)]


@pytest.mark.parametrize("kind", TEMPLATES)
def test_every_section_and_field_is_explained(kind: str, tmp_path: Path) -> None:
    written("-l", kind, *sources()[kind])
    text = (tmp_path / "my.yaml").read_text()
    problems = Problems()
    keys = set(mappings(read_file(tmp_path / "my.yaml", problems)))
    assert {"language", "batch_size", "inputs", "per_worker"} <= keys
    unexplained = keys - set(comments_above(text))
    # Axes are named by the fields that they set, and a kind by what follows it.
    assert unexplained <= {"description", "kind", "model.shape", "algorithm.lr", "seed", "claims"}
    assert all(len(line) <= 100 for line in text.splitlines() if line.lstrip().startswith("# "))
    assert "None" not in text


def test_commented_out_fields_are_valid_too(tmp_path: Path) -> None:
    written("-l", "corpus", "--source", str(local_texts.files()["txt"]))
    text = (tmp_path / "my.yaml").read_text()
    table = tmp_path / "labelled"
    table.mkdir()
    for split, texts in (
        ("train", local_texts.documents()[:40]),
        ("validation", local_texts.documents()[40:80]),
    ):
        rows = [{"sentence": text[:80], "label": k % 2, "idx": k} for k, text in enumerate(texts)]
        (table / f"{split}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    text, n = re.subn(r"# (tasks:) \[\{glue: sst2\}\]", f"\\1 [{{glue: sst2, source: {table}}}]", text)
    text, m = re.subn(r"# (probe: |keep: |notify: )", r"\1", text)
    assert (n, m) == (1, 3)
    (tmp_path / "my.yaml").write_text(text)
    sweep = load_sweep(tmp_path / "my.yaml")
    assert "probe" in sweep.runs[0].evaluations
    assert sweep.notify


def test_it_names_the_schema_and_writes_it_beside_where_there_is_none(tmp_path: Path) -> None:
    written()
    text = (tmp_path / "my.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=raysweep.schema.json\n")
    schema = tmp_path / "raysweep.schema.json"
    assert json.loads(schema.read_text())["title"] == "raysweep sweep file"
    schema.write_text("{}")
    written(file="other.yaml")
    assert schema.read_text() == "{}"


def test_in_a_clone_it_names_the_schema_of_the_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raysweep").mkdir()
    (tmp_path / "sweeps" / "mine").mkdir(parents=True)
    (tmp_path / "sweeps" / "raysweep.schema.json").write_text("{}")
    monkeypatch.setattr(raysweep, "__file__", str(tmp_path / "raysweep" / "__init__.py"))
    for file, place in (
        ("my.yaml", "sweeps/raysweep.schema.json"),
        ("sweeps/my.yaml", "raysweep.schema.json"),
        ("sweeps/mine/my.yaml", "../raysweep.schema.json"),
    ):
        written("--sizes", "16/1/1/64", "--steps", "1", file=file)
        assert (tmp_path / file).read_text().startswith(f"# yaml-language-server: $schema={place}\n")
    assert not (tmp_path / "sweeps" / "mine" / "raysweep.schema.json").exists()


def test_sources_are_named_from_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").write_text("\n\n".join(local_texts.documents()), encoding="utf-8")
    (tmp_path / "files").mkdir()
    for source, named in (
        ("texts/a.txt", "../texts/a.txt"),
        ("texts/*.txt", "../texts/*.txt"),
        (str(tmp_path / "texts"), str(tmp_path / "texts")),
    ):
        sweep = written("-l", "corpus", "--source", source, "--force", file="files/my.yaml")
        assert f"  source: {named}\n" in (tmp_path / "files" / "my.yaml").read_text()
        assert sweep.runs[0].language.encode()["source"].startswith(str(tmp_path / "texts"))


def test_rules_of_a_grammar_are_read_from_a_file(tmp_path: Path) -> None:
    rules = "S -> A B [1.0]\nA -> 'a' [0.5] | 'b' [0.5]\nB -> 'c' [0.5] | 'a' [0.5]\n"
    (tmp_path / "rules.txt").write_text(rules)
    sweep = written("--source", "rules.txt")
    assert sweep.runs[0].language.encode()["path"] == str(tmp_path / "rules.txt")


def test_names_that_yaml_takes_for_something_else_are_quoted() -> None:
    for name in ("1e3", "null", "12", "true"):
        assert written("--name", name, "--force").name == name


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--sizes", "32/3/1/128"], "--sizes: '32/3/1/128'"),
        (["--sizes", "32/2/1/128,tall"], "--sizes: 'tall'"),
        (["--sizes", ","], "--sizes: names nothing; give at least one value, or leave it out"),
        (["--lr", "fast"], "--lr: 'fast' is not a number, e.g. 3e-3"),
        (["--lr", "0"], "--lr: 0.0 is not valid; it must be greater than 0"),
        (["--steps", "0"], "--steps: 0 is too few; give at least 1"),
        (["--seeds", "0"], "--seeds: 0 is too few; give at least 1"),
        (["--name", "a b"], "--name: 'a b' is not a folder name"),
        (["--language", "hm"], "--language: 'hm': unknown language kind — did you mean 'hmm'?"),
        (
            ["--language", "hmm", "--source", "x.txt"],
            "--source: a hmm is drawn at random and read from nowhere",
        ),
        (["--language", "corpus"], "--source: missing; name the text of the corpus"),
        (["--language", "corpus", "--source", "./nothing.txt"], "--source: "),
        (["--language", "causal_lm", "--source", "./nothing"], "--source: there is no folder"),
        (["--source", "nothing.txt"], "--source: "),
    ],
)
def test_a_wrong_option_is_named_and_nothing_is_written(
    options: list[str], message: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(["init", "my.yaml", *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"raysweep: {message}"), said
    assert "my.yaml" not in said
    assert list(tmp_path.iterdir()) == []


def test_a_short_text_is_refused_with_the_size_that_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "short.txt").write_text("a few words\n\nand some more\n")
    assert run(["init", "--language", "corpus", "--source", "short.txt"]) == 2
    assert "--source: short.txt has 27 bytes of text" in capsys.readouterr().err


def test_a_file_is_overwritten_only_by_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("mine")
    assert run(["init", "my.yaml"]) == 2
    assert capsys.readouterr().err == (
        "raysweep: FILE: my.yaml is there already; name another file, or overwrite it with --force\n"
    )
    assert run(["init", "my.yaml", "--force", "--lr", "0"]) == 2
    assert file.read_text() == "mine"
    assert written("--force").name == "my"


@pytest.mark.parametrize(
    ("file", "message"),
    [
        ("my.txt", "FILE: 'my.txt' is no name of a sweep file; write my.yaml"),
        ("none/my.yaml", "FILE: there is no folder none; make it first"),
    ],
)
def test_a_place_where_no_sweep_file_goes_is_refused(
    file: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["init", file]) == 2
    assert capsys.readouterr().err == f"raysweep: {message}\n"


def on_terminal(folder: Path, answers: str, *options: str) -> tuple[int, str]:
    """Run the command on a terminal that gives answers; return its exit code and all that was said."""
    here, there = pty.openpty()
    with os.fdopen(here, "wb", buffering=0) as keyboard:
        process = subprocess.Popen(
            [sys.executable, "-m", "raysweep.cli", "init", "my.yaml", *options],
            stdin=there, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=folder,
            env=os.environ | {"PYTHONPATH": str(Path(raysweep.__file__).parents[1])},
        )  # fmt: skip
        keyboard.write(answers.encode())
        said, _ = process.communicate(timeout=300)
        os.close(there)
    return process.returncode, said.decode()


def test_a_terminal_is_asked_for_what_no_option_says(tmp_path: Path) -> None:
    answers = ["hm", "hmm", "16/3/1/64", "16/1/1/64", "few", "1e2", "", "y"]
    code, said = on_terminal(tmp_path, "".join(f"{answer}\n" for answer in answers), "--lr", "1e-3")
    assert code == 0, said
    assert "did you mean 'hmm'" in said
    assert "'few' is no whole number" in said
    assert "rates" not in said
    sweep = load_sweep(tmp_path / "my.yaml")
    assert {one.language.kind for one in sweep.runs} == {"hmm"}
    assert {one.pretrain.steps for one in sweep.runs if one.trains} == {100}
    assert len([one for one in sweep.runs if one.trains]) == 2
    assert sweep.resources.per_worker == {"GPU": 1.0}


def test_no_question_with_yes(tmp_path: Path) -> None:
    code, said = on_terminal(tmp_path, "", "--yes")
    assert code == 0, said
    assert "?" not in said
    assert "[" not in said


def test_ctrl_d_at_a_question_is_an_interrupt(tmp_path: Path) -> None:
    code, said = on_terminal(tmp_path, "\x04")
    assert code == 130
    assert said.endswith("raysweep: interrupted\n")
    assert not (tmp_path / "my.yaml").exists()
