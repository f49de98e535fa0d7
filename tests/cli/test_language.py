"""`raysweep language`; nothing here starts Ray."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from helpers import local_glue, local_models
from raysweep.cli.app import run
from raysweep.engine import generate as engine
from raysweep.engine import sentences
from raysweep.engine.sentences import Filled
from raysweep.generation import Generated
from raysweep.languages import Estimate, HMMConfig, PCFGConfig
from raysweep.languages.splits import TaskFacts
from raysweep.sweep import Sweep
from raysweep.sweep.sentences import wanted

FILE = """\
kind: pcfg
roots: 2
layers: 2
symbols: 3
rules: 4
words: 6
vocabulary: 12
stop: 0.4
"""


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAYSWEEP_TRACEBACK", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "language.yaml"
    path.write_text(FILE)
    return path


class Start:
    """In the place of `generate`: keeps what it is given, reports progress, and answers or fails."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.error: BaseException | None = None

    def __call__(self, config: Any, **given: Any) -> Generated:
        self.given = {"config": config, **given}
        for done in (0, 5, 10):
            given["progress"](done, 10)
        print("a remark of Ray's")
        if self.error is not None:
            raise self.error
        language = config.build()
        facts = TaskFacts(task=language.tasks["A"], counts=(3, 1))
        return Generated(
            language="PCFG",
            fingerprint=language.fingerprint,
            seed=0,
            sentences=10,
            length=Estimate(value=3.0, standard_error=0.5, n=10),
            length_counts=(0, 0, 5, 0, 5),
            word_counts=(30, 0),
            entropy=Estimate(value=1.25, standard_error=0.125, n=10),
            positions="random",
            tasks={"A": {"train": facts, "test": facts}},
            out=given["out"],
            made=2,
            reused=1,
            seconds=1.0,
        )


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    fake = Start()
    monkeypatch.setattr(engine, "generate", fake)
    return fake


def test_arguments_reach_the_engine(file: Path, start: Start, tmp_path: Path) -> None:
    options = ["--what", "conditionals", "--what", "tasks:A", "--sentences", "1e6", "--train", "2_000"]
    options += ["--test", "30", "--positions", "random", "--workers", "3", "--gpus", "0.5", "--seed", "4"]
    assert run(["language", "generate", str(file), "-o", "made/data", "--set", "seed=2", *options]) == 0
    given = start.given
    assert isinstance(given["config"], PCFGConfig)
    assert given["config"].seed == 2
    assert given["what"] == ["conditionals", "tasks:A"]
    assert [given[part] for part in ("sentences", "train", "test")] == [1_000_000, 2000, 30]
    assert (given["positions"], given["workers"], given["seed"]) == ("random", 3, 4)
    assert given["resources"] == {"CPU": 1.0, "GPU": 0.5}
    assert given["out"] == Path("made/data")
    assert (tmp_path / "made" / "data" / "ray.log").read_text() == "a remark of Ray's\n"


SWEEP = """\
name: tiny
language: {{kind: causal_lm, model: {model}, keep: 4, length: 3}}
model: {{kind: encoder, shape: 8/1/2/16}}
algorithm: {{kind: adamw}}
pretrain: {{steps: 10, batch_size: 8}}
evaluate: {{held_out_loss: {{sentences: 8}}}}
"""


def test_training_sentences_of_a_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: dict[str, Any] = {}

    def fill(sweep: Sweep, **options: Any) -> Filled:
        given.update(sweep=sweep, **options)
        return Filled(sets=tuple(wanted(sweep)), made=2, reused=1, seconds=1.0)

    monkeypatch.setattr(sentences, "fill", fill)
    file = tmp_path / "tiny.yaml"
    file.write_text(SWEEP.format(model=local_models.random_opt()))
    command = ["language", "generate", str(file), "--what", "training"]
    options = ["--storage", "all", "--gpus", "1", "--workers", "2", "--set", "seed=3"]
    assert run([*command, *options]) == 0
    assert given["sweep"].storage == tmp_path / "all"
    assert (given["workers"], given["resources"], given["address"]) == (2, {"CPU": 1.0, "GPU": 1.0}, None)
    assert capsys.readouterr().out == (
        f"80 training sentences of seed 3: {wanted(given['sweep'])[0].folder}\n"
        "shards: 2 made, 1 there before\n"
    )
    assert run([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training"][0]["sentences"] == 80
    given.clear()
    assert run([*command, "-o", "data", "--sentences", "9", "--shard-size", "4", "--what", "tasks"]) == 2
    told = " ".join(capsys.readouterr().err.split())
    assert "leave out --output, --sentences, --shard-size, --what tasks" in told
    assert given == {}


def test_what_was_found_is_printed_and_progress_is_not_in_it(
    file: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["language", "generate", str(file), "--json"]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert facts["entropy"] == {
        **{"value": 1.25, "standard_error": 0.125, "n": 10, "unit": "nats"},
        "positions": "random",
    }
    assert facts["tasks"]["A"]["test"]["counts"] == {"S1": 3, "S2": 1}
    assert facts["tasks"]["A"]["test"]["majority_rate"] == 0.75
    assert "5 of 10 sentences" in printed.err
    assert start.given["what"] is None
    assert start.given["sentences"] == 1_000_000
    assert run(["language", "generate", str(file), "-o", "data"]) == 0
    said = capsys.readouterr().out
    assert "entropy 1.250000 ± 0.125000 nats per masked word (10 sentences, one drawn position each)" in said
    assert "always 'S1' is right in 75.00%" in said
    assert "shards: data (2 made, 1 there before)" in said


def test_an_interrupted_generation_can_be_gone_on_with(
    file: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    start.error = KeyboardInterrupt()
    assert run(["language", "generate", str(file), "-o", "data"]) == 130
    assert "finished shards are in data, and the same command continues" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--what", "entropie"], 2, "did you mean 'entropy'"),
        (["--what", "tasks:Z"], 2, "unknown task 'Z'"),
        (["--what", "conditionals"], 2, "name a folder"),
        (["--sentences", "many"], 2, "whole number"),
        (["--sentences", "1.5"], 2, "whole number"),
        (["--sentences", "-3"], 2, "whole number"),
        (["--workers", "0"], 2, "workers"),
        (["-o", "/proc/nope"], 4, "cannot be made"),
        (["--set", "rulse=3"], 2, "did you mean 'rules'"),
    ],
)
def test_mistakes_are_told_before_ray_starts(
    file: Path,
    options: list[str],
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(engine, "connected", lambda *_: pytest.fail("Ray was started"))
    assert run(["language", "generate", str(file), *options]) == code
    error = capsys.readouterr().err
    assert message in " ".join(error.replace("│", " ").split())
    assert "Traceback" not in error


def test_a_folder_of_another_generation_is_refused(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from raysweep.sweep.shards import ShardStore

    monkeypatch.setattr(engine, "connected", lambda *_: pytest.fail("Ray was started"))
    language = HMMConfig(states=4, vocabulary=6, length=3, blocks=2, tasks=()).build()
    ShardStore.make(tmp_path / "data" / "sentences", {"language": language.fingerprint})
    assert run(["language", "generate", str(file), "-o", "data"]) == 2
    assert f"holds shards of language {language.fingerprint}" in capsys.readouterr().err


def test_show_as_text_and_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["language", "show", str(file), "--sentences", "50", "--examples", "1"]) == 0
    said = capsys.readouterr().out
    for line in ("lengths (exact): 2 to 4", "(50 sentences of seed 0)", "task A: ", "├─", "± "):
        assert line in said
    assert (
        run(["language", "show", str(file), "--sentences", "50", "--entropy-sentences", "0", "--json"]) == 0
    )
    facts = json.loads(capsys.readouterr().out)
    assert facts["entropy"] is None
    assert sum(facts["lengths"]["probabilities"].values()) == pytest.approx(1.0)
    assert "probe" not in facts


def test_show_probes_on_request(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--sentences", "20", "--probe", "--probe-train", "400", "--probe-test", "300"]
    assert run(["language", "show", str(file), *sizes, "--json"]) == 0
    metrics = {metric["name"]: metric for metric in json.loads(capsys.readouterr().out)["probe"]}
    assert {"probe/A", "majority/A", "probe/C"} <= set(metrics)
    assert metrics["majority/A"]["n"] == 300
    assert metrics["probe/A"]["value"] > metrics["majority/A"]["value"]
    assert run(["language", "show", str(file), *sizes]) == 0
    assert "linear probes on the exact conditionals (400 sentences, 300 others)" in capsys.readouterr().out
    file.write_text("kind: hmm\nstates: 4\nvocabulary: 6\nlength: 3\nblocks: 2\ntasks: []\n")
    assert run(["language", "show", str(file), *sizes]) == 2
    assert "--probe: the language has no downstream tasks" in capsys.readouterr().err


def test_a_language_is_written_as_text(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ["--sentences", "1e2", "--train", "30", "--test", "20", "--seed", "1"]
    assert run(["language", "text", str(file), "-o", "made", "--set", "seed=4", *options]) == 0
    said = capsys.readouterr().out.split()
    assert said[0] == "made/text.txt"
    assert len((tmp_path / "made" / "text.txt").read_text().splitlines()) == 100
    assert len((tmp_path / "made" / "B" / "validation.jsonl").read_text().splitlines()) == 20
    file.write_text("kind: dyck\nlength: 4\n")
    assert run(["language", "text", str(file), "-o", "made"]) == 2
    assert "brackets have no classification task" in capsys.readouterr().err


def test_a_language_is_learnt_by_a_small_model(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    sizes = ["--sentences", "3e2", "--width", "16", "--layers", "1"]
    assert run(["language", "model", str(file), "-o", "made", "--set", "seed=4", *sizes]) == 0
    said = capsys.readouterr()
    assert re.match(r"made: [\d,]+ parameters, \d\.\d{4} nats a word on new sentences", said.out)
    assert "300 of 300 sentences" in said.err
    path = tmp_path / "causal.yaml"
    path.write_text("{kind: causal_lm, model: ./made, keep: 4, length: 3}")
    assert run(["language", "show", str(path), "--sentences", "8"]) == 0
    assert run(["language", "model", str(file), "-o", "made", *sizes]) == 2
    assert "made already exists; name a new folder" in capsys.readouterr().err


def test_a_probe_of_conditionals_is_refused_on_labelled_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    local_glue.write(tmp_path / "rte", "rte")
    path = tmp_path / "causal.yaml"
    path.write_text(
        f"{{kind: causal_lm, model: {local_models.trained_opt()}, keep: 60, length: 12, "
        "tasks: [{glue: rte, source: rte}]}"
    )
    assert run(["language", "show", str(path), "--probe"]) == 2
    error = " ".join(capsys.readouterr().err.split())
    assert "--probe: 'lookup_table' answers with exact conditionals, and the texts of task 'rte'" in error


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        (["--sentences", "1e3"], [1000, 1000, 1000]),
        (["--sentences", "1e2", "--test", "1e3"], [100, 100, 1000]),
        ([], [1_000_000, 100_000, 100_000]),
    ],
)
def test_few_sentences_have_few_labelled_ones(
    options: list[str], sizes: list[int], file: Path, start: Start
) -> None:
    assert run(["language", "generate", str(file), *options]) == 0
    assert [start.given[part] for part in ("sentences", "train", "test")] == sizes


@pytest.mark.parametrize("number", ["inf", "1e400", "nan", "-1", "1.5", "1e17", "many"])
def test_numbers_of_sentences_that_are_none(
    number: str, file: Path, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["language", "generate", str(file), "--sentences", number]) == 2
    assert "is no whole number" in " ".join(capsys.readouterr().err.split())


def test_the_language_of_a_stored_sweep_is_shown(
    finished: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = str(finished.storage)
    assert run(["language", "show", "small", "--storage", storage, "--sentences", "20", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lengths"]["max"] == 4
    assert run(["language", "show", "smal", "--storage", storage]) == 2
    assert "no sweep of that name" in capsys.readouterr().err
