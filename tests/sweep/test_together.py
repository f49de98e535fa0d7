"""Sizes of a sweep seen as one shape: found when it is loaded, and no reason to measure anything again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.sweep import RunSpec, arrays_identity, evaluation_identity, load_sweep, make_plan, missing_now
from raysweep.sweep.stored import load_stored, save_sweep

TRACE = tiny.HEAD + "evaluate: {counted: {}, trace: {inputs: 16}}\n"
SWEEPS = Path(__file__).parents[2] / "sweeps"


def sizes(*shapes: str) -> str:
    return f"axes: {{model.shape: [{', '.join(shapes)}], seed: [0, 1]}}\n"


def seen_as(sweep: Any) -> set[str | None]:
    return {run.evaluations["trace"].enlarged_to for run in sweep.runs if run.trains}


def test_all_runs_are_seen_as_the_smallest_shape_that_holds_them(load: Any) -> None:
    sweep = load(TRACE + sizes("16/1/1/32", "32/2/2/100") + "include: [{algorithm: {kind: lookup_table}}]")
    assert seen_as(sweep) == {"32/2/2/100"}
    assert sweep.notes == ()
    assert [list(run.evaluations) for run in sweep.runs if not run.trains] == [["counted"]]
    # So it is where a run is decoded elsewhere, and where the sweep is found again.
    assert RunSpec.decode(sweep.runs[0].encode()).evaluations["trace"].enlarged_to == "32/2/2/100"
    save_sweep(sweep)
    assert seen_as(load_stored(sweep.directory)) == {"32/2/2/100"}


@pytest.mark.parametrize("setting", ["common=null", "enlarged_to=64/4/2/256"])
def test_what_the_file_says_stands(load: Any, setting: str) -> None:
    sweep = load(TRACE + sizes("16/1/1/32", "32/2/2/64"), f"evaluate.trace.{setting}")
    assert seen_as(sweep) == {"64/4/2/256" if "64" in setting else None}
    assert sweep.notes == ()


def test_one_size_is_left_as_it_is(load: Any) -> None:
    sweep = load(TRACE + "axes: {model.dropout: [0.0, 0.1], algorithm.lr: [0.1, 0.2]}\n")
    assert seen_as(sweep) == {None}
    assert sweep.notes == ()


def test_why_sizes_stay_apart_is_noted_once(load: Any) -> None:
    sweep = load(TRACE + sizes("16/1/1/32", "32/1/1/64"))
    assert seen_as(sweep) == {None}
    [note] = sweep.notes
    assert "the heads of 16/1/1/32 are 16 wide" in note
    assert note in make_plan(sweep).notes


def test_a_larger_size_gives_another_record_of_the_same_measurement(load: Any) -> None:
    one = load(TRACE + sizes("16/1/1/32", "32/2/2/64"))
    spec = one.runs[0]
    run, before = one.ledger().run(spec), spec.evaluations["trace"]
    tiny.finish(run, spec)
    assert missing_now(run, spec).finished

    more = load(TRACE + sizes("16/1/1/32", "32/2/2/64", "64/4/3/80"))
    other = more.run(spec.run_id)
    after = other.evaluations["trace"]
    assert (before.enlarged_to, after.enlarged_to) == ("32/2/2/64", "64/4/3/128")
    # What was recorded of the smaller shape is not taken for this one, and what was measured is.
    assert evaluation_identity(after) != evaluation_identity(before)
    assert arrays_identity(after) == arrays_identity(before)
    assert missing_now(run, other).evaluations == ((50, "trace"), (100, "trace"))
    assert missing_now(run, other).checkpoints == ()
    assert run.evaluation(50, after) is None
    assert run.evaluation(50, before) is not None


def test_the_main_jobs_sizes_are_seen_as_the_largest() -> None:
    for name, shape in {"scaling": "192/12/2/768", "scaling_hmm": "64/4/2/256"}.items():
        assert seen_as(load_sweep(SWEEPS / f"{name}.yaml")) == {shape}


def test_every_evaluation_may_take_something_from_the_models(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def among(self: tiny.CountedConfig, models: list[Any]) -> tuple[tiny.CountedConfig, str | None]:
        asked.append([model.shape for model in models])
        return self.model_copy(update={"n": len(models)}), "there are two"

    monkeypatch.setattr(tiny.CountedConfig, "among", among)
    sweep = load(tiny.BASE + sizes("16/1/1/32", "32/1/1/64") + "include: [{algorithm: {kind: lookup_table}}]")
    assert asked == [["16/1/1/32", "32/1/1/64"]]
    assert {run.evaluations["counted"].n for run in sweep.runs} == {2}
    assert sweep.notes == ("there are two",)
