"""Removal by null, whole numbers with an exponent, ranges, colons without a space: in files and overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.errors import ConfigError
from raysweep.sweep import load_sweep

BOTH = tiny.BASE.replace("{counted: {n: 3}}", "{counted: {n: 3}, weighted: {n: 2}}")


def errors(load: Any, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides)
    return str(caught.value).splitlines()


def test_null_removes_an_evaluation(load: Any) -> None:
    (run,) = load(BOTH, "evaluate.weighted=null").runs
    assert list(run.evaluations) == ["counted"]
    (run,) = load(BOTH, "evaluate.weighted=~", "evaluate.weighted.n=4").runs
    assert run.evaluations["weighted"].n == 4
    # The name of an evaluation is removed as its kind is.
    named = BOTH.replace("weighted: {n: 2}", "twice: {kind: counted}")
    assert list(load(named, "evaluate.twice=null").runs[0].evaluations) == ["counted"]


def test_null_removes_an_axis(load: Any) -> None:
    sweep = load(tiny.BASE + tiny.AXES, "axes.seed=null", "axes.model.shape=null")
    assert [dict(run.axes) for run in sweep.runs] == [{}]
    sweep = load(tiny.BASE + tiny.AXES, "axes.seed=null", "seed=3")
    assert {run.seed for run in sweep.runs} == {3}
    assert sweep.axes == ("model.shape",)


def test_null_in_a_file_removes_what_it_extends(load: Any, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(BOTH + tiny.AXES)
    text = "extends: base.yaml\nname: child\nevaluate: {weighted: null}\naxes:\n  seed: null\n"
    sweep = load(text)
    assert list(sweep.runs[0].evaluations) == ["counted"]
    assert sweep.axes == ("model.shape",)
    assert sweep.config["evaluate"] == {"counted": {"n": 3}}
    # A key with nothing behind it still means the defaults.
    sweep = load(text.replace("weighted: null", "weighted: "))
    assert sweep.runs[0].evaluations["weighted"].n == 1


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "evaluate.wighted=null",
            "evaluate.wighted: null removes an evaluation, but there is none of this name — did you mean "
            "'weighted'?",
        ),
        (
            "axes.algorithm.kind=null",
            "axes.algorithm.kind: null removes an axis, but there is none of this name; there: model.shape, "
            "seed",
        ),
    ],
)
def test_null_that_removes_nothing(load: Any, tmp_path: Path, override: str, message: str) -> None:
    assert errors(load, BOTH + tiny.AXES, override) == [f"--set {override}: {message}"]
    (tmp_path / "base.yaml").write_text(BOTH + tiny.AXES)
    path = override.removesuffix("=null")
    section, _, name = path.partition(".")
    found = errors(load, f"extends: base.yaml\n{section}:\n  {name}: null\n")
    assert found == [f"s.yaml:3:3: {message}"]


def test_null_in_a_file_that_extends_nothing_is_no_evaluation(load: Any) -> None:
    (found,) = errors(load, BOTH.replace("weighted: {n: 2}", "weighted: null"))
    assert "evaluate.weighted: null is not a mapping of settings; write {} for the defaults" in found
    text = BOTH.replace("weighted: {n: 2}", "weighted: ")
    assert load(text).runs[0].evaluations["weighted"].n == 1


@pytest.mark.parametrize(("written", "meant"), [("1e2", 100), ("1e3", 1000), ("2.5e2", 250), ("1E+2", 100)])
def test_whole_numbers_may_have_an_exponent(load: Any, written: str, meant: int) -> None:
    (run,) = load(tiny.BASE, f"pretrain.steps={written}", f"pretrain.milestones=[50, {written}]").runs
    assert run.pretrain.steps == meant
    assert run.pretrain.milestones == (50, meant)
    (run,) = load(tiny.BASE.replace("lr: 1e-3", "lr: 1e1"), f"seed={written}").runs
    assert run.seed == meant
    assert run.algorithm.lr == 10.0


@pytest.mark.parametrize("written", ["1.5", "100.0", "1e-2", "1e16"])
def test_other_numbers_are_not_whole(load: Any, written: str) -> None:
    (found,) = errors(load, tiny.BASE, f"pretrain.batch_size={written}")
    assert "it must be a whole number, e.g. 100" in found


def test_runs_are_what_they_were_whether_a_number_has_an_exponent(load: Any) -> None:
    (one,) = load(tiny.BASE.replace("lr: 1e-3", "lr: 1e0")).runs
    (other,) = load(tiny.BASE.replace("lr: 1e-3", "lr: 1.0")).runs
    assert one.run_id == other.run_id


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("algorithm={kind:sgd,lr:0.1}", ["'kind:sgd'", "'lr:0.1'"]),
        ("algorithm={kind: sgd, lr:0.1}", ["'lr:0.1'"]),
    ],
)
def test_yaml_wants_a_space_behind_a_colon(load: Any, override: str, keys: list[str]) -> None:
    found = errors(load, tiny.BASE, override)
    assert len(found) == len(keys)
    for line, key in zip(found, keys, strict=True):
        assert line.startswith(f"--set {override}: algorithm: {key}: YAML wants a space behind the colon: ")
    assert "'lr: 0.1'" in found[-1]


def test_a_colon_in_quotes_or_in_a_value_is_no_mistake(load: Any) -> None:
    (found,) = errors(load, tiny.BASE, 'algorithm={kind: adamw, "lr:0.1": }')
    assert "algorithm.lr:0.1: unknown field" in found


@pytest.mark.parametrize(
    ("values", "seeds"),
    [("0..3", [0, 1, 2, 3]), ("[0..1, 7]", [0, 1, 7]), ("5..5", [5]), ("[3, 8..9]", [3, 8, 9])],
)
def test_a_range_is_its_whole_numbers(load: Any, values: str, seeds: list[int]) -> None:
    assert [run.seed for run in load(tiny.BASE, f"axes.seed={values}").runs] == seeds
    sweep = load(tiny.BASE + f"axes: {{seed: {values}}}\n")
    assert [run.axes["seed"] for run in sweep.runs] == seeds
    zipped = f"zip: [{{seed: {values}, algorithm.lr: {[0.1 * (k + 1) for k in range(len(seeds))]}}}]\n"
    assert [run.seed for run in load(tiny.BASE + zipped).runs] == seeds


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("axes.seed=4..0", "axes.seed: '4..0' goes down; write '0..4'"),
        ("axes.seed=0..100000", "axes.seed: '0..100000' has 100,001 values, more than 100,000; use fewer"),
        ("axes.seed=0..999999999999999999", "values, more than 100,000; use fewer"),
        ("axes.seed=[0..3, 2]", "axes.seed: 2 is listed twice; the runs would be the same"),
        ("axes.seed=0..x", "axes.seed: '0..x' is not a list of values, e.g. [0, 1, 2] or 0..2"),
        ("seed=0..4", "seed: '0..4' is not a whole number of at least 0; several seeds are an axis: "),
    ],
)
def test_ranges_that_are_none(load: Any, override: str, message: str) -> None:
    (found,) = errors(load, tiny.BASE, override)
    assert message in found


def test_an_axis_that_is_overridden_by_a_range_is_told_as_one(load: Any) -> None:
    (found,) = errors(load, tiny.BASE + tiny.AXES, "seed=0..4")
    assert found.endswith("is an axis of this sweep; write --set axes.seed=0..4")


@pytest.mark.parametrize("given", ["seed=1", b"seed=1", {"seed": 1}, [("seed", 1)], None])
def test_overrides_that_are_no_list_of_texts_are_one_error(given: Any, tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny.BASE)
    with pytest.raises(ConfigError, match=r'^overrides: .* is not a list of texts such as \["seed=1"\]$'):
        load_sweep(tmp_path / "tiny.yaml", given, storage=tmp_path)
