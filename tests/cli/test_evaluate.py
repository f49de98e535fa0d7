"""`raysweep evaluate`: checkpoints of runs and Hugging Face folders, measured in this process."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import local_glue, local_texts
from raysweep.cli.app import run
from raysweep.evaluation import ModelSubject
from raysweep.evaluation import run as evaluation_run
from raysweep.evaluation.trace import TraceConfig
from raysweep.flatness.trace.fisher import FIRST_LOOK
from raysweep.models.encoder import EncoderConfig
from raysweep.models.huggingface import to_huggingface
from raysweep.sweep import Sweep
from raysweep.sweep.language_file import load_language
from raysweep.sweep.opened import choose_evaluations, open_model
from raysweep.training import load_model

FEW = ["-e", "trace.inputs=8"]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, finished: Sweep) -> None:
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(finished.storage))
    monkeypatch.setenv("COLUMNS", "140")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def checkpoint(finished: Sweep) -> Path:
    """The folder of the second run's checkpoint of step 2."""
    return finished.ledger().open(finished.runs[1].run_id).checkpoint_directory(2)


@pytest.fixture
def language_file(tmp_path: Path, finished: Sweep) -> Path:
    """A file with the sweep's language alone."""
    file = tmp_path / "language.yaml"
    file.write_text(json.dumps(finished.runs[0].language.encode()), encoding="utf-8")
    return file


@pytest.fixture
def folder(tmp_path: Path, finished: Sweep, checkpoint: Path) -> Path:
    """The same checkpoint as a Hugging Face folder."""
    spec = finished.runs[1]
    to_huggingface(load_model(checkpoint, spec.model, finished.language(spec)), tmp_path / "model")
    return tmp_path / "model"


def measured(finished: Sweep, checkpoint: Path, evaluation: Any) -> dict[str, Any]:
    spec = finished.runs[1]
    language = finished.language(spec)
    subject = ModelSubject(language, load_model(checkpoint, spec.model, language))
    return {
        m.name: m.model_dump(mode="json") for m in evaluation_run.run_evaluation(evaluation, subject).metrics
    }


def evaluate(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """Run the command and return the facts that it prints as JSON."""
    assert run(["evaluate", *arguments, "--json"]) == 0
    facts: dict[str, Any] = json.loads(capsys.readouterr().out)
    return facts


def metrics(facts: dict[str, Any]) -> dict[str, Any]:
    return {metric["name"]: metric for part in facts["evaluations"] for metric in part["metrics"]}


def test_a_checkpoint_of_a_run(finished: Sweep, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = evaluate(capsys, str(checkpoint), *FEW)
    spec = finished.runs[1]
    assert facts["model"] == f"{spec.run_id}@2"
    assert facts["language"] == spec.language_fingerprint
    assert metrics(facts) == measured(finished, checkpoint, TraceConfig(inputs=8))
    assert facts["evaluations"][0]["config"] == TraceConfig(inputs=8).encode()


def test_ways_to_name_it(finished: Sweep, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = finished.runs[1]
    last = checkpoint.with_name("step-00000004")
    named = [str(last), str(checkpoint.parents[1]), spec.run_id, f"{spec.run_id}@4", "*-s1-*"]
    found = [evaluate(capsys, name, *FEW) for name in named]
    assert {facts["model"] for facts in found} == {f"{spec.run_id}@4"}
    assert all(metrics(facts) == metrics(found[0]) for facts in found)
    assert metrics(found[0]) != metrics(evaluate(capsys, str(checkpoint), *FEW))


def test_a_hugging_face_folder_is_the_same_model(
    finished: Sweep, checkpoint: Path, folder: Path, language_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ours = metrics(evaluate(capsys, str(checkpoint), *FEW))
    theirs = metrics(evaluate(capsys, "model", "--language", str(language_file), *FEW))
    assert list(ours) == list(theirs)
    for name in ours:
        assert theirs[name]["value"] == pytest.approx(ours[name]["value"], rel=1e-4)


def test_a_hugging_face_folder_is_fine_tuned_and_quantised(
    checkpoint: Path, folder: Path, language_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = ["finetune.train=48", "finetune.test=32", "finetune.epochs=2", "finetune.seeds=2"]
    options = [text for field in [*fields, "quantize.sentences=16"] for text in ("-e", field)]
    ours = metrics(evaluate(capsys, str(checkpoint), *options))
    facts = evaluate(capsys, "model", "--language", str(language_file), *options)
    theirs = metrics(facts)
    assert {name.split("/")[0] for name in theirs} >= {"finetune", "forgetting", "quantize"}
    assert {name: metric["n"] for name, metric in theirs.items()} == {n: m["n"] for n, m in ours.items()}
    for name in theirs:
        if name.startswith(("finetune_train_loss", "finetune_guess", "quantize_")):
            assert theirs[name]["value"] == pytest.approx(ours[name]["value"], rel=1e-3)
    notes = facts["evaluations"][0]["notes"]
    assert notes["method"] == "the mean state of the words"
    assert "finetune: the rate never reaches lr" in notes["warm_up"]


def test_an_exported_model_is_measured_as_in_its_sweep(
    finished: Sweep, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From a run to a folder to numbers, with the commands that the help gives."""
    name = f"{finished.runs[1].run_id}@2"
    assert run(["export-model", name, "-o", "mine"]) == 0
    small = "finetune: {train: 32, test: 16, epochs: 1, seeds: 2, forgetting: 8}"
    file = tmp_path / "sweep.yaml"
    file.write_text(
        (finished.path.read_text()).replace(
            "excess_loss: {sentences: 8}",
            f"excess_loss: {{sentences: 8}}, probe: {{train: 64, test: 32, seeds: 2}}, {small}",
        )
    )
    capsys.readouterr()
    there = ["mine", "--language", str(file)]
    facts = evaluate(capsys, *there, "-e", "probe", "-e", "finetune")
    configs = {part["kind"]: part["config"] for part in facts["evaluations"]}
    assert (configs["probe"]["train"], configs["finetune"]["seeds"]) == (64, 2)
    fields = ["probe.train=64", "probe.test=32", "probe.seeds=2", "finetune.forgetting=8"]
    fields += [f"finetune.{setting}" for setting in ("train=32", "test=16", "epochs=1", "seeds=2")]
    ours = evaluate(capsys, name, *(part for field in fields for part in ("-e", field)))
    expected = metrics(ours)
    assert metrics(facts).keys() == expected.keys()
    # The run has no dropout, and so fine-tuning of the folder has none: the numbers agree.
    for metric, found in metrics(facts).items():
        assert found["value"] == pytest.approx(expected[metric]["value"], rel=1e-3, abs=1e-4), metric
    # Without a choice, all that the sweep measures.
    assert {part["kind"] for part in evaluate(capsys, *there)["evaluations"]} == {
        "excess_loss",
        *("probe", "finetune"),
    }


def test_a_second_evaluation_of_one_kind(
    finished: Sweep, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = ["-e", "trace_paper.kind=trace", "-e", "trace_paper.inputs=8"]
    found = metrics(evaluate(capsys, str(checkpoint), *FEW, *named))
    assert found["trace_paper/trace"]["value"] == found["trace"]["value"]
    assert found["trace_paper/trace"]["heading"] == "trace (trace_paper)"
    # The name of one of the run's own is enough.
    opened = open_model(str(checkpoint), storage=finished.storage)
    own = TraceConfig(name="trace_paper", inputs=8, draws=2)
    chosen, _ = choose_evaluations(
        ["trace_paper.inputs=4"], replace(opened, evaluations={"trace_paper": own})
    )
    assert chosen == {"trace_paper": TraceConfig(name="trace_paper", inputs=4, draws=2)}


def test_settings_of_any_kind(finished: Sweep, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = {
        "excess_loss": ["sentences=8"],
        "held_out_loss": ["sentences=8", "mask=0.5"],
        "trace": ["inputs=4"],
        "hessian": ["inputs=4", "labels=hard"],
        "spectrum": ["inputs=2", "eigenvalues=1", "tolerance=0.1", "steps=2", "matrices=[gauss_newton]"],
        "sharpness": ["inputs=4", "pool_size=4", "steps=1", "which=[sam, fisher_rao]"],
        "probe": ["train=32", "test=16", "projection=8", "seeds=1"],
        "finetune": ["train=32", "test=16", "epochs=1", "seeds=1", "forgetting=8", "betas=[0.8, 0.9]"],
        "quantize": ["sentences=8", "bits=[4]", "noise=[0.1]", "draws=2"],
    }
    options = [text for kind, fields in small.items() for f in fields for text in ("-e", f"{kind}.{f}")]
    facts = evaluate(capsys, str(checkpoint), *options)
    assert {part["kind"] for part in facts["evaluations"]} == set(small)
    assert facts["evaluations"][3]["config"]["labels"] == "hard"


def test_table_and_file(checkpoint: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["evaluate", str(checkpoint), *FEW, "-o", "out.json"]) == 0
    shown = capsys.readouterr()
    facts = json.loads((tmp_path / "out.json").read_text())
    lines = shown.out.splitlines()
    assert lines[0] == facts["model"]
    assert lines[-1] == "out.json: written"
    for metric in metrics(facts).values():
        (row,) = (line for line in lines if line.startswith(f"{metric['name']} "))
        assert float(row.split()[1]) == pytest.approx(metric["value"], rel=1e-4)
        assert row.rstrip().endswith(f"{metric['n']}  {metric['unit']}")
    assert re.fullmatch(r"\S+ trace: measuring\n\S+ trace: measured in \d+ s\n", shown.err)
    assert facts["provenance"]["versions"]["torch"]


def test_a_target_and_how_gradients_were_computed(
    checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    measure_all = evaluation_run.run_evaluation

    def slowly(evaluation: Any, subject: Any, *, progress: Any) -> Any:
        found = measure_all(evaluation, subject, progress=lambda *now: told.append(now))
        assert found.notes == {"method": "ghost norms"}
        return replace(found, notes={"method": "vmap", "reason": "a Conv is unknown"})

    fields = ("inputs=4000", "shard_size=256", "target_rse=0.02")
    options = [text for field in fields for text in ("-e", f"trace.{field}")]
    facts = evaluate(capsys, str(checkpoint), *options)
    assert facts["evaluations"][0]["notes"] == {"method": "ghost norms"}
    found = metrics(facts)
    assert found["trace_target_reached"]["value"] == 1
    assert found["trace"]["standard_error"] <= 0.02 * found["trace"]["value"]
    monkeypatch.setattr(evaluation_run, "run_evaluation", slowly)
    assert run(["evaluate", str(checkpoint), *options]) == 0
    assert "note: trace was measured by vmap: a Conv is unknown" in capsys.readouterr().out.splitlines()
    # One shard after the other, of those that are known to be wanted: eight for the first look.
    shards = found["trace"]["n"] // 256
    assert [done for done, _ in told] == list(range(1, shards + 1))
    assert told[0] == (1, FIRST_LOOK // 256)
    assert told[-1] == (shards, shards)
    assert 8 <= shards < 16

    assert run(["evaluate", str(checkpoint), *options, "-e", "trace.repeats=3"]) == 2
    message = "evaluate.trace.target_rse: 0.02 does not go with repeats 3"
    assert message in capsys.readouterr().err


def test_without_a_choice_the_runs_own_or_the_usual(
    finished: Sweep, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = evaluate(capsys, str(checkpoint))
    assert [part["kind"] for part in facts["evaluations"]] == ["excess_loss"]
    assert facts["evaluations"][0]["config"]["sentences"] == 8
    # A kind's settings are the run's own, where nothing else is said.
    facts = evaluate(capsys, str(checkpoint), "-e", "excess_loss.seed=3")
    assert facts["evaluations"][0]["config"]["sentences"] == 8
    assert facts["evaluations"][0]["config"]["seed"] == 3


def test_a_run_that_its_sweep_has_forgotten(
    finished: Sweep, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = metrics(evaluate(capsys, str(checkpoint), *FEW))
    copied = tmp_path / "kept"
    shutil.copytree(checkpoint.parents[1], copied)
    assert metrics(evaluate(capsys, "kept/checkpoints/step-00000002", *FEW)) == expected
    (copied / "run.json").unlink()
    assert run(["evaluate", "kept/checkpoints/step-00000002"]) == 2
    assert "leave the checkpoint in its run's folder, or write it with" in capsys.readouterr().err


def test_another_language(checkpoint: Path, language_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = evaluate(capsys, str(checkpoint), *FEW)
    other = evaluate(capsys, str(checkpoint), *FEW, "--language", str(language_file), "--set", "seed=1")
    assert own["language"] != other["language"]
    assert metrics(own) != metrics(other)


def test_tasks_of_labelled_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Hugging Face folder, a corpus, and a local table beside the file that names it."""
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    local_glue.write(tmp_path / "sst2", "sst2")
    file = tmp_path / "corpus.yaml"
    file.write_text(
        f"kind: corpus\nsource: {local_texts.files()['jsonl']}\nlength: 16\nheld_out: 0.2\n"
        "tokenizer: {train: wordpiece, vocabulary: 300}\ntasks: [{glue: sst2, source: sst2}]\n"
    )
    language = load_language(file)
    to_huggingface(EncoderConfig(shape="8/2/2/16").build(language, seed=0), tmp_path / "model")
    here = ["model", "--language", "corpus.yaml"]
    usual = evaluate(
        capsys, *here, "-e", "held_out_loss.sentences=8", "-e", "probe.train=40", "-e", "probe.test=16"
    )
    assert {"held_out_loss", "probe/sst2", "majority/sst2"} <= set(metrics(usual))
    assert metrics(usual)["majority/sst2"]["value"] == 0.5
    few = ("seeds=1", "epochs=1", "forgetting=0")
    tuned = evaluate(capsys, *here, *(part for setting in few for part in ("-e", f"finetune.{setting}")))
    assert metrics(tuned)["finetune/sst2"]["n"] == 1
    assert run(["evaluate", *here, "-e", "probe.train=41", "-e", "probe.test=16"]) == 2
    asked = "evaluate.probe.train: 41 examples are asked for, and task 'sst2' has no more than 40 of 'train'"
    assert asked in capsys.readouterr().err
    opened = open_model("model", storage=tmp_path, language=file, overrides=())
    chosen, _ = choose_evaluations((), opened)
    assert (chosen["probe"].tasks, chosen["probe"].train) == (("sst2",), None)
    (tmp_path / "sst2" / "train-00000-of-00001.parquet").write_bytes(b"no table")
    assert run(["evaluate", *here, "-e", "probe"]) == 2
    assert "is no table that can be read" in capsys.readouterr().err


def test_errors_name_the_remedy(
    checkpoint: Path, folder: Path, language_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    here = str(checkpoint)
    other = ["--language", str(language_file)]
    for arguments, message in (
        (["empty"], "empty: holds no model; name a checkpoint"),
        (["nowhere/at/all"], "another folder; nor is there a folder of that name"),
        (["nothing"], "'nothing': no such run in"),
        (["model"], "model: a Hugging Face model does not say its language"),
        (["model", *other, "--set", "vocabulary=12"], "the model has 8 words, the language 12"),
        ([here, *other, "--set", "vocabulary=12"], "the model has vocabulary_size 8, its language 12"),
        ([here, "--set", "seed=1"], "--set: changes the file of --language, which is missing"),
        ([here, "-e", "probe", "--set", "probe.train=512"], "what is measured; write -e probe.train=512"),
        ([here, "--set", "evaluate.trace.inputs=[1, 2]"], "write -e 'trace.inputs=[1, 2]'"),
        ([here, *other, "--set", "evaluate.probe.seeds=1"], "write -e probe.seeds=1"),
        (
            [here, "-e", "trase"],
            "--evaluate trase: evaluate.trase: unknown evaluation — did you mean",
        ),
        ([here, "-e", "trace.inptus=4"], "evaluate.trace.inptus: unknown field — did you mean 'inputs'?"),
        ([here, "-e", "trace.inputs=none"], "evaluate.trace.inputs: 'none' is not valid; it must be a whole"),
        ([here, "-e", "trace="], "--evaluate trace=: not of the form KIND or KIND.FIELD=VALUE"),
        ([here, "-e", "trace.inputs"], "not of the form KIND or KIND.FIELD=VALUE"),
        ([here, "-e", "probe.tasks=[Z]"], "evaluate.probe.tasks"),
        ([here, "-e", "trace.inputs=[1"], "trace.inputs: not valid YAML"),
        ([here, "--device", "abacus"], "--device abacus: no such device; use cpu, cuda or cuda:1"),
        ([here, "--device", "cuda:7"], "--device cuda:7: "),
        ([here, "-o", "no/such/out.json"], "--output no/such/out.json: there is no folder no/such"),
    ):
        assert run(["evaluate", *arguments]) == 2, arguments
        assert message in capsys.readouterr().err
