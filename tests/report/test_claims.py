"""Verdicts on made-up sweeps with a known answer."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.populations import population
from raysweep.evaluation.held_out_loss import HELD_OUT_LOSS
from raysweep.report import Content, render
from raysweep.report.adjusted import adjusted_figure, caption
from raysweep.report.association import LEVELS
from raysweep.report.claims import default_claims, verdicts
from raysweep.report.claims_section import claims_section
from raysweep.report.data import measurements
from raysweep.report.parts import figures_kept
from raysweep.report.power import Pilot
from raysweep.report.ratio import Ratio
from raysweep.report.statistics import holm
from raysweep.report.verdict import Asked, Finding, Verdict, effect, judged
from raysweep.sweep.claims import Claim, Questions
from raysweep.sweep.tidy import cells


def judge(frame: pd.DataFrame, *claims: dict[str, Any]) -> list[Verdict]:
    return verdicts(measurements(frame), Questions(claims=tuple(map(Claim.model_validate, claims))))


def one(frame: pd.DataFrame, **claim: Any) -> Verdict:
    [found] = judge(frame, claim)
    return found


def finding(value: float, *, low: float, high: float, p: float) -> Finding:
    return Finding(
        name="one", value=value, low=low, high=high, p=p, standard_error=0.3, ratio=Ratio.student(9),
        clusters=10,
    )  # fmt: skip


def test_flatter_with_a_true_effect_is_supported() -> None:
    found = one(population(sizes=8, between=1, within=1, noise=0.002), flatter={"task": "A"})
    assert found.outcome == "supported"
    assert found.sentence.startswith("Task A: at equal loss, flatter goes with better: supported (ρ = −0.")
    assert "16 runs of 8 configurations" in found.sentence
    assert found.main.high < 0
    assert all(way.value < 0 for way in found.ways)
    assert found.detectable < 0.9


def test_flatter_with_the_contrary_is_contradicted() -> None:
    found = one(population(sizes=8, between=-1, within=-1, noise=0.002), flatter={})
    assert found.outcome == "contradicted"
    assert found.main.low > 0


def test_flatter_without_an_effect_is_not_supported() -> None:
    outcomes = [one(population(seed=k), flatter={}).outcome for k in range(8)]
    assert sum(o in ("supported", "contradicted", "mixed") for o in outcomes) <= 2
    assert "not enough data" in outcomes


def test_flatter_of_opposite_signs_is_mixed() -> None:
    frame = population(sizes=12, seeds=3, between=-2, within=4, noise=0.002)
    found = one(frame, flatter={})
    assert found.outcome == "mixed"
    parts = {part.name: part for part in found.parts}
    assert parts["between configurations"].low > 0
    assert parts["along the steps of a run"].high < 0
    assert "between configurations ρ = +" in found.sentence
    steps = one(frame, flatter={"level": "steps"})
    assert steps.outcome == "supported"


def test_no_relation_is_only_claimed_where_effects_are_excluded() -> None:
    wide = one(population(sizes=6, seed=3), flatter={"least": 0.3})
    assert wide.outcome == "not enough data"
    assert "80 % power" in wide.sentence
    narrow = one(population(sizes=10, seeds=3, seed=3), flatter={"level": "steps"})
    assert narrow.outcome == "no clear relation"
    assert "an effect of |ρ| = 0.50 is excluded" in narrow.sentence


def test_three_sizes_with_seeds_are_three_clusters() -> None:
    found = one(population(sizes=3, seeds=4), flatter={})
    assert found.main.clusters == 3
    assert found.main.ratio is not None
    assert found.main.ratio.dof < 2.5
    assert one(population(sizes=2, seeds=6), flatter={}).outcome == "not enough data"


@pytest.mark.parametrize(
    ("claim", "effect"),
    [("longer", {"longer": 0.03}), ("larger", {"larger": 0.03})],
)
def test_what_the_sweep_sets_by_doubling(claim: str, effect: dict[str, float]) -> None:
    true = one(population(**effect, noise=0.004), **{claim: {}})
    assert true.outcome == "supported"
    assert true.main.value == pytest.approx(0.03, abs=0.008)
    assert "accuracy per doubling" in true.sentence
    false = [one(population(noise=0.004, seed=k), **{claim: {}}).main for k in range(6)]
    assert sum(main.low < 0 < main.high for main in false) >= 5
    contrary = one(population(**{name: -value for name, value in effect.items()}, noise=0.004), **{claim: {}})
    assert contrary.outcome == "contradicted"


def test_longer_is_not_misled_by_larger_models_that_learn_faster() -> None:
    """At equal loss a larger model has had fewer steps: between runs, fewer steps go with better."""
    frames = [population(larger=0.05, faster=0.5, noise=0.004, seed=k) for k in range(4)]
    found = [one(frame, longer={}).main for frame in frames]
    assert sum(main.low < 0 < main.high for main in found) >= 3
    assert one(frames[0], larger={}).outcome == "supported"


def test_an_algorithm_is_better_than_another() -> None:
    claim = {"better": "adamw", "than": "adversarial"}
    both = ("adamw", "adversarial")
    frame = population(algorithms=both, sizes=3, better=0.05, noise=0.004)
    found = one(frame, algorithm=claim)
    assert found.outcome == "supported"
    assert found.main.low < 0.05 < found.main.high
    assert "at equal loss, adamw is better than adversarial" in found.sentence.lower()
    turned = one(frame, algorithm={"better": "adversarial", "than": "adamw"})
    assert turned.outcome == "contradicted"
    assert one(population(algorithms=both, sizes=3), algorithm=claim).outcome not in ("supported",)
    absent = one(frame, algorithm={"better": "adamw", "than": "sam"})
    assert absent.outcome == "not enough data"


@pytest.mark.parametrize("variant", ["adamw-wd0", "adamw-lr0.002-wd0"])
def test_an_algorithm_is_better_than_a_variant_of_itself(variant: str) -> None:
    """Without weight decay there may be no dropout either, so the models differ in their labels too."""
    frame = population(algorithms=("adamw", variant), sizes=3, better=0.05, noise=0.004)
    frame.loc[frame["algorithm"] == variant, "model"] += "-dropout0"
    found = one(frame, algorithm={"better": "adamw", "than": variant})
    assert found.outcome == "supported"
    assert found.main.low < 0.05 < found.main.high
    turned = one(frame, algorithm={"better": variant, "than": "adamw"})
    assert turned.main.value == pytest.approx(-found.main.value)


def test_trained_models_beat_the_look_up_table() -> None:
    above = one(population(lookup=0.5), beats="lookup_table")
    assert above.outcome == "supported"
    assert above.runs == 12
    assert one(population(lookup=0.9), beats="lookup_table").outcome == "contradicted"
    # The error of the look-up table counts, however sure the runs are.
    near = one(population(lookup=0.685, noise=0.0001, steps=(4000,)), beats="lookup_table")
    assert near.outcome not in ("supported", "contradicted")
    assert one(population(), beats="lookup_table").reason == "the look-up table has not been measured"


def test_without_the_entropy_the_held_out_loss_serves() -> None:
    frame = population(sizes=8, between=1, within=1, noise=0.002)
    for place in frame.index[frame["metric"] == "excess_loss"]:
        held_out = cells(HELD_OUT_LOSS.number(frame.loc[place, "value"] + 2.3, standard_error=1e-4, n=4096))
        frame.loc[place, list(held_out)] = pd.Series(held_out)
    found = one(frame, flatter={})
    assert found.outcome == "supported"
    assert "held-out loss" in found.test
    # Ranks do not mind a constant.
    before = one(population(sizes=8, between=1, within=1, noise=0.002), flatter={})
    assert found.main.value == pytest.approx(before.main.value)


def test_the_mean_over_tasks_is_the_default_and_unknown_names_say_so() -> None:
    frame = population(tasks=("A", "B"))
    assert "the mean of probe accuracy over A, B" in one(frame, flatter={}).test
    assert "probe accuracy, task B" in one(frame, flatter={"task": "B"}).test
    assert one(frame, flatter={"task": "Z"}).reason == "no such accuracy has been measured"
    assert "no sharpness/sam" in one(frame, flatter={"metric": "sharpness/sam"}).reason
    empty = frame[frame["metric"] == "entropy"]
    assert one(empty, longer={}).outcome == "not enough data"


def test_defaults_follow_from_what_varies() -> None:
    def kinds(frame: pd.DataFrame) -> list[str]:
        return [next(iter(c.model_dump(exclude_none=True))) for c in default_claims(measurements(frame))]

    assert kinds(population(lookup=0.5)) == ["flatter", "longer", "larger", "beats"]
    assert kinds(population(sizes=1, steps=(500,))) == ["flatter"]
    assert "algorithm" in kinds(population(algorithms=("adamw", "adversarial")))
    assert kinds(population().iloc[:0]) == []


def test_a_default_that_the_sweep_has_no_answer_to_is_left_out() -> None:
    few = measurements(population(sizes=2, seeds=1, steps=(500, 4000)))
    assert len(default_claims(few)) > 1
    assert verdicts(few, Questions()) == []
    # Who asks gets an answer, be it that there is none.
    [asked] = verdicts(few, Questions(claims=default_claims(few)[:1]))
    assert asked.outcome == "not enough data"
    assert len(verdicts(measurements(population(sizes=6)), Questions())) == 3


def test_several_claims_are_corrected_for_their_number() -> None:
    frame = population(sizes=8, between=1, within=1, noise=0.002, tasks=("A", "B"))
    found = judge(
        frame, {"flatter": {"task": "A"}}, {"flatter": {"task": "B"}}, {"longer": {}}, {"larger": {}}
    )
    assert [v.p_corrected for v in found] == pytest.approx(holm([v.main.p for v in found]))
    nearly = Finding(
        name="smooth", value=-0.6, low=-0.9, high=-0.01, p=0.03, standard_error=0.3, ratio=Ratio.student(9),
        clusters=10,
    )  # fmt: skip
    asked = Asked(about="", says="This", unit="ρ", expected=-1, least=0.5, main=nearly, runs=10)
    assert judged([asked])[0].outcome == "supported"
    both = judged([asked, asked])
    assert [v.outcome for v in both] == ["not enough data", "not enough data"]
    assert "p = 0.03 alone, 0.06 among all claims" in both[0].sentence
    # Holm tests the first of two at half the level.
    pilot = Pilot(0.3, Ratio.student(9), 10)
    powers = [pilot.power(math.atanh(0.6), clusters=n, level=0.025) for n in range(5, 60)]
    enough = 5 + [power >= 0.8 for power in powers].index(True)
    assert f"80 % power among them takes about {enough} runs" in both[0].sentence


def test_ways_that_contradict_each_other_are_mixed() -> None:
    up, down = finding(0.6, low=0.1, high=0.9, p=0.001), finding(-0.6, low=-0.9, high=-0.1, p=0.001)
    asked = Asked(about="", says="This", unit="ρ", expected=1, least=0.5, main=up, ways=(down,))
    assert judged([asked])[0].outcome == "mixed"
    assert judged([replace(asked, ways=(up,))])[0].outcome == "supported"
    unsure = replace(down, low=-0.9, high=0.5, p=0.4)
    [told] = judged([replace(asked, ways=(unsure,))])
    assert told.outcome == "supported"
    assert "; but by one ρ = −0.60 [−0.90, +0.50])" in told.sentence
    none = finding(0.01, low=-0.2, high=0.2, p=0.9)
    [told] = judged([replace(asked, main=none, ways=(unsure, replace(up, value=0.2, high=0.3)))])
    assert told.outcome == "no clear relation"
    assert "is excluded; but by one ρ = +0.20 [+0.10, +0.30])" in told.sentence
    assert "but by" not in judged([replace(asked, main=none, ways=(unsure,))])[0].sentence


def test_more_data_are_named_for_an_effect_worth_mentioning() -> None:
    asked = Asked(
        about="", says="This", unit="ρ", expected=1, least=0.5, main=finding(0.01, low=-0.6, high=0.6, p=0.9)
    )
    [small] = judged([asked])
    assert small.needed() is None or small.needed() > 1000
    assert f"80 % power for an effect of |ρ| = 0.50 takes about {small.needed(0.5)} runs" in small.sentence
    [larger] = judged([replace(asked, main=finding(0.7, low=-0.1, high=0.95, p=0.06))])
    assert "this effect" in larger.sentence


def test_runs_alone_do_not_make_a_reference_surer() -> None:
    found = one(population(lookup=0.5), beats="lookup_table")
    assert found.main.tested
    assert found.needed() is None
    assert one(population(), flatter={"task": "A"}).needed() is not None


def test_the_section_has_a_sentence_for_each_claim_and_its_numbers() -> None:
    found = judge(population(lookup=0.5), {"flatter": {"task": "A"}}, {"beats": "lookup_table"})
    html = claims_section(found)
    assert "<li>Task A: at equal loss, flatter goes with better: <b>" in html
    assert "<b>supported</b>" in html
    assert "pairs within 0.002 nats" in html
    assert "between seeds of a configuration" in html
    assert claims_section([]) == ""
    assert "<figure" not in html
    plain = found[0].encode()
    assert plain["verdict"] == found[0].outcome
    assert plain["effect"]["value"] == pytest.approx(found[0].main.value)


@pytest.mark.parametrize("level", ["all", "steps", "seeds", "configurations"])
def test_the_figure_of_a_verdict_on_flatness_shows_its_numbers(level: str) -> None:
    frame = population(sizes=8, between=1, within=1, noise=0.002)
    measured = measurements(frame)
    [found, *_] = judge(frame, {"flatter": {"task": "A", "level": level}}, {"longer": {"task": "A"}})
    drawn = adjusted_figure(measured, found, name="adjusted-0")
    assert drawn is not None
    x, y = drawn.data["flatness"], drawn.data["accuracy"]
    assert np.corrcoef(x, y)[0, 1] == pytest.approx(found.main.value)
    dots = {"seeds": 16, "configurations": 8}.get(level, found.checkpoints)
    assert len(drawn.data) == dots
    [line] = [
        line
        for line in drawn.figure.axes[0].lines
        if len(line.get_xdata()) == 2 and line.get_linewidth() > 1.5
    ]
    slope = np.diff(line.get_ydata()) / np.diff(line.get_xdata())
    assert slope == pytest.approx([np.polyfit(x, y, 1)[0]])
    assert drawn.figure.axes[0].get_title(loc="left") == effect(found.main, "ρ")
    assert f"among {found.checkpoints} checkpoints" in caption(found)
    # A verdict on other checkpoints has no figure here.
    assert adjusted_figure(measurements(frame[frame["seed"] == 1]), found, name="one") is None


def test_the_page_shows_what_a_verdict_on_flatness_rests_on() -> None:
    frame = population(sizes=8, between=1, within=1, noise=0.002)
    asked = tuple(Claim.model_validate({"flatter": {"task": "A", "level": level}}) for level in LEVELS)
    with figures_kept() as kept:
        found = verdicts(measurements(frame), Questions(claims=asked))
        html = render(Content(name="demo", frame=frame, verdicts=found))
    assert [name for name in kept if "adjusted" in name] == [f"demo-adjusted-{k}" for k in range(4)]
    assert html.index("Verdicts") < html.index("demo-adjusted-0") < html.index("The numbers behind")
    assert "Further claims about flatness" in html
    nothing = verdicts(measurements(frame), Questions(claims=(Claim.model_validate({"longer": {}}),)))
    assert "adjusted" not in render(Content(name="demo", frame=frame, verdicts=nothing))
