"""Probe curves, fine-tuning, forgetting and quantisation on the page, from a ledger of made-up numbers."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from helpers.transfer_ledger import KNOWN, transfer_sweep
from raysweep.evaluation.finetune import FINETUNE, GUESS
from raysweep.evaluation.metric import error_key
from raysweep.evaluation.probe_metrics import PROBE, PROBE_SCORE
from raysweep.report import Content, render, write_report
from raysweep.report.damage import damage_sections
from raysweep.report.data import Measurements, measurements
from raysweep.report.figures import against
from raysweep.report.panels import references_of
from raysweep.report.summary import summary
from raysweep.report.transfer import beside, curve_section, finetune_section, probe_curve
from raysweep.sweep import Sweep
from raysweep.sweep.tidy import cells, tidy


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return transfer_sweep(tmp_path_factory.mktemp("transfer"), diverged=True)


@pytest.fixture(scope="module")
def frame(sweep: Sweep) -> pd.DataFrame:
    return tidy(sweep.ledger(), sweep)


@pytest.fixture(scope="module")
def measured(frame: pd.DataFrame) -> Measurements:
    return measurements(frame)


def text(html: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<svg.*?</svg>", " ", html, flags=re.DOTALL)))


def rows(html: str) -> list[list[str]]:
    """Return the cells of every row of a table's body."""
    found = re.findall(r"<tr>(?:<td.*?)</tr>", html, flags=re.DOTALL)
    return [[text(cell).strip() for cell in re.findall(r"<td.*?</td>", row)] for row in found]


def chosen(frame: pd.DataFrame, model: str, step: int, metric: str) -> pd.DataFrame:
    return frame[(frame["model"] == model) & (frame["step"] == step) & (frame["metric"] == metric)]


def test_a_curve_holds_means_over_runs_with_their_error(frame: pd.DataFrame, measured: Measurements) -> None:
    drawn, caption = probe_curve(measured, "B") or pytest.fail("no curve")
    assert len(drawn.data) == 2 * 3 * 3  # sizes, milestones and numbers of labels
    for row in drawn.data.to_dict(orient="records"):
        values = chosen(frame, row["model"], row["step"], f"probe/B/{row['labels']}")["value"]
        assert row["runs"] == 2
        assert row["mean"] == pytest.approx(values.mean())
        assert row["standard_error"] == pytest.approx(values.std(ddof=1) / np.sqrt(2))
    assert references_of([drawn.figure]) == ["best possible", "look-up table", "majority label"]
    for shown in (">128<", ">512<", ">2,048<", ">step 200<", ">step 3,200<"):
        assert shown in drawn.svg
    assert ">step 800<" not in drawn.svg
    assert caption.startswith("Task B: the probe with 128 to 2,048 labels")


def test_a_single_run_keeps_the_error_of_its_measurement(frame: pd.DataFrame) -> None:
    alone = frame[frame["seed"].isna() | (frame["seed"] == 0)]
    drawn, _ = probe_curve(measurements(alone), "A") or pytest.fail("no curve")
    row = drawn.data.iloc[0]
    own = chosen(alone, row["model"], row["step"], f"probe/A/{row['labels']}").iloc[0]
    assert (row["mean"], row["standard_error"], row["runs"]) == (own["value"], own["standard_error"], 1)


def test_a_reference_far_away_is_named_and_not_drawn(measured: Measurements) -> None:
    drawn, caption = beside(measured, "A") or pytest.fail("no figure")
    best, majority = KNOWN["A"]
    assert references_of([drawn.figure]) == ["best possible", "look-up table"]
    assert f"Outside the axis: majority label, {majority:.3f}." in caption
    assert f"{best}" not in caption
    low = min(float(tick) for tick in re.findall(r"<text[^>]*>(0\.\d+)</text>", drawn.svg))
    assert low > 0.5


def test_sizes_without_a_common_milestone_show_their_last_ones(frame: pd.DataFrame) -> None:
    small = frame["model"].fillna("").str.startswith("32/")
    apart = frame[(small & (frame["step"] == 200)) | (~small & (frame["step"] != 200))]
    drawn, _ = probe_curve(measurements(apart), "A") or pytest.fail("no curve")
    assert ">last milestone of each size<" in drawn.svg
    assert set(drawn.data["step"]) == {200, 800, 3200}


def test_the_table_of_curves_has_every_number_of_labels_and_the_area(measured: Measurements) -> None:
    page = curve_section(measured)
    found = rows(page)
    assert "128 labels" in page
    assert [row[0] for row in found] == [*"AABBCC"]
    assert all(len(row) == 8 for row in found)
    area = measured.checkpoints.query("step == 3200").groupby("model")["probe_area/A"].mean()
    assert found[0][-1].startswith(f"{area.iloc[0]:.2f}")


def test_fine_tuning_stands_beside_the_largest_probe(frame: pd.DataFrame, measured: Measurements) -> None:
    drawn, caption = beside(measured, "B") or pytest.fail("no figure")
    assert caption.startswith("Task B: linear probe (2,048 labels) and fine-tuning at each milestone")
    assert set(drawn.data["metric"]) == {"probe/B/2048", "finetune/B"}
    assert set(drawn.data["step"]) == {200, 800, 3200}
    [first, *_] = (row for row in rows(finetune_section(measured, [])) if row[0] == "B")
    own = chosen(frame, "32/1/2/128", 3200, "finetune/B")["value"]
    deviations = chosen(frame, "32/1/2/128", 3200, "finetune_std/B")["value"]
    mean, error = first[5].split(" ± ")
    assert float(mean) == pytest.approx(own.mean(), abs=0.006)
    # As everywhere else, and so in the table at the end of a launch.
    assert float(error) == pytest.approx(own.std(ddof=1) / np.sqrt(2), rel=0.5)
    ended = summary(frame)
    assert ended.rows[0][ended.headings.index("tuned B")] == first[5]
    assert float(first[6]) == pytest.approx(np.sqrt((deviations**2).mean()), rel=0.1)
    best, majority = KNOWN["B"]
    assert [float(cell) for cell in first[-2:]] == [majority, best]


def test_cells_that_diverged_are_counted_and_named(sweep: Sweep, frame: pd.DataFrame, tmp_path: Path) -> None:
    page = write_report(sweep, frame, tmp_path / "report.html").read_text()
    for run in (spec.run_id for spec in sweep.runs if spec.trains and spec.seed == 1):
        assert [run, "task A, seed 0 at step 3 of 40", "3,200"] in rows(page)
    last = [row for row in rows(page) if row[:3] == ["A", "32/1/2/128", "3,200"]]
    assert any(row[7] == "1" for row in last)
    # All seeds of the first milestone diverged: there is no accuracy, and the other run is alone.
    drawn, _ = beside(measurements(frame), "A") or pytest.fail("no figure")
    tuned = drawn.data[(drawn.data["metric"] == "finetune/A") & (drawn.data["step"] == 200)]
    assert set(tuned["runs"]) == {1}


def test_a_checkpoint_whose_seeds_all_diverged_has_no_accuracy(frame: pd.DataFrame) -> None:
    lost = frame[(frame["seed"] == 1) & (frame["step"] == 200)]
    section = finetune_section(measurements(lost), [])
    row = next(row for row in rows(section) if row[0] == "A")
    assert row[5:8] == ["–", "–", "3"]


def test_a_single_number_of_labels_makes_no_curve(frame: pd.DataFrame) -> None:
    single = frame[~frame["metric"].str.startswith("probe")]
    head = {name: single.iloc[0][name] for name in ("sweep", "run_id", "model", "algorithm", "seed")}
    head |= {"model.shape": None, "parameters": 1, "step": 3200}
    made = [head | cells(PROBE.number(0.6, n=5, standard_error=0.01, of={"task": "A"}))]
    measured = measurements(pd.concat([single, pd.DataFrame(made)], ignore_index=True))
    assert curve_section(measured) == ""
    _, caption = beside(measured, "A") or pytest.fail("no figure")
    assert caption.startswith("Task A: linear probe and fine-tuning")


def test_a_task_with_another_metric_is_compared_by_that_metric(frame: pd.DataFrame) -> None:
    matthews = FINETUNE.model_copy(update={"unit": "matthews", "heading": "matthews after fine-tuning"})
    of = {"task": "cola"}
    found = [
        matthews.number(0.4, n=5, standard_error=0.01, of=of),
        GUESS.number(0.0, n=5, of=of),
        PROBE.model_copy(update={"unit": "matthews"}).number(0.3, n=5, standard_error=0.01, of=of),
        PROBE_SCORE.number(0.8, n=5, standard_error=0.01, of={"score": "accuracy", **of}),
        PROBE_SCORE.number(0.5, n=5, standard_error=0.01, of={"score": "f1", **of}),
    ]
    made = frame.iloc[: len(found)].assign(**pd.DataFrame([cells(metric) for metric in found]))
    drawn, _ = beside(measurements(made.assign(run_id="a", model="m", step=5)), "cola") or pytest.fail("none")
    assert set(drawn.data["metric"]) == {"probe/cola", "finetune/cola"}
    assert ">matthews, task cola<" in drawn.svg


def test_losses_before_and_after_are_those_of_the_ledger(frame: pd.DataFrame, measured: Measurements) -> None:
    forgot, rounded = damage_sections(measured).split("<h2>Rounded")
    first = rows(forgot)[0]
    after = chosen(frame, "32/1/2/128", 3200, "finetune_excess_loss/A")["value"].mean()
    rise = chosen(frame, "32/1/2/128", 3200, "forgetting/A")["value"].mean()
    assert first[:4] == ["A", "32/1/2/128", "3,200", "2"]
    assert [float(cell) for cell in first[4:6]] == pytest.approx([after - rise, after], abs=1e-3)
    assert float(first[6].split(" ± ")[0]) == pytest.approx(rise, abs=0.006)
    assert "excess loss before" in forgot
    assert list(dict.fromkeys(row[0] for row in rows(rounded))) == ["int4", "int8", "noise0.01", "noise0.1"]
    # The made-up rise by the least noise is below zero: the table has it, a log axis does not.
    assert "Not shown: 6 without a rise" in rounded
    assert any(row[0] == "noise0.01" and row[6].startswith("−0.00000") for row in rows(rounded))


def test_rises_are_drawn_against_flatness(measured: Measurements) -> None:
    drawn = against(measured, "trace", ["forgetting/B", "quantize/noise0.01"], name="x")
    assert drawn is not None
    assert len(drawn.data) == 12
    assert {"trace", "forgetting/B", error_key("forgetting/B")} <= set(drawn.data)
    # All of its rises are below zero.
    assert against(measured, "trace", ["quantize/noise0.01"], name="x") is None
    assert against(measured, "nothing", ["forgetting/B"], name="x") is None


def test_the_page_is_whole_and_each_rise_is_drawn_in_one_place(frame: pd.DataFrame) -> None:
    page = render(Content(name="transfer", frame=frame))
    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert heads[4:8] == [
        "Accuracy over the number of labels",
        "Fine-tuning beside the probe",
        "Forgetting by fine-tuning",
        "Rounded and noisy weights",
    ]
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert "A (tuned)" in page
    # What lines are compared with is said once in each of the two sections that draw it.
    for section in heads[4:6]:
        part = page.split(f"<h2>{section}</h2>")[1].split("<h2>")[0]
        assert part.count("best possible</li>") == 1
        assert part.count("best possible<") == 1 + part.count(">best possible</th>")
    assert page == render(Content(name="transfer", frame=frame))


def test_a_task_of_any_name_cannot_become_markup(frame: pd.DataFrame) -> None:
    odd = frame.assign(
        **{
            column: frame[column].str.replace("/A", "/<u>").str.replace('"A"', '"<u>"')
            for column in ("metric", "of", "baseline", "ceiling")
        }
    )
    page = render(Content(name="transfer", frame=odd))
    assert "<u>" not in page
    assert "&lt;u&gt;" in page
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(svg)


def test_the_summary_explains_its_short_headings(frame: pd.DataFrame) -> None:
    found = summary(frame)
    assert found.headings[4:7] == ["excess loss", "trace", "tuned A"]
    assert {"probe area C", "forgets B", "rise int8"} <= set(found.headings)
    assert "; tuned: accuracy after fine-tuning; probe area: area under the probe curve" in found.title
    assert "; noise0.01: Gaussian weight noise of 1 % of each matrix's norm" in found.title


def test_a_sweep_without_flatness_says_so_once(sweep: Sweep, frame: pd.DataFrame, tmp_path: Path) -> None:
    flat = [name for name in frame["metric"].unique() if name.startswith("trace")]
    assert flat
    without = frame[~frame["metric"].isin(flat)]
    page = text(render(Content(name="transfer", frame=without)))
    assert page.count("add `trace` to `evaluate`") == 1
    assert page.lower().count("flatness") == 1
    assert "What goes with accuracy" not in page
    assert page.count("flatter goes with") == 1
    # This one will measure it.
    early = text(write_report(sweep, without, tmp_path / "early.html").read_text())
    assert "No flatness has been measured yet." in early
    assert "add `trace`" not in early
    assert "add `trace`" not in render(Content(name="transfer", frame=frame))
