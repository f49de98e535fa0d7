"""Claims in a sweep file: strict, and no part of any run's identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.tiny_sweeps import AXES, BASE, HEAD
from raysweep.errors import ConfigError
from raysweep.sweep import Sweep
from raysweep.sweep.claims import TOLERANCE, Algorithm, Beats, Flatter
from raysweep.sweep.stored import load_stored, save_sweep

Load = Callable[..., Sweep]

CLAIMS = """\
tolerance: 0.05
claims:
  - flatter: {task: "2", least: 0.3}
  - longer: {}
  - larger: {tolerance: 0.001}
  - algorithm: {better: adamw, than: sgd-lr0.5}
  - beats: lookup_table
"""
#: The algorithms that the claims compare.
BOTH = """\
include:
  - algorithm: {kind: sgd, lr: 0.5}
  - algorithm: {kind: lookup_table}
"""


def test_claims_are_read_in_their_order(load: Load) -> None:
    questions = load(BASE + AXES + BOTH + CLAIMS).questions
    assert questions.tolerance == 0.05
    abouts = [claim.about for claim in questions.claims]
    assert abouts[0] == Flatter(task="2", least=0.3)
    assert abouts[2].tolerance == 0.001
    assert abouts[3] == Algorithm(better="adamw", than="sgd-lr0.5")
    assert abouts[4] == Beats()
    plain = load().questions
    assert (plain.tolerance, plain.claims) == (TOLERANCE, None)
    assert plain.within(0.1).tolerance == 0.1
    assert plain.within(None) == plain


def test_they_change_no_identity_and_are_kept_with_the_launch(load: Load, tmp_path: Path) -> None:
    plain, asked = (load(BASE + AXES + BOTH + text, storage=tmp_path / "r") for text in ("", CLAIMS))
    assert [run.run_id for run in plain.runs] == [run.run_id for run in asked.runs]
    save_sweep(asked)
    assert load_stored(asked.directory).questions == asked.questions


def test_a_tolerance_of_null_is_the_default(load: Load) -> None:
    assert load(BASE + AXES + "tolerance: null\n").questions.tolerance == TOLERANCE == 0.02


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("claims: [{flatter: {tsk: A}}]", "claims[0].flatter.tsk: unknown field — did you mean 'task'?"),
        ("claims: [{flater: {}}]", "claims[0].flater: unknown field — did you mean 'flatter'?"),
        (
            "claims: [{x: {}}]",
            "claims[0].x: unknown field — known: algorithm, beats, flatter, larger, longer",
        ),
        ("claims: [{flatter: {}, longer: {}}]", "a claim is exactly one of flatter, longer"),
        ("claims: [{}]", "a claim is exactly one of"),
        ("claims: [{algorithm: {better: adamw}}]", "s.yaml:10:22: claims[0].algorithm.than: missing"),
        ("claims: flatter", "'flatter' is not valid; it must be a list, e.g. [{flatter: {task: A}}]"),
        ("claims: [{algorithm: {better: sam, than: sam}}]", "is the algorithm of `better`"),
        ("claims: [flatter]", "'flatter' is not valid; it must be a mapping, e.g. {flatter: {task: A}}"),
        ("claims: [{flatter: trace}]", "'trace' is not valid; it must be a mapping, e.g. {task: A}"),
        ("claims: [{algorithm: sam}]", "must be a mapping, e.g. {better: adamw, than: sam}"),
        ("claims: [{beats: sam}]", "claims[0].beats: 'sam' is not valid; it must be 'lookup_table'"),
        ("claims: [{flatter: {level: run}}]", "claims[0].flatter.level: 'run' is not valid"),
        ("claims: {flatter: {}}", "claims: "),
        ("claims: [{larger: {least: 2}}]", "claims[0].larger.least: 2 is not valid; it must be at most 1"),
        ("tolerance: 0", "tolerance: 0 is not valid; it must be greater than 0"),
        ("tolerance: much", "tolerance: 'much' is not valid; it must be a number"),
    ],
)
def test_mistakes_are_named_with_their_place(load: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(BASE + AXES + text + "\n")
    assert said in str(caught.value)
    assert "s.yaml:" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "claims:\n  - flatter: {}\n  - flatter:\n      task: Z\n",
            "s.yaml:16:13: claims[1].flatter.task: 'Z' is no task of the language; it has 2",
        ),
        (
            "claims: [{algorithm: {better: adam, than: sgd}}]",
            "s.yaml:13:31: claims[0].algorithm.better: no run has the algorithm 'adam' — did you mean",
        ),
        (
            "claims: [{algorithm: {better: adamw, than: lookup_table}}]",
            "claims[0].algorithm.than: no run has the algorithm 'lookup_table'",
        ),
        (
            "claims: [{algorithm: {better: adamw, than: muon}}]",
            "claims[0].algorithm.than: no run has the algorithm 'muon'; the sweep trains with adamw, sgd",
        ),
        (
            "claims: [{longer: {}}, {flatter: {}}, {flatter: {level: all}}]",
            "s.yaml:13:39: claims[2]: the same claim as claims[1]; keep one",
        ),
    ],
)
def test_names_that_the_sweep_does_not_have_are_refused(load: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(BASE + AXES + BOTH + text)
    assert said in str(caught.value)


@pytest.mark.parametrize("claim", ["beats: lookup_table", "beats: {task: '2'}"])
def test_a_look_up_table_that_no_run_is_cannot_be_beaten(load: Load, claim: str) -> None:
    text = f"{BASE}{AXES}claims: [{{{claim}}}]\n"
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert str(caught.value) == (
        "s.yaml:10:18: claims[0].beats: the look-up table is none of the runs; "
        "add 'include: [{algorithm: {kind: lookup_table}}]'"
    )
    load(text + BOTH)
    # The algorithms are not known.
    with pytest.raises(ConfigError) as caught:
        load(text.replace("kind: adamw", "kind: adam"))
    assert "claims" not in str(caught.value)


@pytest.mark.parametrize(
    ("evaluate", "claim", "said"),
    [
        ("{}", "longer: {}", "the sweep measures no accuracy; add 'evaluate: {probe: {}}'"),
        ("{trace: {}}", "flatter: {}", "the sweep measures no accuracy; add 'evaluate: {probe: {}}'"),
        (
            "{probe: {}}",
            "flatter: {}",
            "nothing that the sweep measures is flatness; add 'evaluate: {trace: {}}'",
        ),
        ("{probe: {}}", "longer: {}", ""),
        ("{probe: {}, trace: {common: null}}", "flatter: {}", ""),
    ],
)
def test_a_claim_that_nothing_answers_is_noted(load: Load, evaluate: str, claim: str, said: str) -> None:
    sweep = load(f"{HEAD}evaluate: {evaluate}\nclaims: [{{{claim}}}]\n")
    assert sweep.notes == ((f"claims[0] gets no verdict: {said}",) if said else ())


MEASURED = HEAD + AXES
TABLE = "include: [{algorithm: {kind: lookup_table}}]\n"
#: Evaluations, claims, and what is said; "" where the names are right.
NAMED = [
    ("{trace: {}}", "flatter: {metric: trace}", ""),
    ("{trace: {}}", "flatter: {metric: trace_enlarged}", ""),
    ("{trace: {common: null}}", "flatter: {metric: trace_enlarged}", "the sweep has trace, trace/{group}"),
    ("{trace: {}}", "flatter: {metric: trase}", "'trase' is no measure of flatness — did you mean 'trace'?"),
    ("{trace: {}, excess_loss: {}}", "flatter: {metric: excess_loss}", "'excess_loss' is no measure of"),
    ("{excess_loss: {}}", "flatter: {metric: trace}", "nothing that the sweep measures is flatness; add"),
    ("{few: {kind: trace, inputs: 9}}", "flatter: {metric: few/trace}", ""),
    ("{few: {kind: trace, inputs: 9}}", "flatter: {metric: trace}", "did you mean 'few/trace'?"),
    ("{sharpness: {which: [sam]}}", "flatter: {metric: sharpness/sam_first_order}", ""),
    ("{sharpness: {which: [sam]}}", "flatter: {metric: sharpness/asam}", "did you mean 'sharpness/sam'?"),
    ("{spectrum: {}}", "flatter: {metric: spectrum/hessian/1}", ""),
    ("{spectrum: {}}", "flatter: {metric: spectrum/hesian/1}", "did you mean 'spectrum/hessian/"),
    ("{probe: {}}", "longer: {accuracy: probe}", ""),
    ("{probe: {}}", "beats: {accuracy: prob}", "'prob' is no accuracy — did you mean 'probe'?; the sweep"),
    ("{probe: {train: [32, 64]}}", "larger: {accuracy: probe}", "did you mean 'probe_area'?"),
    ("{probe: {train: [32, 64]}}", "larger: {accuracy: probe_area}", ""),
    ("{few: {kind: probe, train: 32}, probe: {}}", "longer: {accuracy: few}", ""),
    ("{trace: {}}", "longer: {accuracy: probe}", "the sweep measures no accuracy; add 'evaluate: {probe"),
]  # fmt: skip


@pytest.mark.parametrize(("evaluate", "claim", "said"), NAMED)
def test_metrics_are_those_that_the_sweep_measures(load: Load, evaluate: str, claim: str, said: str) -> None:
    text = f"{MEASURED}evaluate: {evaluate}\nclaims:\n  - {claim}\n{TABLE}"
    if not said:
        load(text)
        return
    with pytest.raises(ConfigError) as caught:
        load(text)
    kind, field = claim.partition(":")[0], claim.partition("{")[2].partition(":")[0]
    column = 5 + claim.index(field) + len(field) + 2
    assert str(caught.value).startswith(f"s.yaml:11:{column}: claims[0].{kind}.{field}: ")
    assert said in str(caught.value)


WRONG = """\
tolerance: 0
claims:
  - flatter: {tsk: "2", metric: trase}
  - algorithm: {better: adam}
  - flatter
  - {longer: {}, larger: {task: "2"}}
  - larger: {task: "7", least: none}
  - beats: sam
  - algorithm: {better: adamw, than: muon, tolerance: -1}
  - longer: {accuracy: prob}
"""


def test_a_claim_with_a_mistake_hides_no_names(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load(MEASURED + "evaluate: {trace: {}, probe: {}}\n" + WRONG)
    said = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert sorted(said) == [
        "claims[0].flatter.metric",
        "claims[0].flatter.tsk",
        "claims[1].algorithm.than",
        "claims[2]",
        "claims[3]",
        "claims[4].larger.least",
        "claims[4].larger.task",
        "claims[5].beats",
        "claims[6].algorithm.than",
        "claims[6].algorithm.tolerance",
        "claims[7].longer.accuracy",
        "tolerance",
    ]


def test_names_are_told_with_mistakes_of_runs(load: Load) -> None:
    """Languages, evaluations and algorithms are right, and no run can be made."""
    text = MEASURED.replace("16/2/2/32", "16/3/2/32") + "evaluate: {trace: {}}\nclaims:\n"
    claims = (
        "  - flatter: {metric: trase}\n  - larger: {task: Z}\n  - algorithm: {better: adamw, than: muon}\n"
    )
    with pytest.raises(ConfigError) as caught:
        load(text + claims)
    assert [line.split(": ")[1] for line in str(caught.value).splitlines()] == [
        "model.shape",
        "claims[0].flatter.metric",
        "claims[1].larger.task",
        "claims[2].algorithm.than",
    ]
    with pytest.raises(ConfigError) as caught:
        load(text + claims.replace("muon", "sgd") + "include: [{algorithm: {kind: sgd, lrr: 1}}]\n")
    assert "algorithm.than" not in str(caught.value)


def test_other_mistakes_are_told_alone(load: Load) -> None:
    """Languages and algorithms are not known if a section is wrong."""
    text = (BASE + AXES).replace("states: 4", "states: no") + "claims: [{flatter: {task: Z}}]"
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert "language.states" in str(caught.value)
    assert "claims" not in str(caught.value)


@pytest.mark.parametrize(("old", "new"), [("lr: 1e-3", "lr: .inf"), ("steps: 100", "steps: 1e400")])
def test_a_number_that_is_not_read_misnames_no_task(load: Load, old: str, new: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load((BASE + AXES).replace(old, new) + "claims: [{flatter: {task: '2'}}]\n")
    [line] = str(caught.value).splitlines()
    assert "is not a finite number" in line


def test_names_are_told_with_mistakes_that_touch_no_run(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load(BASE + AXES + "claims: [{flatter: {task: Z}}]\nkep: last\ntolerancy: 3\n")
    said = [line.split(": ")[1] for line in str(caught.value).splitlines()]
    assert said == ["claims[0].flatter.task", "kep", "tolerancy"]


def test_tasks_are_those_of_all_languages(load: Load) -> None:
    text = BASE.replace("tasks: [2]", "tasks: [2, 3]").replace("{counted: {n: 3}}", "{excess_loss: {}}")
    both = text + "zip: [{language.seed: [0, 1], language.tasks: [[2], [4]]}]\n"
    for task in ("2", "4"):
        load(f'{both}claims: [{{flatter: {{task: "{task}"}}}}]')
    with pytest.raises(ConfigError, match=r"task: '3' is no task of the language; it has 2, 4"):
        load(f'{both}claims: [{{flatter: {{task: "3"}}}}]')
    none = text.replace("tasks: [2, 3]", "tasks: []")
    with pytest.raises(ConfigError, match=r"task: '3': the language has no downstream tasks"):
        load(f'{none}claims: [{{flatter: {{task: "3"}}}}]')
