"""Folders that runs start from: real checkpoints and exported models."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from helpers.tiny_sweeps import HEAD
from raysweep.errors import ConfigError
from raysweep.models.huggingface import to_huggingface
from raysweep.report.data import measurements
from raysweep.sweep import RunSpec, load_sweep
from raysweep.sweep.tidy import tidy
from raysweep.training import load_model, pretrain

from .conftest import Load

SHORT = HEAD.replace("{steps: 100, batch_size: 8, milestones: [50, 100]}", "{steps: 2, batch_size: 8}")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, RunSpec]:
    """A storage with a run of two steps of AdamW, and its model exported beside it."""
    place = tmp_path_factory.mktemp("trained")
    (place / "first.yaml").write_text(SHORT)
    sweep = load_sweep(place / "first.yaml", storage=place / "results")
    [spec] = sweep.runs
    run, language = sweep.ledger().run(spec), sweep.language(spec)
    pretrain(
        language=language,
        model=spec.model,
        algorithm=spec.algorithm,
        pretrain=spec.pretrain,
        seed=0,
        journal=run,
    )
    to_huggingface(load_model(run.checkpoint_directory(2), spec.model, language), place / "model")
    return place, spec


def second(load: Load, trained: tuple[Path, RunSpec], start: str, *overrides: str) -> RunSpec:
    """Return the run of another sweep that starts where `start` says."""
    text = SHORT.replace("name: tiny", "name: second")
    [run] = load(f"{text}init_from: {{{start}}}\n", *overrides, storage=trained[0] / "results").runs
    return run


def test_a_checkpoint_has_one_identity_however_it_is_named(load: Load, trained: tuple[Path, RunSpec]) -> None:
    place, spec = trained
    folder = place / "results" / "tiny" / "runs" / spec.run_id / "checkpoints" / "step-00000002"
    for optimizer in ("fresh", "keep"):
        by_name = second(load, trained, f"run: tiny/{spec.run_id}@2, optimizer: {optimizer}")
        by_folder = second(load, trained, f"run: {folder}, optimizer: {optimizer}")
        assert by_name.training_identity == by_folder.training_identity
        assert by_name.source is not None
        assert by_folder.source is not None
        assert by_name.source.label == by_folder.source.label == "tiny/adamw@2"
        assert set(by_name.source.content) == {"weights", *(["optimizer"] if optimizer == "keep" else [])}
        run = load_sweep("s.yaml", storage=place / "results").ledger().open(by_name.run_id)
        assert by_name.source.start(run).folder == by_folder.source.start(run).folder == folder
        by_name.source.start(run).check()


def test_a_model_of_transformers(load: Load, trained: tuple[Path, RunSpec]) -> None:
    model = trained[0] / "model"
    run = second(load, trained, f"run: {model}")
    assert run.source is not None
    assert (run.source.label, set(run.source.content)) == ("model", {"folder"})
    copy = shutil.copytree(model, trained[0] / "copy")
    # Its content counts, not its place; a relative path starts from the sweep file.
    Path("near").symlink_to(copy)
    assert second(load, trained, "run: ./near").training_identity == run.training_identity
    with pytest.raises(
        ConfigError, match=r"init_from.optimizer: keep needs a checkpoint, and .* holds a model"
    ):
        second(load, trained, f"run: {model}, optimizer: keep")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.shape=16/2/1/32", "its model.shape is '16/1/1/32', this run's '16/2/1/32'"),
        ("model.norm=post", "its model.norm is 'pre', this run's 'post'"),
        ("model.layer_norm_eps=1e-3", "its model.layer_norm_eps is 1e-05, this run's 0.001"),
        ("model.cls=true", "it holds an encoder; use model.kind: encoder without cls"),
        ("model={kind: lstm, shape: 16/1}", "it holds an encoder; use model.kind: encoder"),
        ("language.vocabulary=8", "the model has 6 words, the language 8"),
        ("language.length=3", r"it reads 4 positions, this run 3; .* or use model: {kind: huggingface"),
        ("model.vocabulary=faithful", "it has 6 words in 16 rows, this run 6 in 30528"),
    ],
)
def test_a_model_that_does_not_fit(
    load: Load, trained: tuple[Path, RunSpec], override: str, message: str
) -> None:
    overrides = [override, *(["language.tasks=[2]"] if "length" in override else [])]
    with pytest.raises(ConfigError, match=message):
        second(load, trained, f"run: {trained[0] / 'model'}", *overrides)


def test_a_checkpoint_away_from_its_run(load: Load, trained: tuple[Path, RunSpec], tmp_path: Path) -> None:
    place, spec = trained
    folder = place / "results" / "tiny" / "runs" / spec.run_id / "checkpoints" / "step-00000002"
    moved = shutil.copytree(folder, tmp_path / "step-00000002")
    with pytest.raises(ConfigError, match="leave the checkpoint in its run's folder, or write it with"):
        second(load, trained, f"run: {moved}")


def test_runs_from_replicates_are_replicates_in_the_table(load: Load) -> None:
    """The report tells configurations by the axes, and seeds are none of these."""
    text = SHORT + "evaluate: {counted: {}}\n"
    sources = load(text + "axes: {seed: [0, 1]}\n")
    for spec in sources.runs:
        run = sources.ledger().run(spec)
        pretrain(
            language=sources.language(spec),
            model=spec.model,
            algorithm=spec.algorithm,
            pretrain=spec.pretrain,
            seed=spec.seeds,
            journal=run,
        )
    ids = [spec.run_id for spec in sources.runs]
    walk = f"zip: [{{seed: [0, 1], init_from.run: [{ids[0]}@2, {ids[1]}@2]}}]\n"
    sweep = load(text + walk, "algorithm={kind: sgd}")
    ledger = sweep.ledger()
    for spec in sweep.runs:
        evaluation = spec.evaluations["counted"]
        ledger.run(spec).record_evaluation(2, evaluation, evaluation.combine([]), seconds=1.0)
    frame = tidy(ledger, sweep)
    assert list(frame["init_from.run"]) == ["adamw@2"] * 2
    assert sorted(frame["seed"]) == [0, 1]
    assert measurements(frame).variants == ("",)
    # Beside runs that start from nowhere they are a configuration of their own, without an axis too.
    entry = "include: [{seed: 1, init_from: {run: '*-adamw-s0-*@2', optimizer: keep}}]\n"
    both = load(text + entry)
    for spec in both.runs:
        evaluation = spec.evaluations["counted"]
        both.ledger().run(spec).record_evaluation(2, evaluation, evaluation.combine([]), seconds=1.0)
    frame = tidy(both.ledger(), both)
    assert set(frame["init_from"].dropna()) == {"adamw@2 keep"}
    assert measurements(frame).variants == ("", "from adamw@2 keep")
