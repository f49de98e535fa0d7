"""The live view of a launch, on states made by hand."""

from __future__ import annotations

import io
import re
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from helpers.transfer_ledger import transfer_sweep
from raysweep.cli import live, output
from raysweep.cli.live import LineView, LiveView, runs_table
from raysweep.evaluation.excess_loss import ENTROPY, EXCESS_LOSS
from raysweep.evaluation.held_out_loss import HELD_OUT_LOSS
from raysweep.evaluation.metric import Quantity
from raysweep.evaluation.probe_metrics import PROBE
from raysweep.evaluation.trace import ENLARGED, TRACE
from raysweep.sweep.run_state import Evaluated, LaunchState, RunState
from raysweep.sweep.told import Told


def run(run_id: str = "a", **values: Any) -> RunState:
    given = {"model": "m", "label": f"run {run_id}", "steps": 100, **values}
    return RunState(run_id=run_id, **given)


def state(
    *runs: RunState, share: float | None = None, left: tuple[float, float] | None = None
) -> LaunchState:
    return LaunchState(runs=list(runs), elapsed=10.0, share=share, left=left)


def said(out: io.StringIO) -> list[str]:
    """Return the lines of a pipe without their times of day, which all of them have."""
    lines = out.getvalue().splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines)
    return [line[9:] for line in lines]


MEASURED = [
    PROBE.number(0.75, standard_error=0.01, n=5, of={"task": "A"}),
    TRACE.number(12.0, standard_error=1.2, n=64),
    EXCESS_LOSS.number(0.5, n=64),
    ENTROPY.number(2.0, n=64),
]


def console(width: int = 120) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, width=width, color_system=None), out


def test_a_line_for_every_change_and_none_without() -> None:
    target, out = console()
    view = LineView(target)
    view(state(run()))
    assert out.getvalue() == ""
    view(state(run(state="training", step=10)))
    view(state(run(state="training", step=20)))
    view(state(run(state="training", step=30, metrics=MEASURED, evaluated=25)))
    view(state(run(state="evaluating", step=100, metrics=MEASURED, evaluated=25)))
    view(state(run(state="done", step=100, metrics=MEASURED, evaluated=100)))
    assert said(out) == [
        "run a: training, step 10/100",
        "run a: training, step 30/100; step 25: excess 0.5, trace 12, probe A 0.75",
        "run a: evaluating, step 100/100; step 25: excess 0.5, trace 12, probe A 0.75",
        "run a: done, step 100/100, excess 0.5, trace 12, probe A 0.75",
        "100% of training; runs: 1 done, 0 running, 0 waiting; 10 s so far, closing Ray and MLflow",
    ]


def test_a_short_launch_in_a_pipe_tells_the_time_left_as_soon_as_it_is_known() -> None:
    target, out = console()
    view = LineView(target)
    for left in (None, (5.0, 9.0), (4.0, 8.0)):
        view(state(run(state="training", step=50), share=0.5, left=left))
    view(state(run(state="done", step=100), share=1.0, left=(8.0, 18.0)))
    totals = [line.rpartition("; ")[2] for line in said(out) if "runs:" in line]
    assert totals == ["10 s so far, 5 s to 9 s left", "10 s so far, closing Ray and MLflow, 8 s to 18 s left"]


def test_the_whole_sweep_has_a_line_a_minute_whatever_else_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    target, out = console()
    view = LineView(target)
    probes = {"probe": Evaluated(1.5, 4, 30.0), "trace": Evaluated(0, 4, 0.0)}
    for second in range(0, 181, 30):
        now = 1000.0 + second
        # There is news all the time.
        loss = EXCESS_LOSS.number(1 / (1 + second), n=9)
        busy = run("a", state="training", step=second // 3, metrics=[loss], evaluated=1)
        others = (
            run("b", state="queued", evaluations=probes),
            run("c", state="failed"),
            run("d", state="done"),
        )
        view(state(busy, *others))
    totals = [line for line in said(out) if "runs:" in line]
    assert [line.partition(";")[0] for line in totals] == [
        f"{share}% of training, 1 of 8 evaluations" for share in (5, 10, 15)
    ]
    assert totals[0].endswith("; runs: 1 done, 1 running, 1 waiting, 1 failed; 10 s so far")


def test_all_of_the_work_is_done_only_at_its_end() -> None:
    target, out = console(160)
    view = LineView(target)
    with view:
        view(state(run(state="training", step=999, steps=1000), share=0.9999, left=(5.0, 9.0)))
    assert "99% of all work: 99% of training" in out.getvalue()


def test_share_and_range_are_told_where_they_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(live.time, "monotonic", lambda: now)
    target, out = console()
    view = LineView(target)
    busy = run("a", state="evaluating", step=100, evaluations={"probe": Evaluated(3, 4, 30.0)})
    for left in ((300.0, 540.0), (290.0, 300.0)):
        now += output.HEARTBEAT
        view(state(busy, share=0.314, left=left))
    totals = [line for line in said(out) if "runs:" in line]
    assert totals == [
        "31% of all work: 100% of training, 3 of 4 evaluations; runs: 0 done, 1 running, 0 waiting; "
        f"10 s so far, {left} left"
        for left in ("5 min to 9 min", "about 5 min")
    ]
    # A launch whose runs have all ended says what is left to do.
    view(state(run("a", state="done", step=100), share=1.0, left=(8.0, 18.0)))
    whole = "100% of all work: 100% of training; runs: 1 done, 0 running, 0 waiting; 10 s so far, "
    assert said(out)[-1] == whole + "closing Ray and MLflow, 8 s to 18 s left"


def test_the_trace_in_one_space_is_shown_where_models_have_one() -> None:
    """A model's own trace says nothing beside one of another size."""
    own, larger = TRACE.number(12.0, n=64), ENLARGED.number(345.0, n=64)
    both, alone = run("a", metrics=[own, larger]), run("b", metrics=[own])
    for states, shown, absent in (
        ([both], "345", "12"),
        ([alone], "12", "345"),
        ([both, alone], "12", "345"),
    ):
        target, out = console(80)
        target.print(runs_table(states, width=80))
        *headings, first = out.getvalue().splitlines()[: -len(states) + 1 or None]
        assert shown in first.split()
        assert absent not in first.split()
        said_ = " ".join(" ".join(line.split()) for line in headings)
        assert ("trace in" in said_) == (shown == "345")
    [line] = Told().changes([replace(both, state="training")])
    assert line.endswith("trace in one space 345")


def test_no_column_is_empty() -> None:
    """Runs that have ended, and those that have just begun, have no speed."""
    slow = run("b", state="training", step=3)
    ended = run("a", state="done", step=100, steps_per_second=50.0)
    for second, headings in ((slow, ["step"]), (replace(slow, steps_per_second=12.0), ["step", "steps/s"])):
        target, out = console(120)
        target.print(runs_table([ended, second], width=120))
        assert out.getvalue().splitlines()[0].split() == ["run", "state", *headings]


def test_shards_of_evaluations_are_counted() -> None:
    """A run that is evaluated shows how far it is and what is left; one that trains shows its steps."""
    runs = [run("a", state="evaluating", step=100, shards=(7, 40), eta=66.0), run("b", state="training")]
    for width, shown in ((80, "eval. 7/40"), (120, "evaluating 7/40")):
        target, out = console(width)
        target.print(runs_table(runs, width=width))
        first, second = out.getvalue().splitlines()[1:]
        assert shown in first
        assert "66 s" in first
        assert "training" in second


@pytest.mark.parametrize("width", [80, 120])
def test_a_table_names_runs_and_fits(width: int) -> None:
    target, out = console(width)
    target.print(runs_table([run(state="training", step=50, metrics=MEASURED, eta=75.0)], width=width))
    text = out.getvalue()
    for part in ("run a", "training", "50/100", "0.5000", "12", "0.750", "75 s"):
        assert part in text
    assert ("±1.2" in text) == (width >= 100)
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("width", [100, 120])
def test_a_wide_table_tells_speeds_where_they_are_known(width: int) -> None:
    target, out = console(width)
    runs = [run("a", tokens_per_second=412_345.6, mfu=0.378), run("b", tokens_per_second=2e5), run("c")]
    target.print(runs_table(runs, width=width))
    lines = out.getvalue().splitlines()
    if width < 120:
        assert "tokens/s" not in lines[0]
        return
    assert lines[0].split()[-2:] == ["tokens/s", "MFU"]
    assert lines[1].split()[-2:] == ["412,346", "38%"]
    assert lines[2].split()[-1] == "200,000"
    assert lines[3].split()[:2] == ["run", "c"]


def test_the_total_fits_a_narrow_terminal() -> None:
    probes = [{"probe": Evaluated(k, 400, 1.0)} for k in range(99)]
    runs = [run(str(k), state="training", step=k, evaluations=probes[k]) for k in range(99)]
    busy = state(*runs, run("x", state="failed"), share=0.37, left=(3700.0, 200_000.0))
    for width, lines in ((80, 3), (200, 1)):
        target, out = console(width)
        target.print(live._drawn(busy, width=width, room=2))
        text = out.getvalue()
        assert max(map(len, text.splitlines())) <= width
        total = [line.rstrip() for line in text[text.index("37% of all work") :].splitlines()]
        whole = "37% of all work: 49% of training, 4,851 of 39,600 evaluations; "
        whole += "runs: 0 done, 99 running, 0 waiting, 1 failed; 10 s so far, 62 min to 2 d 7 h left"
        assert total == (whole.split("; ") if lines == 3 else [whole])


@pytest.mark.parametrize("width", [80, 100, 160])
def test_names_of_runs_come_before_whole_ids(width: int) -> None:
    """A launch that was interrupted early has measured nothing, so there is room."""
    name, id_ = "32/2/1/128 lr 0.003 seed 0", "32-2-1-128-adamw-lr0.003-s0-e5d77ab79a"
    target, out = console(width)
    target.print(runs_table([run(id_, label=name, state="unfinished", step=7)], width=width, ids=True))
    _, *rows = out.getvalue().splitlines()
    assert [row.split("  ")[0] for row in rows] == [name]
    assert (id_ in rows[0]) == (width > 100)
    assert "e5d77ab79a  unfinished" in rows[0]


def test_a_long_list_shows_the_busy_ones() -> None:
    target, out = console()
    runs = [run(f"d{k}", state="done", step=100) for k in range(8)] + [run("busy", state="training")]
    target.print(runs_table(runs, width=120, limit=3))
    assert "run busy" in out.getvalue()
    assert "... 6 more" in out.getvalue()


def test_the_live_view_takes_any_state() -> None:
    out = io.StringIO()
    target = Console(file=out, width=100, height=30, force_terminal=True, color_system=None)
    with LiveView(target, ["records: here"]) as view:
        view(state(run(state="training", step=40)))
        view(state(run(state="done", step=100), share=1.0))
        target.print("\n", end="")
    assert "100% of all work: 100% of training; runs: 1 done, 0 running, 0 waiting" in out.getvalue()
    assert "records: here" in out.getvalue()


def test_the_table_shows_the_losses_that_were_measured() -> None:
    for quantity, heading in ((EXCESS_LOSS, "excess"), (HELD_OUT_LOSS, "loss")):
        out, text = console()
        out.print(runs_table([run(metrics=[quantity.number(1.25, n=64)])], width=120))
        assert heading in text.getvalue().split("\n")[0].split()
        assert "1.2500" in text.getvalue()


def test_a_new_metric_that_asks_for_it_has_a_column_of_its_own() -> None:
    barrier = Quantity(name="barrier/{pair}", heading="loss barrier", unit="nats", live=True)
    hidden = Quantity(name="hidden", unit="nats").number(7.5, n=8)
    metrics = [barrier.number(0.123456, n=8, standard_error=0.01, of={"pair": "0-1"}), hidden]
    out, text = console()
    out.print(runs_table([run(metrics=[*metrics, *MEASURED]), run("b")], width=120))
    headings, first, second = text.getvalue().splitlines()
    assert headings.split()[2:] == [
        "step",
        *["excess", "trace", "probe", "A", "loss", "barrier", "0-1"],
    ]
    assert first.split()[-2:] == ["0.1235", "±0.01"]
    assert "7.5" not in text.getvalue()
    assert second.split() == ["run", "b", "queued", "0/100"]


@pytest.mark.parametrize(("width", "shown"), [(80, 5), (100, 5), (120, 8), (200, 8)])
def test_many_metrics_have_short_headings_and_fit(tmp_path: Path, width: int, shown: int) -> None:
    sweep = transfer_sweep(tmp_path)
    spec = sweep.runs[0]
    ledger = sweep.ledger().open(spec.run_id)
    records = [ledger.evaluation(spec.milestones[-1], evaluation) for evaluation in spec.evaluations.values()]
    metrics = [metric for record in records if record is not None for metric in record.metrics]
    target, out = console(width)
    target.print(
        runs_table([run(state="training", step=50, steps=100, metrics=metrics, eta=75.0)], width=width)
    )
    text = out.getvalue()
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    assert (text.count("tuned"), text.count("area")) == (3, shown - 5)
    assert [word for word in text.split() if word in "ABC"] == [*"ABC", *"ABC"][: shown - 2]
    assert len(re.findall(r"\b0\.\d{3}\b", text)) == shown - 2
    # The budgets are in the report.
    assert not {"128", "512", "2048"} & set(text.split())


def test_a_run_that_waits_for_another_one_waits() -> None:
    out, text = console()
    out.print(
        runs_table([run(state="training", step=40, eta=30.0), run("b", state="blocked", eta=75.0)], width=120)
    )
    assert text.getvalue().splitlines()[2].split()[2:] == ["blocked", "0/100", "75", "s"]
    out, text = console()
    view = LineView(out)
    view(state(run(state="training", step=40), run("b", state="blocked")))
    view(state(run(state="training", step=40), run("b", state="training")))
    assert [line.partition(",")[0] for line in said(text)] == ["run a: training", "run b: training"]


def test_a_failed_run_has_its_reason() -> None:
    target, out = console()
    view = LineView(target)
    view(state(run(state="failed", step=7, trouble="loss is nan at step 7")))
    assert said(out)[0] == "run a: failed, step 7/100: loss is nan at step 7"
    out = io.StringIO()
    target = Console(file=out, width=100, height=30, force_terminal=True, color_system=None)
    with LiveView(target, []) as shown:
        shown(state(run(state="failed", step=7, trouble="loss is nan at step 7"), run("b", state="training")))
        target.print("\n", end="")
    assert "run a: failed: loss is nan at step 7" in out.getvalue()


def test_a_notebook_has_the_table_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    pages: list[str] = []

    class Handle:
        def update(self, page: str) -> None:
            pages[-1] = page

    def display(page: str, *, display_id: bool) -> Handle:
        pages.append(page)
        return Handle()

    kernel = SimpleNamespace(kernel=object())
    shown = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel, display=shown))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    with live.progress() as view:
        view(state(run("a", state="training", step=5)))
        view(state(run("a", state="training", step=6)))  # within the same second: not drawn
        assert "5/100" in pages[0]
        view(state(run("<b>", state="done", step=100), share=1.0))
    assert len(pages) == 1
    assert "run &lt;b&gt;" in pages[0]
    assert "100/100" in pages[0]
    assert "100% of all work" in pages[0]


def test_progress_is_plain_lines_where_nothing_can_be_redrawn() -> None:
    assert isinstance(live.progress(), LineView)
