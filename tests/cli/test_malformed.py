"""Malformed input: a clear error with its place, exit code 2, and nothing is started or written."""

from __future__ import annotations

from pathlib import Path

import pytest

from raysweep.cli.app import run

GOOD = """\
name: bad
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 60, batch_size: 16, milestones: [20, 60]}
evaluate: {excess_loss: {sentences: 64}}
axes: {seed: [0, 1]}
"""

CASES = {
    "unknown key": ("steps: 60", "stepz: 60", ["bad.yaml:5:", "pretrain.stepz", "did you mean 'steps'"]),
    "wrong type": ("steps: 60", "steps: sixty", ["bad.yaml:5:", "pretrain.steps", "sixty"]),
    "duplicate key": ("name: bad\n", "name: bad\nname: bad\n", ["bad.yaml:2:", "name"]),
    "heads": ("16/1/1/32", "16/3/1/32", ["bad.yaml:3:", "model.shape", "3", "16"]),
    "milestone": ("[20, 60]", "[20, 90]", ["bad.yaml:5:", "pretrain.milestones", "90", "60"]),
    "empty axis": ("[0, 1]}", "[]}", ["bad.yaml:7:", "seed"]),
    "unknown kind": ("kind: hmm", "kind: hnm", ["bad.yaml:2:", "language.kind", "did you mean 'hmm'"]),
    "unknown evaluation": ("excess_loss", "exces_loss", ["bad.yaml:6:", "did you mean 'excess_loss'"]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("command", ["launch", "validate", "plan"])
def test_sweep_files(
    case: str,
    command: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    good, bad, expected = CASES[case]
    assert GOOD.count(good) == 1
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(GOOD.replace(good, bad))
    assert run([command, "bad.yaml"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    for text in expected:
        assert text in printed.err
    assert [path.name for path in tmp_path.iterdir()] == ["bad.yaml"]


TABLES = """\
name: bad
language:
  kind: corpus
  source: ./text.txt
  document: line
  tokenizer: {train: wordpiece, vocabulary: 100}
  length: 8
  held_out: 0.3
  tasks:
    - {name: mine, text: sentence, source: ./mine}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 60, batch_size: 16, mask: 0.15}
evaluate: {probe: {train: 4, test: 2}}
"""

ROWS = "".join(f'{{"sentence": "word{k}", "label": {k % 2}}}\n' for k in range(6))


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (
            "",
            ["bad.yaml:10:44: language.tasks[0].source: task 'mine': ", "train.jsonl has no rows; add some"],
        ),
        (
            ROWS.replace('word2", "', 'word2" "'),
            [
                "bad.yaml:10:44: language.tasks[0].source: task 'mine': line 3 of ",
                "is broken JSON: Expecting ','",
            ],
        ),
        (
            ROWS.replace("word4", ""),
            [
                "bad.yaml:10:26: language.tasks[0].text: task 'mine': line 5 of ",
                "empty text",
                "skip_empty: true",
            ],
        ),
        (
            ROWS.replace('"label": 1', '"label": null', 1),
            [
                "bad.yaml:10:7: language.tasks[0].label: task 'mine': line 2 of ",
                "has no label",
                "skip_empty: true",
            ],
        ),
        (
            ROWS.replace("sentence", "text"),
            ["bad.yaml:10:26: language.tasks[0].text: ", "no column 'sentence', but"],
        ),
        (
            "".join(ROWS.splitlines(True)[:3]),
            ["bad.yaml:14:27: evaluate.probe.train: 4 examples", "ask for fewer"],
        ),
    ],
)
def test_tables_of_tasks(
    bad: str,
    expected: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same error before anything starts, whatever the command."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    (tmp_path / "bad.yaml").write_text(TABLES)
    (tmp_path / "text.txt").write_text("".join(f"some word{k}\n" for k in range(40)))
    (tmp_path / "mine").mkdir()
    train = tmp_path / "mine" / "train.jsonl"
    (tmp_path / "mine" / "validation.jsonl").write_text(ROWS.replace("word", "other"))
    train.write_text(bad)
    said = []
    for command in ("validate", "plan", "launch --dry-run", "launch"):
        assert run([*command.split(), "bad.yaml"]) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        said.append(printed.err)
    assert said == [said[0]] * 4
    for text in expected:
        assert text in said[0]
    assert not (tmp_path / "results").exists()
    train.write_text(ROWS)
    assert run(["validate", "bad.yaml"]) == 0


def test_a_missing_text_says_how_to_make_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.yaml").write_text(TABLES)
    assert run(["validate", "bad.yaml"]) == 2
    error = capsys.readouterr().err
    assert (
        f"bad.yaml:4:11: language.source: there is no file, folder or pattern '{tmp_path}/text.txt'" in error
    )
    assert (
        "`raysweep language text GRAMMAR.yaml -o FOLDER` writes text and labelled tables from a grammar"
        in error
    )


def test_the_file_they_are_made_from_is_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    assert run(["validate", str(file)]) == 0
    assert "2 runs with 4 milestones" in capsys.readouterr().out


def test_missing_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch", str(tmp_path / "absent.yaml")]) == 2
    assert "absent.yaml" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("S -> A B [0.5]\nS -> B A [0.3]\nA -> 'a' [1.0]\nB -> 'b' [1.0]\n", ["S", "0.8"]),
        (None, ["no such file"]),
    ],
)
def test_grammars(
    rules: str | None, expected: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A grammar whose rules do not sum to one, and one whose file is missing."""
    path = tmp_path / "rules.txt"
    if rules is not None:
        path.write_text(rules)
    file = tmp_path / "bad.yaml"
    language = f"language: {{kind: pcfg, structure: file, path: {path}, max_length: 4}}"
    file.write_text("\n".join([GOOD.splitlines()[0], language, *GOOD.splitlines()[2:]]))
    assert run(["launch", str(file), "--storage", str(tmp_path / "results")]) == 2
    error = capsys.readouterr().err
    assert "bad.yaml:2:" in error
    for text in expected:
        assert text in error
    assert not (tmp_path / "results").exists()


def test_all_errors_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(GOOD.replace("steps: 60", "stepz: 60").replace("16/1/1/32", "16/3/1/32"))
    assert run(["launch", str(file)]) == 2
    error = capsys.readouterr().err
    assert "bad.yaml:3:" in error
    assert "bad.yaml:5:" in error


def test_overrides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    assert run(["validate", str(file), "--set", "pretrain.step=100"]) == 2
    error = capsys.readouterr().err
    assert "--set pretrain.step=100" in error
    assert "did you mean 'steps'" in error


def test_only_that_matches_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "good.yaml"
    file.write_text(GOOD)
    assert run(["plan", str(file), "--only", "nothing*"]) == 2
    assert "matches none of the 2 runs" in capsys.readouterr().err


def test_a_name_that_was_never_launched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["report", "ghost", "--storage", str(tmp_path)]) == 2
    assert "no sweep of that name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_a_folder_that_is_no_name(name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A variable of a shell that is not set makes an empty name."""
    assert run(["status", name, "--storage", str(tmp_path)]) == 2
    assert f"'{name}': no such file, and no sweep of that name" in capsys.readouterr().err


def test_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["launch"]) == 2
    assert run(["lunch", "x.yaml"]) == 2
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("raysweep ")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["match", "x", "--tol", "-1"], "'--tol': -1 is not valid; it must be at least 0"),
        (["match", "x", "--limit", "0"], "'--limit': 0 is not valid; it must be at least 1"),
        (["report", "x", "--tolerance", "-0.5"], "'--tolerance': -0.5 is not valid; it must be at least 0"),
        (["ui", "x", "--port", "70000"], "'--port': 70000 is not valid; it must be at most 65535"),
        (["match", "x", "--limit", "ten"], "'--limit': 'ten' is no whole number"),
        (["match", "x", "--tol", "ten"], "'--tol': 'ten' is no number"),
        (
            ["language", "show", "x", "--sentences", "1"],
            "'--sentences': '1' is no whole number of at least 2 (100000, 1e5)",
        ),
    ],
)
def test_a_wrong_number(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(words) == 2
    assert f"Error: Invalid value for {said}\n" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["validate", "plan", "launch", "status", "match"])
def test_a_file_that_is_no_text(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.bin").write_bytes(bytes(range(256)))
    assert run([command, "model.bin"]) == 2
    said = "raysweep: model.bin: is not a text file in UTF-8; name a sweep file (YAML)\n"
    assert capsys.readouterr().err.removeprefix("reading the sweep and its records\n") == said
    assert [path.name for path in tmp_path.iterdir()] == ["model.bin"]


ABSURD = {
    "2,000 brackets": ("seed: [0, 1]", f"seed: {'[' * 2000}", ["not valid YAML: nested deeper than 50"]),
    "brackets in brackets": ("[0, 1]", "[" * 200 + "]" * 200, ["bad.yaml:7:", "nested deeper than 50"]),
    "6,000 digits": (
        "seed: [0, 1]",
        f"seed: [{'9' * 6000}]",
        ["bad.yaml:7:15: axes.seed[0]: 6000 digits are too many: whole numbers end at 9,223,372,036"],
    ),
    "65 bits": ("batch_size: 16", "batch_size: 9223372036854775808", ["pretrain.batch_size: 19 digits"]),
    "a batch beyond all memory": (
        "batch_size: 16",
        "batch_size: 99999999999",
        ["bad.yaml:5:35: pretrain.batch_size: 99,999,999,999 sentences of length 4 take 2.9 TiB for word ids",
         "alone; use at most 34,359,738,368"],
    ),
    "steps beyond all time": (
        "steps: 60, batch_size: 16, milestones: [20, 60]",
        "steps: 1e12, batch_size: 16",
        ["bad.yaml:5:19: pretrain.steps: 1,000,000,000,000 steps take 32 years at a thousand a second; "
         "use at most 100,000,000,000"],
    ),
    "NUL in extends": (
        "name: bad\n", 'name: bad\nextends: "a\\0b"\n', ["bad.yaml:2:10: extends: holds the character"]
    ),
    "a long name in extends": (
        "name: bad\n", f"name: bad\nextends: {'x' * 5000}\n", ["cannot be read: File name too long"]
    ),
    "a long name of a model": (
        "kind: encoder, shape: 16/1/1/32", f"kind: huggingface, path: {'x' * 5000}", ["no such file"]
    ),
    "no home in extends": ("name: bad\n", "name: bad\nextends: ~no-one/a.yaml\n", ["extends: no such file"]),
    "2^31 words": (
        "vocabulary: 8", "vocabulary: 2147483648", ["language.vocabulary: 2147483648", "at most 1048576"]
    ),
    "a million states": (
        "states: 4, vocabulary: 8",
        "states: 1e6, vocabulary: 1e6",
        ["language.vocabulary: 1,000,000 states and 1,000,000 words make tables of 2,000,000,000,000 prob"],
    ),
    "a million wide": ("16/1/1/32", "16/1/1000000/32", ["'16/1/1000000/32': at most 1,024 layers"]),
    "a shape of many digits": ("16/1/1/32", f"{'9' * 5000}/1/1/32", ["model.shape", "up to 1,048,576"]),
}  # fmt: skip
PCFG = "kind: pcfg, structure: layered, roots: 2, layers: 2, symbols: 2, rules: 3, words: 4, vocabulary: 6"
GRAMMARS = {
    "structure: layered, roots": (
        f"structure: file, path: {'x' * 5000}, roots",
        ["language.path: no such file"],
    ),
    "layers: 2": (f"layers: {'9' * 300}", ["language.layers: 300 digits are too many"]),
    "layers: 2,": ("layers: 1e15,", ["language.layers: 1000000000000000 layers make"]),
    "symbols: 2": ("symbols: 1e9", ["language.symbols: 1000000000 is not valid; it must be at most 256"]),
    "vocabulary: 6": (
        "vocabulary: 1e6",
        ["language.words: 2 symbols of 4 words cover at most 8 of the vocabulary's 1000000"],
    ),
    "symbols: 2, rules: 3, words: 4, vocabulary: 6": (
        "symbols: 4, rules: 3, words: 1e6, vocabulary: 1e6",
        ["language.roots: 10 symbols in all and 1,000,000 words make a table of 10,000,000 probabilities"],
    ),
    "roots: 2, layers: 2, symbols: 2, rules: 3": (
        "roots: 200, layers: 7, symbols: 200, rules: 40000",
        ["language.rules: 40000 rules of each of 200 symbols in 6 layers are 48,000,000; at most 2,097,152"],
    ),
    "structure: layered": ("structure: dense, nonterminals: 129", ["language.nonterminals", "at most 128"]),
}


def refused(text: str, expected: list[str], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.yaml").write_text(text)
    assert run(["validate", "bad.yaml"]) == 2
    error = capsys.readouterr().err
    for words in expected:
        assert words in error
    assert max(map(len, error.splitlines())) < 1500
    assert [path.name for path in folder.iterdir()] == ["bad.yaml"]


@pytest.mark.parametrize("case", ABSURD)
def test_absurd_values_are_refused_before_anything_is_built(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad, expected = ABSURD[case]
    assert GOOD.count(good) == 1
    monkeypatch.chdir(tmp_path)
    refused(GOOD.replace(good, bad), expected, tmp_path, capsys)


@pytest.mark.parametrize(("steps", "batch"), [("1e11", "16"), ("60", "34359738368")])
def test_the_largest_training_is_no_mistake(steps: str, batch: str, tmp_path: Path) -> None:
    text = GOOD.replace("steps: 60", f"steps: {steps}").replace("batch_size: 16", f"batch_size: {batch}")
    (tmp_path / "large.yaml").write_text(text.replace(", milestones: [20, 60]", ""))
    assert run(["validate", str(tmp_path / "large.yaml")]) == 0


@pytest.mark.parametrize("good", GRAMMARS)
def test_absurd_grammars_are_refused_before_anything_is_built(
    good: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, expected = GRAMMARS[good]
    monkeypatch.chdir(tmp_path)
    hmm = "kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]"
    refused(GOOD.replace(hmm, PCFG.replace(good, bad)), expected, tmp_path, capsys)


def test_the_grammar_they_are_made_from_is_good(tmp_path: Path) -> None:
    hmm = "kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]"
    (tmp_path / "good.yaml").write_text(GOOD.replace(hmm, PCFG))
    assert run(["validate", str(tmp_path / "good.yaml")]) == 0


def test_a_home_that_is_not_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    refused(TABLES.replace("./text.txt", "~no-such-user/text.txt"), ["language.source"], tmp_path, capsys)
    assert run(["report", "bad", "--storage", "~no-such-user/results"]) == 2
    assert "storage '~no-such-user/results': there is no such home" in capsys.readouterr().err


def test_a_file_without_end_is_no_sweep_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").symlink_to("/dev/zero")
    assert run(["validate", str(tmp_path / "bad.yaml")]) == 2
    assert "bad.yaml:1:1: more than 1,000,000 characters; is this a sweep file?" in capsys.readouterr().err
