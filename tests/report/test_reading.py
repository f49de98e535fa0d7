"""Words on how sure verdicts are: what they rest on, and what they leave out."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from helpers.populations import population
from raysweep.report import Content, render
from raysweep.report.association import at_level
from raysweep.report.claims import verdicts
from raysweep.report.correlations import configurations, correlations
from raysweep.report.data import measurements
from raysweep.report.format import signed
from raysweep.report.reading import reading
from raysweep.report.verdict import Finding, Verdict
from raysweep.sweep.claims import Claim, Questions

Table = Callable[..., pd.DataFrame]
SIZES = tuple((f"{width}/1/2/64", 1000 * width) for width in (8, 12, 16, 24, 32, 48))


@pytest.fixture(scope="module")
def frame(table: Table) -> pd.DataFrame:
    """Two rates: at the first, a smaller trace goes with better accuracy, at the second it does not."""
    found = table(models=SIZES, rates=(0.001, 0.01), seeds=(0, 1))
    generator = np.random.default_rng(1)
    chosen = (found["metric"] == "probe/A") & (found["algorithm.lr"] == 0.01)
    found.loc[chosen, "value"] = 0.86 + 0.002 * generator.normal(size=int(chosen.sum()))
    return found


def judge(frame: pd.DataFrame, *claims: dict[str, Any]) -> list[Verdict]:
    return verdicts(measurements(frame), Questions(claims=tuple(map(Claim.model_validate, claims))))


def read(frame: pd.DataFrame, *claims: dict[str, Any]) -> str:
    measured = measurements(frame)
    html = reading(judge(frame, *claims), measured, correlations(measured, tolerance=0.02))
    return re.sub(r"<[^>]+>", " ", html)


def test_the_relation_is_told_for_each_variant(frame: pd.DataFrame) -> None:
    [verdict] = judge(frame, {"flatter": {"task": "A"}})
    assert verdict.adjusted is not None
    first, second = verdict.adjusted.within
    assert (first.name, second.name) == ("within lr 0.001", "within lr 0.01")
    # The oracle is the same estimate on a table that has this rate alone.
    for one, rate in ((first, 0.001), (second, 0.01)):
        part = measurements(frame[(frame["algorithm.lr"] == rate) | (frame["step"] == 0)]).checkpoints
        names = ["trace", "probe/A", "excess_loss"]
        x, y, loss = (part[name].to_numpy(dtype=float) for name in names)
        runs = np.unique(part["run_id"].to_numpy(dtype=str), return_inverse=True)[1]
        found = at_level(x, y, loss, runs, configurations(part), "all")
        assert [one.value, one.low, one.high] == pytest.approx([float(found.value), found.low, found.high])
    assert first.p < 0.05 < second.p
    text = read(frame, {"flatter": {"task": "A"}})
    assert f"It is not seen in each variant: within lr 0.001 (ρ = {signed(first.value)} [" in text
    assert f"within lr 0.01 (ρ = {signed(second.value)} [" in text
    assert "configurations differ in size and variant (lr 0.001, lr 0.01)" in text
    alike = read(frame, {"flatter": {"task": "B"}})
    assert "It is alike in each variant" in alike


def test_one_variant_has_no_parts_by_variant(frame: pd.DataFrame) -> None:
    one = frame[(frame["algorithm.lr"] == 0.001) | (frame["step"] == 0)]
    [verdict] = judge(one, {"flatter": {"task": "A"}})
    assert verdict.adjusted is not None
    assert verdict.adjusted.within == ()
    assert "each variant" not in read(one, {"flatter": {"task": "A"}})
    assert "configurations differ in size, which" in read(one, {"flatter": {"task": "A"}})


def test_the_parts_that_are_seen_are_told_apart_from_those_that_are_not() -> None:
    frame = population(sizes=12, seeds=3, between=-2, within=0, noise=0.002)
    [verdict] = judge(frame, {"flatter": {"task": "A"}})
    text = read(frame, {"flatter": {"task": "A"}})
    seen, _, unseen = text.partition("A relation is seen ")[2].partition(", and not ")
    for part in verdict.parts:
        assert part.name in (seen if part.p <= 0.05 else unseen.partition("). ")[0])
    assert {part.p <= 0.05 for part in verdict.parts} == {True, False}
    none = population(sizes=12, seeds=3, noise=0.05)
    assert all(part.p > 0.05 for part in judge(none, {"flatter": {"task": "A"}})[0].parts)
    assert "In no part alone is a relation seen: between configurations (" in read(none, {"flatter": {}})


def test_the_p_value_among_all_claims_is_told_where_there_are_several(frame: pd.DataFrame) -> None:
    [verdict] = judge(frame, {"flatter": {"task": "A"}})
    text = read(frame, {"flatter": {"task": "A"}})
    assert f"p = {verdict.main.p:.2g} alone." in text
    both = read(frame, {"flatter": {"task": "A"}}, {"longer": {"task": "A"}})
    [first, _] = judge(frame, {"flatter": {"task": "A"}}, {"longer": {"task": "A"}})
    assert f"p = {first.main.p:.2g} alone, and {first.p_corrected:.2g} among 2 claims." in both


def test_tasks_without_a_claim_are_named_with_what_is_seen_there(frame: pd.DataFrame) -> None:
    text = read(frame, {"flatter": {"task": "A"}})
    assert "No claim is about task B, so no verdict is." in text
    [other] = judge(frame, {"flatter": {"task": "B"}})
    main = other.main
    assert f"is {signed(main.value)} [{signed(main.low)}, {signed(main.high)}] on B." in text
    last = frame[(frame["metric"] == "probe/B") & (frame["step"] == frame["step"].max())]["value"] - 0.86
    error = last.std(ddof=1) / np.sqrt(len(last))
    shown = f"{last.mean():+.3f} ± {error:.3f} on B".replace("-", "−")
    assert f"Less those of the look-up table, the accuracies of the last checkpoints are {shown}." in text
    assert "No claim is about" not in read(frame, {"flatter": {}})
    assert "No claim is about" not in read(frame, {"flatter": {"task": "A"}}, {"longer": {"task": "B"}})


def test_words_are_those_of_the_page(frame: pd.DataFrame, table: Table) -> None:
    page = render(Content(name="demo", frame=frame, verdicts=judge(frame, {"flatter": {"task": "A"}})))
    for word in ("excess loss", "probe accuracy", "trace", "look-up table", "configuration"):
        assert f"<dt>{word}</dt>" in page
    assert "<dt>trace in one space</dt>" not in page
    spaces = table(models=SIZES, enlarged=True)
    assert "<dt>trace in one space</dt>" in render(Content(name="demo", frame=spaces))
    # Beside the figure that the verdict rests on, and before all others.
    assert page.index("How sure this is") < page.index("<h3>Words</h3>") < page.index("runs measured")


def test_the_numbers_have_both_p_values_and_each_variant(frame: pd.DataFrame) -> None:
    claims = {"flatter": {"task": "A"}}, {"longer": {"task": "A"}}
    found = judge(frame, *claims)
    page = render(Content(name="demo", frame=frame, verdicts=found))
    main, corrected = found[0].main, found[0].p_corrected
    assert corrected > main.p
    assert f'data-head="p">{main.p:.2g}</td>' in page
    among = (
        f'among all claims</td><td data-head="effect [95 % interval]"></td><td data-head="p">{corrected:.2g}<'
    )
    assert among in page
    assert 'data-head="by">within lr 0.01</td>' in page


def test_an_effect_that_one_way_alone_is_sure_of_comes_with_a_caution(frame: pd.DataFrame) -> None:
    verdict = judge(frame, {"larger": {"task": "A"}})[0]
    way = Finding(name="9 pairs within 0.005 nats", value=0.007, low=-0.001, high=0.015, p=0.053)
    sure = replace(verdict, outcome="supported", main=replace(verdict.main, p=0.0056), ways=(way,))
    caution = (
        "Task A: at equal loss, larger models are better: supported by a smooth function of the loss "
        "(p = 0.0056), which is judged, and not sure by 9 pairs within 0.005 nats (+0.007 [−0.001, +0.015] "
        "accuracy per doubling, p = 0.053): read it with caution."
    )
    measured = measurements(frame)
    assert caution in reading([sure], measured, ())
    agreed = replace(sure, ways=(replace(way, low=0.001, p=0.03),))
    unknown = replace(sure, ways=(replace(way, p=math.nan),))
    for other in (agreed, unknown, replace(sure, outcome="not enough data")):
        assert "caution" not in reading([other], measured, ())
