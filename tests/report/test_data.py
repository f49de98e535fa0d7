"""Metrics that compare checkpoints of several sizes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import pytest

from raysweep.report import Content, render
from raysweep.report.correlations import correlations
from raysweep.report.data import measurements
from raysweep.report.picture import picture
from raysweep.report.summary import summary

Table = Callable[..., pd.DataFrame]
ONE = (("32/1/2/128", 14_000),)


def names(frame: pd.DataFrame) -> list[str]:
    measured = measurements(frame)
    found = [metric.name for metric in measured.comparable()]
    assert found == [metric.name for metric in measured.comparable("flatness")]
    assert found == [metric.name for metric in measured.shown("flatness")]
    return found


@pytest.mark.parametrize(
    ("change", "expected", "one_space"),
    [
        ({"enlarged": True}, ["trace_enlarged"], True),
        ({}, ["trace"], False),
        ({"models": ONE}, ["trace"], True),
        ({"models": ONE, "enlarged": True}, ["trace"], True),
        ({"trace": False}, [], True),
        ({"models": ()}, [], True),
    ],
)
def test_sizes_are_compared_in_one_space_where_there_is_one(
    table: Table, change: dict, expected: list[str], one_space: bool
) -> None:
    assert names(table(**change)) == expected
    assert measurements(table(**change)).one_space is one_space


def test_a_checkpoint_that_is_not_seen_as_the_others_keeps_all_in_their_own_space(table: Table) -> None:
    frame = table(enlarged=True)
    gone = frame.index[frame["metric"] == "trace_enlarged"][0]
    measured = measurements(frame.drop(index=gone))
    assert [metric.name for metric in measured.comparable()] == ["trace"]
    assert not measured.one_space


@pytest.mark.parametrize(
    ("change", "expected"),
    [({"enlarged": True}, "trace_enlarged"), ({"models": ONE, "enlarged": True}, "trace")],
)
def test_a_named_trace_is_compared_as_that_without_a_name(table: Table, change: dict, expected: str) -> None:
    frame = table(**change)
    again = frame[frame["metric"].str.startswith("trace")]
    again = again.assign(metric="trace_paper/" + again["metric"])
    assert names(pd.concat([frame, again], ignore_index=True)) == [expected, f"trace_paper/{expected}"]


def test_other_kinds_compare_all_checkpoints_as_they_are(table: Table) -> None:
    measured = measurements(table(enlarged=True))
    assert [metric.name for metric in measured.comparable("loss")] == ["excess_loss"]
    assert [metric.name for metric in measured.comparable("accuracy")] == ["probe/A", "probe/B"]


def test_page_picture_summary_and_correlations_take_the_trace_in_one_space(table: Table) -> None:
    frame = table(enlarged=True, tasks=("A",))
    page, drawn = render(Content(name="demo", frame=frame)), picture(frame, tolerance=0.02)
    of_traces = re.findall(r"<figcaption>(Trace[^.,]*)", page)
    assert of_traces
    assert all(caption.startswith("Trace in one space") for caption in of_traces)
    assert "the trace in one space is that of each model seen as one of a shape" in page.lower()
    assert "not viewed as" not in page
    assert "trace in one space" in drawn
    assert "trace in one space" in summary(frame).headings
    assert {row.flatness.name for row in correlations(measurements(frame), tolerance=0.02)} == {
        "trace_enlarged"
    }


def test_traces_in_several_spaces_are_said_to_be_so(table: Table) -> None:
    def said(**change: object) -> bool:
        return "models of different size are not viewed as one architecture" in render(
            Content(name="demo", frame=table(seeds=(0,), steps=(400,), tasks=("A",), **change))
        )

    assert said()
    for change in ({"models": ONE}, {"enlarged": True}, {"trace": False}):
        assert not said(**change)
