"""The grid: which runs a sweep has, which of them are one, and what makes a run the same run."""

from __future__ import annotations

import itertools
import json
import pickle
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.errors import ConfigError
from raysweep.languages.hmm import HMMConfig
from raysweep.sweep import RunSpec, make_plan


def ids(sweep: Any) -> list[str]:
    return [run.run_id for run in sweep.runs]


def test_axes_multiply_with_the_first_outermost(load: Any) -> None:
    sweep = load(tiny.BASE + "axes: {algorithm.lr: [0.1, 0.2], seed: [3, 4], model.dropout: [0.0, 0.5]}")
    found = [(run.algorithm.lr, run.seed, run.model.dropout) for run in sweep.runs]
    assert found == list(itertools.product([0.1, 0.2], [3, 4], [0.0, 0.5]))
    assert len(set(ids(sweep))) == 8


def test_without_axes_there_is_one_run(load: Any) -> None:
    sweep = load(tiny.BASE)
    assert [run.axes for run in sweep.runs] == [{}]
    assert sweep.runs[0].seed == 0


def test_axes_of_a_zip_group_walk_together(load: Any) -> None:
    text = "zip:\n  - {model.shape: [8/1/1/8, 16/1/1/8], algorithm.lr: [0.1, 0.2]}\naxes: {seed: [0, 1]}\n"
    found = [(run.seed, run.model.shape, run.algorithm.lr) for run in load(tiny.BASE + text).runs]
    pairs = [("8/1/1/8", 0.1), ("16/1/1/8", 0.2)]
    assert found == [(seed, *pair) for seed in (0, 1) for pair in pairs]


def test_include_adds_to_the_base_and_exclude_takes_from_the_grid(load: Any) -> None:
    text = tiny.BASE + tiny.AXES + "include:\n  - {seed: 9, algorithm: {lr: 0.5}}\n  - {algorithm.lr: 0.25}\n"
    sweep = load(
        text + "exclude: [{model.shape: 16/2/2/32, seed: 1}, {model: {kind: other, shape: no}}]",
        "exclude=[{model.shape: 16/2/2/32, seed: 1}]",
    )
    found = [(run.model.shape, run.seed, run.algorithm.lr) for run in sweep.runs]
    assert found == [
        ("16/1/1/32", 0, 1e-3),
        ("16/1/1/32", 1, 1e-3),
        ("16/2/2/32", 0, 1e-3),
        ("16/1/1/32", 9, 0.5),
        ("16/1/1/32", 0, 0.25),
    ]
    # The axes' columns hold what the included run has there, and what else it changes tells it apart.
    assert sweep.runs[3].axes == {"model.shape": "16/1/1/32", "seed": 9, "algorithm.lr": 0.5}


def test_exclude_may_take_what_would_be_wrong(load: Any) -> None:
    text = tiny.BASE + "axes: {model.shape: [12/2/1/8, 12/5/1/8]}\n"
    with pytest.raises(ConfigError, match="5 heads"):
        load(text)
    assert len(load(text + "exclude: [{model: {shape: 12/5/1/8}}]").runs) == 1


def test_a_whole_section_can_be_an_axis(load: Any) -> None:
    text = (
        tiny.BASE
        + "axes: {algorithm: [{lr: 0.5}, {kind: adamw, eps: 1e-3}, {kind: lookup_table}], seed: [0, 1]}\n"
    )
    sweep = load(text)
    # Laid on the base where the kind is the same, in its place where it is another.
    trained = [(run.algorithm.lr, run.algorithm.eps) for run in sweep.runs if run.trains]
    assert trained == [(0.5, 1e-6), (0.5, 1e-6), (1e-3, 1e-3), (1e-3, 1e-3)]
    table = [run for run in sweep.runs if not run.trains]
    assert len(table) == 1
    assert table[0].milestones == (0,)
    assert table[0].axes == {"algorithm": {"kind": "lookup_table"}}
    assert table[0].run_id.startswith("lookup_table-")


def test_steps_are_milestones_of_one_run(load: Any) -> None:
    text = (
        tiny.BASE.replace(", milestones: [50, 100]", "")
        + "axes: {seed: [0, 1], pretrain.steps: [30, 60, 10]}"
    )
    sweep = load(text)
    assert [run.seed for run in sweep.runs] == [0, 1]
    assert all(run.milestones == (10, 30, 60) for run in sweep.runs)
    assert sweep.runs[0].pretrain.steps == 60
    assert sweep.runs[0].axes == {"seed": 0}
    assert sweep.axes == ("seed",)
    assert make_plan(sweep).trainings_saved == 4
    assert sweep.notes == ()


def test_points_that_turn_out_the_same_are_said(load: Any) -> None:
    sweep = load(tiny.BASE + "axes: {model: [{shape: 8/1/1/8}, {shape: 8/1/1/8, norm: pre}]}\n")
    assert len(sweep.runs) == 1
    assert sweep.notes == (
        f"2 combinations of values are the same run, {sweep.runs[0].run_id}; it runs once",
    )


def test_evaluations_of_parameters_are_not_asked_of_the_look_up_table(load: Any) -> None:
    text = tiny.BASE.replace("{counted: {n: 3}}", "{counted: , weighted: {n: 2}}")
    sweep = load(text + "include: [{algorithm: {kind: lookup_table}}]")
    assert [list(run.evaluations) for run in sweep.runs] == [["counted", "weighted"], ["counted"]]


def test_identity_is_that_of_the_meaning(load: Any) -> None:
    (one,) = ids(load(tiny.BASE))
    reordered = """\
resources: {workers: 2, max_concurrent: 3}
seed: 0
evaluate: {counted: {n: 7}}
pretrain: {milestones: [10, 70], mask: one, checkpoint_every: 5, batch_size: 8, steps: 70}
algorithm: {lr: 0.001, kind: adamw, betas: [0.9, 0.98]}
model: {shape: "16/1/1/32", kind: encoder}
language: {kind: hmm, length: 4, seed: 0, tasks: [2], blocks: 2, states: 4, vocabulary: 6}
description: the same
name: another
"""
    assert ids(load(reordered, storage="elsewhere")) == [one]


@pytest.mark.parametrize(
    "override",
    [
        "seed=1",
        "algorithm.lr=2e-3",
        "model.dropout=0.2",
        "pretrain.batch_size=9",
        "pretrain.mask=0.5",
        "language.seed=1",
    ],
)
def test_identity_changes_with_whatever_changes_the_weights(load: Any, override: str) -> None:
    (one,), (other,) = load(tiny.BASE).runs, load(tiny.BASE, override).runs
    assert one.run_id != other.run_id
    assert one.training_identity != other.training_identity


def test_a_new_axis_value_adds_runs_and_renames_none(load: Any) -> None:
    before = ids(load(tiny.BASE + tiny.AXES))
    after = ids(load(tiny.BASE + tiny.AXES, "axes.seed=[2, 0, 1]", "axes.algorithm.warmup_steps=[1000, 5]"))
    assert len(after) == 12
    assert set(before) < set(after)


def test_identities_are_unlike_names_and_stay_as_they_are(load: Any) -> None:
    (spec,) = load(tiny.BASE).runs
    assert len(spec.training_identity) == 64
    assert spec.run_id == f"16-1-1-32-adamw-s0-{spec.training_identity[:10]}"


def test_a_spec_survives_the_way_to_a_worker(load: Any) -> None:
    runs = load(tiny.BASE + tiny.AXES + "include: [{algorithm: {kind: lookup_table}}]").runs
    assert len(runs) == 5
    for spec in runs:
        other = RunSpec.decode(json.loads(json.dumps(spec.encode())))
        assert other == spec
        assert other.run_id == spec.run_id
        assert pickle.loads(pickle.dumps(spec)) == spec  # noqa: S301


def test_a_sweep_survives_pickling(load: Any) -> None:
    sweep = load()
    other = pickle.loads(pickle.dumps(sweep))  # noqa: S301
    assert other.runs == sweep.runs
    assert other.variant({"seed": 5}).run_id == sweep.variant({"seed": 5}).run_id


def test_variants_are_runs_of_the_base(load: Any) -> None:
    sweep = load()
    spec = sweep.variant({"model.shape": "16/2/2/32", "seed": 1})
    assert spec.run_id == sweep.runs[3].run_id
    assert spec.axes == {"model.shape": "16/2/2/32", "seed": 1}
    with pytest.raises(
        ConfigError, match=r"setting algorithm.lrr: algorithm.lrr: unknown field — did you mean 'lr'\?"
    ):
        sweep.variant({"algorithm.lrr": 1})
    with pytest.raises(ConfigError, match="setting sed: sed: unknown field"):
        sweep.variant({"sed": 1})


def test_a_language_is_built_once_for_all_its_runs(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    original = HMMConfig.build
    monkeypatch.setattr(HMMConfig, "build", lambda self: built.append(self) or original(self))
    sweep = load(tiny.BASE + tiny.AXES + "include: [{language: {seed: 1}}, {language: {seed: 0}, seed: 7}]")
    assert len(built) == 2
    languages = {id(sweep.language(run)) for run in sweep.runs}
    assert len(languages) == len(built) == 2


def test_a_run_is_found_by_its_id(load: Any) -> None:
    sweep = load()
    assert sweep.run(sweep.runs[2].run_id) is sweep.runs[2]
    with pytest.raises(ConfigError, match=r"has no run .* did you mean"):
        sweep.run(sweep.runs[2].run_id + "0")
