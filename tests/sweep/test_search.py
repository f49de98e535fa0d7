"""The `search` of a sweep file: what is drawn, what is refused, and which runs it makes."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.errors import ConfigError
from raysweep.sweep import make_plan
from raysweep.sweep.search import Domain, Known, Search, suggestion
from raysweep.sweep.stored import load_stored, save_sweep, select

#: The tiny sweep with an evaluation that may be searched.
BASE = tiny.HEAD + "evaluate: {excess_loss: {sentences: 8}, probe: {train: 8, test: 8, projection: 4}}\n"
SEARCH = """\
search:
  metric: excess_loss
  samples: 4
  space:
    algorithm.lr: {loguniform: [1e-4, 1e-2]}
    model.shape: {choice: [16/1/1/32, 16/2/2/32]}
"""


def ids(sweep: Any) -> list[str]:
    return [run.run_id for run in sweep.runs]


def of(**fields: Any) -> Search:
    return Search.decode(
        {"metric": "m", "mode": "min", "samples": 5, "space": {"seed": {"choice": [1]}}} | fields
    )


@pytest.mark.parametrize(
    ("domain", "kind"),
    [
        ({"uniform": [-1, 3]}, float),
        ({"loguniform": [1e-4, 1e-2]}, float),
        ({"int_uniform": [3, 6]}, int),
        ({"int_loguniform": [1, 1000]}, int),
    ],
)
def test_what_is_drawn_lies_in_its_range_as_it_should(domain: dict[str, Any], kind: type) -> None:
    search = of(space={"seed": domain})
    values = [search.draw(k)["seed"] for k in range(2000)]
    low, high = search.space["seed"].range
    assert all(type(value) is kind and low <= value <= high for value in values)
    scale = math.log if search.space["seed"].log else float
    mean = sum(map(scale, values)) / len(values)
    top = high + 1 if kind is int else high
    expected = (scale(low) + scale(top)) / 2 - (0.5 if domain == {"int_uniform": [3, 6]} else 0)
    # Four standard errors of the mean of 2,000 uniform numbers, and what rounding down takes of logarithms.
    slack = 0.25 if "int_loguniform" in domain else 0.0
    assert mean == pytest.approx(expected, abs=4 * (scale(top) - scale(low)) / math.sqrt(12 * 2000) + slack)
    # Numbers are short, so that names are.
    assert max(len(f"{value:g}") for value in values) <= 11
    assert len(set(values)) > (3 if domain == {"int_uniform": [3, 6]} else 300)


def test_choices_and_both_ends_of_whole_numbers_are_drawn_alike() -> None:
    search = of(space={"a": {"choice": ["x", {"kind": "y"}, 3]}, "b": {"int_uniform": [1, 3]}})
    drawn = [search.draw(k) for k in range(3000)]
    for path in ("a", "b"):
        counts = Counter(str(one[path]) for one in drawn)
        assert len(counts) == 3
        assert min(counts.values()) > 1000 - 5 * math.sqrt(3000 * 2 / 9)


def test_a_sample_depends_on_its_number_seed_and_path_alone() -> None:
    space = {"a": {"uniform": [0, 1]}, "b": {"uniform": [0, 1]}}
    few, many = of(space=space, samples=3), of(space=dict(reversed(space.items())), samples=30)
    assert [few.draw(k) for k in range(3)] == [many.draw(k) for k in range(3)]
    assert few.draw(0)["a"] != few.draw(0)["b"]
    assert few.draw(0) != few.draw(1) != of(space=space, seed=1).draw(1)


@pytest.mark.parametrize("ends", [[1e-300, 1e300], [-1e308, 1e308], [1e-308, 2e-308], [0.99999, 1.00001]])
def test_ranges_may_be_extreme(ends: list[float]) -> None:
    for name in ("uniform", "loguniform"):
        if name == "uniform" or ends[0] > 0:
            domain = Domain.decode({name: ends})
            assert len({domain.at(u / 10) for u in range(10)}) == 10
            assert all(ends[0] <= domain.at(u / 10) <= ends[1] for u in range(10))


def test_samples_take_the_place_of_the_grid(load: Any) -> None:
    sweep = load(BASE + SEARCH)
    assert [run.axes for run in sweep.runs] == [dict(one) for one in sweep.samples]
    assert [run.algorithm.lr for run in sweep.runs] == [
        sweep.search.draw(k)["algorithm.lr"] for k in range(4)
    ]
    assert sweep.axes == ("algorithm.lr", "model.shape")
    assert sweep.search.mode == "min"
    assert len(set(ids(sweep))) == 4
    # A run of a search is the same run as without one.
    one = load(
        BASE.replace("lr: 1e-3", f"lr: {sweep.samples[2]['algorithm.lr']}").replace(
            "16/1/1/32", sweep.samples[2]["model.shape"]
        )
    )
    assert ids(one) == [ids(sweep)[2]]


def test_more_samples_add_to_those_that_are_there(load: Any) -> None:
    few, more = load(BASE + SEARCH), load(BASE + SEARCH, "search.samples=9")
    assert ids(more)[:4] == ids(few)
    assert len(more.runs) == 9
    assert len(load(BASE + SEARCH, "search=null").runs) == 1


def test_every_sample_is_trained_with_every_seed(load: Any) -> None:
    sweep = load(BASE + SEARCH + "axes: {seed: [0, 1]}\ninclude: [{algorithm: {kind: lookup_table}}]\n")
    lone = load(BASE + SEARCH)
    pairs = [(dict(s), seed) for s in lone.samples for seed in (0, 1)]
    found = [({p: run.axes[p] for p in s}, run.seed) for run, (s, _) in zip(sweep.runs, pairs, strict=False)]
    assert found == pairs
    assert len(sweep.runs) == 9
    assert not sweep.runs[-1].trains


def test_evaluations_know_all_models_that_a_search_may_come_to(load: Any) -> None:
    """Else another sample could make the traces of all others be measured again."""
    text = BASE.replace("evaluate: {", "evaluate: {trace: {inputs: 8}, ") + SEARCH.replace("16/2/2", "32/2/2")
    sweep = load(text, "search.samples=1")
    assert sweep.runs[0].evaluations == load(text).runs[0].evaluations
    assert sweep.runs[0].evaluations["trace"].enlarged_to is not None


def test_a_sweep_with_a_search_is_found_by_its_name(load: Any) -> None:
    sweep = load(BASE + SEARCH)
    save_sweep(sweep)
    again = load_stored(sweep.directory)
    assert (again.search, again.samples, again.runs) == (sweep.search, sweep.samples, sweep.runs)


@pytest.mark.parametrize(
    ("before", "after", "place", "message"),
    [
        (
            "metric: excess_loss",
            "metric: exces_loss",
            "s.yaml:8:11: search.metric",
            "did you mean 'excess_loss'?",
        ),
        (
            "metric: excess_loss",
            "metric: probe/7",
            "8:11: search.metric",
            "the sweep measures excess_loss, loss, probe/2",
        ),
        ("  samples: 4\n", "", "7:1: search.samples", "missing — add 'samples: 20'"),
        ("samples: 4", "samples: 0", "9:12: search.samples", "at least 1"),
        ("samples: 4", "sample: 4", "9:3: search.sample", "did you mean 'samples'?"),
        ("loguniform", "logunifrom", "11:20: search.space.algorithm.lr.logunifrom", "unknown field"),
        ("[1e-4, 1e-2]", "[1e-2, 1e-4]", "11:", "begin with the smaller one"),
        ("[1e-4, 1e-2]", "[0, 1e-2]", "11:", "begin above 0"),
        ("{loguniform: [1e-4, 1e-2]}", "[1, 2]", "11:", "must be a mapping"),
        ("{loguniform: [1e-4, 1e-2]}", "{}", "11:", "exactly one of choice, uniform"),
        ("algorithm.lr", "algorithm.lrr", "algorithm.lrr", "unknown field — did you mean 'lr'?"),
        ("algorithm.lr", "evaluate.lr", "11:5: search.space.evaluate.lr", "is the same for all runs"),
        (
            "algorithm.lr: {loguniform: [1e-4, 1e-2]}",
            "pretrain.steps: {choice: [100]}",
            "11:5:",
            "cannot be searched",
        ),
        ("16/2/2/32]", "16/3/2/32]", "12:39: model.shape", "heads"),
        (
            "algorithm.lr: {loguniform: [1e-4, 1e-2]}",
            "model.dropout: {uniform: [0, 2]}",
            "11:20: model.dropout",
            "drawn from this range, 1.865 is not valid; it must be less than 1.0",
        ),
        (
            "samples: 4",
            "samples: 4\n  scheduler: pbt",
            "10:14: search.scheduler",
            "one configuration from start",
        ),
        ("samples: 4", "samples: 4\n  scheduler: ahsa", "10:14: search.scheduler", "did you mean 'asha'?"),
        (
            "samples: 4",
            "samples: 4\n  scheduler: {kind: asha, grace: 3}",
            "10:27: search.scheduler.grace",
            "unknown field",
        ),
        ("loguniform", "logunif", "11:20: search.space.algorithm.lr.logunif", "did you mean 'loguniform'?"),
        ("samples: 4", "samples: 4\n  algorithm: tpe", "10:14: search.algorithm", "one of random, optuna"),
        (
            "search:",
            "axes: {algorithm.lr: [1]}\nsearch:",
            "12:5: search.space.algorithm.lr",
            "already an axis",
        ),
        (
            "search:",
            "axes: {seed: [0, 1]}\nsearch:\n  scheduler: asha",
            "9:14: search.scheduler",
            "asha compares single",
        ),
        (
            "search:",
            "resources: {engine: lanes}\nsearch:\n  scheduler: asha",
            "9:14: search.scheduler",
            "lanes",
        ),
    ],
)
def test_a_search_that_is_wrong_is_refused_at_its_place(
    load: Any, before: str, after: str, place: str, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load(BASE + SEARCH.replace(before, after))
    [line] = [line for line in str(error.value).splitlines() if place in line and message in line][:1] or [
        pytest.fail(str(error.value))
    ]
    assert line


SPACE = SEARCH[SEARCH.index("    algorithm.lr") :]


@pytest.mark.parametrize(
    ("space", "place"),
    [
        (SPACE.replace("[1e-4, 1e-2]", "[1e-2, 1e-4]"), "search.space.algorithm.lr"),
        (SPACE.replace("algorithm.lr", "algorithm.lrr"), "algorithm.lrr"),
        (SPACE.replace("algorithm.lr", "algorihm.lr"), "search.space.algorihm.lr"),
        (SPACE.replace("16/2/2/32", "16/3/2/32"), "model.shape"),
        ("    {}\n", "search.space"),
        (f"{SPACE}kep: last\n", "kep"),
    ],
)
@pytest.mark.parametrize("shape", [", shape: 16/1/1/32", ""])
def test_a_wrong_metric_is_told_beside_a_wrong_space(load: Any, space: str, place: str, shape: str) -> None:
    text = BASE.replace(", shape: 16/1/1/32", shape) + SEARCH.replace(SPACE, space)
    with pytest.raises(ConfigError) as error:
        load(text.replace("excess_loss\n", "exces_loss\n") + "claims: [flatter: {task: Z}]\n")
    said = dict(line.split(": ", 2)[1:] for line in str(error.value).splitlines())
    assert said["search.metric"].startswith("'exces_loss' is not measured — did you mean 'excess_loss'?; the")
    assert said["claims[0].flatter.task"].startswith("'Z' is no task of the language")
    # A shape that is searched is not missing.
    missing = {"model.shape"} if not shape and space == "    {}\n" else set()
    assert said.keys() - {"search.metric", "claims[0].flatter.task"} == {place} | missing
    with pytest.raises(ConfigError) as error:
        load(text)
    assert "search.metric" not in str(error.value)


@pytest.mark.parametrize(
    ("section", "searched"),
    [
        ("evaluate: {excess_loss: {sentencez: 8}}\n", "algorithm.lrr: {choice: [1]}"),
        ("", "language.tasks: {choice: [[3]]}, algorithm.lrr: {choice: [1]}"),
    ],
)
def test_a_metric_that_may_be_measured_is_not_told(load: Any, section: str, searched: str) -> None:
    """Nobody knows what a wrong evaluation measures, or which tasks a language has that is searched."""
    head = BASE if not section else tiny.HEAD + section
    with pytest.raises(ConfigError) as error:
        load(f"{head}search: {{metric: probe/3, samples: 4, space: {{{searched}}}}}\n")
    assert "search.metric" not in str(error.value)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (
            SPACE,
            "    {}\n",
            "{} is not valid; it must be at least 1 long, e.g. {algorithm.lr: {loguniform: [0.0001, 0.01]}}",
        ),
        (SPACE, "    lr\n", "must be a mapping, e.g. {algorithm.lr: {loguniform: [0.0001, 0.01]}}"),
        (
            "{loguniform: [1e-4, 1e-2]}",
            "[1, 2]",
            "[1, 2] is not valid; it must be a mapping, e.g. {loguniform: [",
        ),
        (f"  space:\n{SPACE}", "", "missing — add 'space: {algorithm.lr: {loguniform: [0.0001, 0.01]}}'"),
    ],
)
def test_what_a_space_looks_like_is_said(load: Any, before: str, after: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(BASE + SEARCH.replace(before, after))
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ("pretrain.batch_size: {uniform: [1, 9]}", "it must be a whole number, e.g. 100"),
        ("algorithm.lr: {uniform: [-1, 1]}", "it must be greater than 0.0"),
    ],
)
def test_a_range_that_fits_no_field_is_told_once(load: Any, space: str, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        load(BASE + SEARCH.replace(SPACE, f"    {space}\n"))
    [line] = str(error.value).splitlines()
    assert f": {space.partition(':')[0]}: drawn from this range, " in line
    assert line.endswith(said)


def test_a_metric_that_a_claim_may_name_may_be_searched(load: Any) -> None:
    sweep = load(BASE + SEARCH, "search.metric=probe/2")
    assert sweep.search.mode == "max"
    assert load(BASE + SEARCH, "search.metric=probe/2", "search.mode=min").search.mode == "min"


def test_an_override_of_what_is_searched_says_how(load: Any) -> None:
    with pytest.raises(ConfigError, match=r"write --set 'search.space.algorithm.lr={choice: \[1\]}'"):
        load(BASE + SEARCH, "algorithm.lr=1")
    sweep = load(
        BASE + SEARCH, "search.space.algorithm.lr={choice: [0.5]}", "search.space.seed={choice: [3]}"
    )
    assert {(run.algorithm.lr, run.seed) for run in sweep.runs} == {(0.5, 3)}


def test_without_optuna_the_extra_is_named(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raysweep.sweep.expansion.has_optuna", lambda: False)
    assert load(BASE + SEARCH)
    with pytest.raises(
        ConfigError, match=r"search.algorithm: optuna is not installed; .*'raysweep\[search\]'"
    ):
        load(BASE + SEARCH, "search.algorithm=optuna")


def test_a_selection_of_runs_chooses_no_samples(load: Any) -> None:
    sweep = load(BASE + SEARCH, "search.algorithm=optuna", "search.samples=15")
    assert (len(sweep.samples), sweep.to_choose) == (10, 5)
    assert select(sweep, [ids(sweep)[3]]).to_choose == 0


def test_a_plan_says_what_is_chosen_later(load: Any) -> None:
    sweep = load(BASE + SEARCH, "search.algorithm=optuna", "search.samples=15", "search.scheduler=asha")
    plan = make_plan(sweep)
    assert plan.to_dict()["samples_to_choose"] == 5
    assert "       5 later     samples that the search chooses by results" in plan.lines()
    assert any("10 of 15" in note for note in plan.notes)
    assert any("asha stops samples early" in note for note in plan.notes)
    assert not plan.finished


def test_tpe_chooses_by_the_results_and_nothing_else() -> None:
    search = of(space={"x": {"uniform": [0, 1]}, "k": {"choice": ["a", "b"]}}, algorithm="optuna", samples=60)
    known: list[Known] = []
    for k in range(60):
        settings = search.draw(k) if k < search.drawn else suggestion(search, known)
        assert k < search.drawn or settings == suggestion(search, list(known))
        loss = (settings["x"] - 0.3) ** 2 + (0.5 if settings["k"] == "b" else 0.0)
        known.append(Known(settings=settings, value=loss))
    chosen = known[search.drawn :]
    assert sum(one.settings["k"] == "a" for one in chosen) > 35  # at random 25±3.5
    assert sum(abs(one.settings["x"] - 0.3) for one in chosen) / 50 < 0.15  # at random 0.29±0.03
    # Failed, stopped and unfinished samples are taken as such.
    others = [
        Known(settings=known[0].settings, failed=True),
        Known(settings=known[1].settings),
        Known(settings=known[2].settings, value=0.1, step=5),
    ]
    assert suggestion(search, [*known, *others]) != suggestion(search, known)
    assert suggestion(search, known, attempt=1) != suggestion(search, known)
