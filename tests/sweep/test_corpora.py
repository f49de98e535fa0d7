"""The sweeps on real text: loaded without reading a word of it; the same path on local files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tokenizers
import torch

from helpers import local_glue, local_texts
from raysweep.errors import ConfigError
from raysweep.evaluation import ModelSubject
from raysweep.evaluation.run import run_evaluation
from raysweep.models import EncoderConfig
from raysweep.sweep import RunSpec, Sweep, evaluation_identity, load_sweep, make_plan
from raysweep.training.data import training_set

SWEEPS = Path(__file__).parents[2] / "sweeps"

SMALL = [
    "language.length=16",
    "language.held_out=0.2",
    "language.tokenizer={train: wordpiece, vocabulary: 300}",
]


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "corpus"


def local(name: str, *settings: str, tmp_path: Path):
    source = ["language.source=" + str(local_texts.files()["jsonl"]), "language.revision=null"]
    overrides = [*source, "language.rows_per_document=1", *settings]
    return load_sweep(SWEEPS / f"{name}.yaml", overrides, storage=tmp_path / "results")


@pytest.mark.parametrize(("name", "runs"), [("openwebtext", 1), ("bookcorpus", 2)])
def test_the_shipped_sweeps_plan_without_tokenising(
    name: str, runs: int, tmp_path: Path, cache: Path
) -> None:
    words = json.dumps({"[UNK]": 0, "[SEP]": 1, **{f"w{k}": k + 2 for k in range(30520)}})
    model = tokenizers.models.WordPiece(json.loads(words), unk_token="[UNK]")
    (tmp_path / "tokenizer").mkdir()
    tokenizers.Tokenizer(model).save(str(tmp_path / "tokenizer" / "tokenizer.json"))
    sweep = local(name, f"language.tokenizer={tmp_path / 'tokenizer'}", tmp_path=tmp_path)
    assert len(sweep.runs) == runs
    assert len(make_plan(sweep).to_do) == runs
    assert not cache.exists()
    for spec in sweep.runs:
        assert (spec.pretrain.batch_size, spec.pretrain.mask, spec.algorithm.warmup_steps) == (
            4096,
            0.15,
            5000,
        )
        assert sweep.language(spec).vocabulary_size == 30522
        # Trace and loss are of the masks that are trained.
        for kind in ("trace", "held_out_loss"):
            assert spec.evaluations[kind].encode()["mask"] == spec.pretrain.mask


def test_preparing_a_sweep_checks_what_is_known_then(tmp_path: Path, cache: Path) -> None:
    sweep = local("openwebtext", *SMALL, tmp_path=tmp_path)
    with pytest.raises(
        ConfigError, match=r"evaluate.held_out_loss.sentences: 16384 are asked for, \d+ are held"
    ):
        sweep.prepare()
    assert cache.exists()
    # Now it is known at once.
    with pytest.raises(ConfigError, match=r"evaluate.held_out_loss.sentences: 16384 are asked for"):
        local("openwebtext", *SMALL, tmp_path=tmp_path)
    local("openwebtext", *SMALL, "evaluate.held_out_loss.sentences=50", tmp_path=tmp_path).prepare()


def test_what_needs_exact_conditionals_is_refused_on_text(tmp_path: Path, cache: Path) -> None:
    for setting, message in (
        ("evaluate.excess_loss={}", "evaluate.excess_loss: nobody knows the exact conditionals of a Corpus"),
        ("algorithm={kind: lookup_table}", "algorithm.kind: 'lookup_table' answers with exact conditionals"),
        ("evaluate.probe={}", "evaluate.probe.tasks: the language has no downstream tasks"),
    ):
        with pytest.raises(ConfigError, match=message):
            local("openwebtext", *SMALL, setting, tmp_path=tmp_path)
    assert not cache.exists()


def _with_task(folder: Path, *settings: str) -> Sweep:
    """Load a sweep file in `folder` on a corpus with the task in folder/data."""
    local_texts.write(folder / "texts", local_texts.documents())
    (folder / "sweep.yaml").write_text(
        "name: local\nlanguage: {kind: corpus, source: texts/*.txt, length: 16, held_out: 0.2,\n"
        "  tokenizer: {train: wordpiece, vocabulary: 300},\n"
        "  tasks: [{glue: rte, source: data}]}\n"
        "model: {kind: encoder, shape: 64/1/1/64}\nalgorithm: {kind: adamw}\n"
        "pretrain: {steps: 2, batch_size: 4, mask: 0.15}\n"
        "evaluate: {probe: {tasks: [rte], train: 30, test: 16}}\n"
    )
    return load_sweep(folder / "sweep.yaml", settings, storage=folder / "results")


def test_tasks_are_beside_the_file_and_identify_evaluations_but_no_run(tmp_path: Path, cache: Path) -> None:
    local_glue.write(tmp_path / "data", "rte")
    (run,) = _with_task(tmp_path).runs
    assert run.language.tasks[0].source == str(tmp_path / "data")
    (bare,) = _with_task(tmp_path, "language.tasks=[]", "evaluate={held_out_loss: {}}").runs
    assert run.training_identity == bare.training_identity
    assert RunSpec.decode(run.encode()) == run
    local_glue.write(tmp_path / "data", "rte", seed=7)
    (other,) = _with_task(tmp_path).runs
    assert other.training_identity == run.training_identity
    former, now = (evaluation_identity(spec.evaluations["probe"]) for spec in (run, other))
    assert former != now
    assert not cache.exists()


def test_preparing_a_sweep_prepares_and_checks_its_tasks(tmp_path: Path, cache: Path) -> None:
    local_glue.write(tmp_path / "data", "rte")
    sweep = _with_task(tmp_path)
    sweep.prepare()
    assert len(list((cache.parent / "tasks").glob("*.npz"))) == 1
    message = r"evaluate.probe.train: 41 examples .* task 'rte' has no more than 40 of 'train'; ask for fewer"
    with pytest.raises(ConfigError, match=message):
        _with_task(tmp_path, "evaluate.probe.train=41")


def test_a_probe_of_a_regression_is_refused(tmp_path: Path, cache: Path) -> None:
    local_glue.write(tmp_path / "data", "rte")
    source = local_glue.write(tmp_path / "numbers", "stsb")
    with pytest.raises(ConfigError, match=r"evaluate.probe.tasks: 'stsb' is a regression, and the probe"):
        _with_task(
            tmp_path, f"language.tasks=[{{glue: stsb, source: {source}}}]", "evaluate.probe.tasks=[stsb]"
        )
    assert not cache.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("language.tasks=[{glue: rte, sauce: data}]", r"language.tasks\[0\].sauce: unknown field"),
        (
            "language.tasks=[{glue: rte, source: ./none.csv}]",
            r"language.tasks\[0\].source: task 'rte': there is no file",
        ),
        (
            "language.tasks=[{glue: glue}]",
            r"language.tasks\[0\].glue: 'glue' is not valid; it must be one of",
        ),
        ("language.tasks=[rte]", r"language.tasks\[0\]: 'rte' is not valid; it must be a mapping"),
        ("evaluate.probe.tasks=[rta]", "tasks.*unknown task 'rta' — did you mean 'rte'"),
    ],
)
def test_wrong_tasks_are_refused(settings: str, message: str, tmp_path: Path, cache: Path) -> None:
    local_glue.write(tmp_path / "data", "rte")
    with pytest.raises(ConfigError, match=message):
        _with_task(tmp_path, settings)


def test_local_sources_are_beside_the_file_that_names_them(tmp_path: Path, cache: Path) -> None:
    local_texts.write(tmp_path / "texts", local_texts.documents())
    text = (
        "name: local\nlanguage: {kind: corpus, source: texts/*.txt, length: 16, held_out: 0.2,\n"
        "  tokenizer: {train: wordpiece, vocabulary: 300}}\n"
        "model: {kind: encoder, shape: 64/1/1/64}\nalgorithm: {kind: adamw}\n"
        "pretrain: {steps: 2, batch_size: 4, mask: 0.15}\n"
    )
    (tmp_path / "sweep.yaml").write_text(text)
    (spec,) = load_sweep(tmp_path / "sweep.yaml", storage=tmp_path / "results").runs
    assert spec.language.source == str(tmp_path / "texts" / "*.txt")
    (tmp_path / "sweep.yaml").write_text(text.replace("texts/*.txt", "./nothing.txt"))
    with pytest.raises(ConfigError, match=r"sweep.yaml:2:34: language.source: there is no file"):
        load_sweep(tmp_path / "sweep.yaml", storage=tmp_path / "results")


def test_finite_data_and_the_gap_on_text(tmp_path: Path, cache: Path) -> None:
    """Numbers of rows are known once the corpus is prepared; without `sentences`, all rows are the set."""
    fields = [*SMALL, "evaluate.held_out_loss.sentences=30", "evaluate.held_out_loss.split=both"]
    sweep = local("openwebtext", *fields, tmp_path=tmp_path)
    sweep.prepare()
    [spec] = sweep.runs
    corpus = sweep.language(spec)
    rows = corpus.distinct
    assert rows is not None
    wrong = f"pretrain.sentences={rows + 1}"
    with pytest.raises(
        ConfigError, match=f"pretrain.sentences: {rows + 1:,} are asked for, the language has"
    ):
        local("openwebtext", *fields, "pretrain.batch_size=8", wrong, tmp_path=tmp_path)
    few = ["pretrain.batch_size=8", "pretrain.sentences=20"]
    with pytest.raises(ConfigError, match=r"held_out_loss.sentences: 30 are asked for, the training has 20"):
        local("openwebtext", *fields, *few, tmp_path=tmp_path)
    training = training_set(corpus, spec.pretrain, seed=0)
    assert training.size == rows
    every = training.some(torch.arange(rows), seed=3)
    assert sorted(every.tolist()) == sorted(corpus.sample(rows, seed=1).tolist())
    finite = training_set(corpus, spec.pretrain.model_copy(update={"sentences": 20}), seed=0)
    taken = corpus.sample_latent(20, seed=finite.seed).latents["row"]
    assert len(set(taken.tolist())) == 20
    assert torch.equal(finite.drawn(0, 20), corpus.sample(20, seed=finite.seed))
    assert sorted(finite.drawn(20, 20).tolist()) == sorted(finite.drawn(0, 20).tolist())
    model = EncoderConfig(shape="8/1/1/16").build(corpus, seed=0)
    subject = ModelSubject(corpus, model, training=training)
    found = [m.name for m in run_evaluation(spec.evaluations["held_out_loss"], subject).metrics]
    assert found == ["held_out_loss", "train_loss", "generalisation_gap"]
    with pytest.raises(ConfigError, match=r"held_out_loss.split: every sentence of training is fresh"):
        load_sweep(SWEEPS / "scaling.yaml", ["evaluate={held_out_loss: {split: both}}", "claims=null"])


def test_a_text_of_one_long_line_is_a_note_of_the_sweep(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "text.txt"
    path.write_text("many words " * 50, encoding="utf-8")
    (tmp_path / "s.yaml").write_text(
        "name: s\n"
        f"language: {{kind: corpus, source: {path}, length: 8, "
        "tokenizer: {train: wordpiece, vocabulary: 100}}\n"
        "model: {kind: encoder, shape: 16/1/1/32}\nalgorithm: {kind: adamw}\n"
        "pretrain: {steps: 4, batch_size: 8}\naxes: {seed: [0, 1]}\n"
    )
    sweep = load_sweep(tmp_path / "s.yaml", storage=tmp_path / "results")
    [note] = [note for note in make_plan(sweep).notes if "text.txt" in note]
    assert note.startswith(f"language.source: {path} has no blank line, so all of that is one document; ")
    assert not cache.exists()
