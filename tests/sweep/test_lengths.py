"""Runs whose rate depends on the number of steps: no shared training, no extension, and both are said."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.sweep import make_plan

COSINE = "algorithm.schedule=cosine"
STEPS = "axes: {seed: [0, 1], pretrain.steps: [30, 60, 10]}"


@pytest.fixture
def text() -> str:
    return str(tiny.BASE.replace(", milestones: [50, 100]", ""))


@pytest.mark.parametrize("override", [COSINE, "algorithm.warmup=0.1", "algorithm={kind: sgd}"])
def test_an_axis_of_steps_makes_runs_of_its_own(load: Any, text: str, override: str) -> None:
    sweep = load(text + STEPS, override)
    assert [(run.seed, run.pretrain.steps) for run in sweep.runs] == [
        (seed, steps) for seed in (0, 1) for steps in (30, 60, 10)
    ]
    assert all(run.milestones == (run.pretrain.steps,) for run in sweep.runs)
    assert len({run.run_id for run in sweep.runs}) == 6
    assert sweep.axes == ("seed", "pretrain.steps")
    assert sweep.runs[1].axes == {"seed": 0, "pretrain.steps": 60}
    assert make_plan(sweep).trainings_saved == 0
    [note] = sweep.notes
    label = sweep.runs[0].algorithm.label
    assert note == (
        f"pretrain.steps: the rate of '{label}' depends on the number of steps, so its runs of 10, 30, 60 "
        "steps are separate trainings"
    )


def test_milestones_are_moments_of_one_run(load: Any, text: str) -> None:
    sweep = load(text, COSINE, "pretrain.milestones=[10, 50, 100]")
    [run] = sweep.runs
    assert run.milestones == (10, 50, 100)
    assert sweep.notes == ()


def test_only_the_end_is_part_of_the_identity(load: Any, text: str) -> None:
    def identity(*overrides: str) -> str:
        [run] = load(text, *overrides).runs
        return str(run.training_identity)

    one = identity(COSINE)
    assert identity(COSINE, "pretrain.milestones=[40, 100]") == one
    assert identity(COSINE, "pretrain.checkpoint_every=7") == one
    assert identity(COSINE, "pretrain.steps=101") != one
    assert identity("pretrain.steps=101") == identity() != one


def test_points_of_one_length_are_one_run(load: Any, text: str) -> None:
    axes = "axes: {pretrain.milestones: [[10, 100], [50, 100]]}"
    sweep = load(text + axes, COSINE)
    [run] = sweep.runs
    assert run.milestones == (10, 50, 100)
    assert run.axes == {}


def test_each_algorithm_of_a_sweep_is_taken_for_itself(load: Any, text: str) -> None:
    axes = "axes: {algorithm: [{kind: adamw}, {kind: sgd}], pretrain.steps: [30, 60]}"
    sweep = load(text + axes)
    assert [(r.algorithm.kind, r.pretrain.steps, r.milestones) for r in sweep.runs] == [
        ("adamw", 60, (30, 60)),
        ("sgd", 30, (30,)),
        ("sgd", 60, (60,)),
    ]
    assert sweep.axes == ("algorithm", "pretrain.steps")
    assert len(sweep.notes) == 1


def test_raising_steps_starts_a_new_run_and_says_why(load: Any, text: str) -> None:
    [spec] = load(text, COSINE).runs
    ledger = load(text, COSINE).ledger()
    tiny.finish(ledger.run(spec), spec)
    assert make_plan(load(text, COSINE)).finished
    [longer] = make_plan(load(text, COSINE, "pretrain.steps=300")).runs
    assert (longer.state, longer.resume_step, longer.train_to) == ("new", 0, 300)
    assert longer.reason == (
        "pretrain.steps 100 → 300; the stored run of 100 steps cannot be extended or cut, because the "
        "learning rate depends on the number of steps"
    )
    # With another seed, it is another run altogether.
    [other] = make_plan(load(text, COSINE, "pretrain.steps=300", "seed=1")).runs
    assert other.reason == "pretrain.steps 100 → 300, seed 0 → 1"


def test_raising_steps_under_a_constant_rate_extends(load: Any, text: str) -> None:
    [spec] = load(text).runs
    tiny.finish(load(text).ledger().run(spec), spec)
    [longer] = make_plan(load(text, "pretrain.steps=300", "pretrain.milestones=[100, 300]")).runs
    assert (longer.state, longer.resume_step, longer.train_to) == ("resume", 100, 300)


def test_a_run_that_is_unlike_in_more_than_its_length_is_not_said_to_be_too_short(
    load: Any, text: str
) -> None:
    [spec] = load(text, COSINE, "pretrain.batch_size=9").runs
    tiny.finish(load(text, COSINE).ledger().run(spec), spec)
    [run] = make_plan(load(text, COSINE)).runs
    assert run.reason == "pretrain.batch_size 9 → 8"


def test_tasks_that_are_not_there_are_refused_where_they_stand(load: Any, text: str) -> None:
    with pytest.raises(Exception, match=r"algorithm\.tasks\[1\]: unknown task '3'; the language has 2"):
        load(text, "algorithm={kind: adversarial, tasks: [2, 3]}")
    (run,) = load(text, "algorithm={kind: adversarial, tasks: [2]}").runs
    assert run.algorithm.tasks == ("2",)


def test_an_algorithm_option_names_its_line(load: Any, text: str) -> None:
    wrong = text.replace("{kind: adamw, lr: 1e-3}", "{kind: adamw, warmup_steps: 20, warmup: 0.1}")
    with pytest.raises(Exception, match=r"s\.yaml:4:\d+: algorithm\.warmup: 0\.1 of all steps and"):
        load(wrong)
