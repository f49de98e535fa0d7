"""The theory's figures: drawn where there are numbers for them, with their numbers, and not otherwise."""

from __future__ import annotations

import re
from collections.abc import Callable

import pandas as pd
import pytest

from helpers.tables import arranged
from raysweep.evaluation import bartlett as identity
from raysweep.evaluation import dyck
from raysweep.evaluation.descent import OBSERVED, PREDICTED, RATIO
from raysweep.evaluation.metric import Quantity
from raysweep.report import Content, render
from raysweep.report.data import measurements
from raysweep.report.descent import descent
from raysweep.report.style import CATEGORIES
from raysweep.report.theory import bartlett, brackets, theory_figures
from raysweep.sweep.tidy import cells

Table = Callable[..., pd.DataFrame]
HEAD = {"sweep": "demo", "seed": 0, "parameters": 264}


def tidy(rows: list[dict[str, object]]) -> pd.DataFrame:
    columns = ("sweep", "run_id", "model", "algorithm", "seed", "language.length", "parameters", "step")
    return arranged([HEAD | row for row in rows], columns)


def measured(quantity: Quantity, value: float, **of: float) -> dict[str, object]:
    return cells(quantity.number(value, n=32, standard_error=0.01, of=of))


def bartlett_rows() -> list[dict[str, object]]:
    head = {"run_id": "a", "model": "8/1/1/32", "algorithm": "adamw"}
    rows = []
    for step, loss, ratio in ((100, 0.3, 0.7), (200, 0.03, 0.95), (400, 0.003, 1.01)):
        found = {"EXCESS_LOSS": loss, "RATIO": ratio, "COVARIANCE": 5 * ratio, "HESSIAN": 5.0}
        rows += [head | {"step": step} | measured(getattr(identity, k), v) for k, v in found.items()]
    return rows


def descent_rows() -> list[dict[str, object]]:
    head = {"run_id": "b", "model": "4/1/1/8", "algorithm": "adamw", "step": 1000}
    rows = []
    for batch in (16, 64):
        for time in (0, 8, 16):
            trace = 3 - time / batch
            rows.append(head | measured(PREDICTED, trace, batch=batch, time=time))
            for lr in (0.05, 1e-5):
                rows.append(head | measured(OBSERVED, trace + 0.01, lr=lr, batch=batch, time=time))
    return rows


def bracket_rows() -> list[dict[str, object]]:
    rows = []
    for length in (6, 8):
        for solution in ("dyck_two_neurons", "dyck_random_features"):
            head = {"run_id": f"{solution}-{length}", "algorithm": solution, "step": 0} | dict.fromkeys(
                ("model", "seed", "parameters")
            )
            head["language.length"] = length
            rows += [head | measured(dyck.TRACE, 0.8), head | measured(dyck.BOUND, 0.7)]
            rows += [head | measured(dyck.ACCURACY, n / 8, examples=n) for n in (0, 2, 8)]
    return rows


ROWS = {"bartlett": bartlett_rows, "descent": descent_rows, "brackets": bracket_rows}


@pytest.mark.parametrize("name", ROWS)
def test_each_figure_comes_with_its_numbers(name: str) -> None:
    frame = tidy(ROWS[name]())
    [(found, drawn, heading, caption)] = theory_figures(frame, measurements(frame))
    assert found == name
    assert drawn.svg.startswith("<svg")
    assert heading
    assert caption
    if name == "bartlett":
        assert drawn.data["bartlett/ratio"].tolist() == [0.7, 0.95, 1.01]
    elif name == "descent":
        assert set(drawn.data["lr"].dropna()) == {0.05, 1e-5}
        ends = drawn.data[(drawn.data["time"] == 16) & (drawn.data["what"] == "predicted")]
        assert ends["time_per_batch"].tolist() == [1.0, 0.25]
    else:
        assert set(drawn.data["length"]) == {6, 8}


def test_a_sweep_of_the_theory_asks_nothing_about_accuracy(table: Table) -> None:
    for rows in ROWS.values():
        page = render(Content(name="demo", frame=tidy(rows())))
        assert page.count("<figure>") == 1
        assert "What goes with accuracy" not in page
        assert "Not enough data" not in page
    both = pd.concat([table(), tidy(bartlett_rows())], ignore_index=True)
    page = render(Content(name="demo", frame=both))
    assert "What goes with accuracy" in page
    assert "Bartlett" in page


def test_other_sweeps_have_none_of_them(table: Table) -> None:
    assert theory_figures(table(), measurements(table())) == []


def test_what_is_not_there_yet_is_left_out() -> None:
    frame = tidy(bartlett_rows())
    part = frame[frame["metric"] != "bartlett/ratio"]
    assert theory_figures(part, measurements(part)) == []


def test_what_a_log_axis_cannot_show_is_said() -> None:
    rows = bartlett_rows()
    rows[0] |= {"value": 0.0}  # an excess loss
    rows[-1] |= {"value": -3.0}  # the trace of a Hessian
    frame = tidy(rows)
    drawn, caption = bartlett(measurements(frame)) or pytest.fail("no figure")
    assert len(drawn.data) == 2
    assert "Not shown: 1 checkpoint with an excess loss of zero or less" in caption
    assert "Not shown: 1 trace with a value of zero or less" in caption
    _, whole = bartlett(measurements(tidy(bartlett_rows()))) or pytest.fail("no figure")
    assert "Not shown" not in whole


def settings_rows(rates: int, batches: int, seeds: int = 1, *, ratio: bool = True) -> list[dict[str, object]]:
    """Traces that begin at 4 + seed and fall alike as shares of that, less at higher rates."""
    rows: list[dict[str, object]] = []
    for seed in range(seeds):
        head = {"run_id": f"r{seed}", "seed": seed, "model": "4/1/1/8", "algorithm": "adamw", "step": 10}
        for j in range(batches):
            for time in (0, 4, 8):
                fall = time / 2 ** (j + 3)
                of = {"batch": 2**j, "time": time}
                rows.append(head | measured(PREDICTED, (4 + seed) * (1 - 0.5 * fall), **of))
                for i in range(rates):
                    trace = (4 + seed) * (1 - (0.5 - i / 50) * fall)
                    rows.append(head | measured(OBSERVED, trace, lr=0.1 * (i + 1), **of))
            for i in range(rates if ratio else 0):
                share = 1 - i / 25 + seed / 100
                rows.append(head | measured(RATIO, share, lr=0.1 * (i + 1), batch=2**j))
    return rows


def test_seeds_are_put_together() -> None:
    drawn, caption = descent(tidy(settings_rows(2, 2, seeds=3))) or pytest.fail("no figure")
    assert "± one standard error over 3 seeds" in caption
    assert "Bottom: the observed fall" in caption
    assert "are in the table" not in caption
    # As shares of their starts, the three seeds are alike.
    ends = drawn.data[(drawn.data["what"] == "observed") & (drawn.data["time"] == 8)]
    assert ends.groupby(["lr", "batch"])["share"].std().max() < 1e-12
    assert ends.groupby(["lr", "batch"])["value"].nunique().eq(3).all()
    _, alone = descent(tidy(settings_rows(2, 2))) or pytest.fail("no figure")
    assert "over replicates of one seed" in alone


def test_runs_that_an_axis_tells_apart_are_no_seeds_of_one() -> None:
    rows = settings_rows(2, 2, seeds=2)
    other = [row | {"run_id": f"{row['run_id']}-b", "language.length": 3} for row in rows]
    rows = [row | {"language.length": 2} for row in rows if "ratio" not in str(row["metric"]) or row["seed"]]
    _, caption = descent(tidy(rows + other)) or pytest.fail("no figure")
    assert "over 2 seeds" in caption
    assert "language or step, 1 in all, are in the table" in caption
    assert "have none" not in caption
    part = [row for row in rows if "ratio" not in str(row["metric"]) or "batch-1" in str(row["metric"])]
    _, caption = descent(tidy(part)) or pytest.fail("no figure")
    assert "2 of the settings have none" in caption


def test_without_a_ratio_the_caption_says_why() -> None:
    drawn, caption = descent(tidy(settings_rows(2, 2, ratio=False))) or pytest.fail("no figure")
    assert "ratio of both falls is left out" in caption
    assert "longer time" in caption
    assert "observed / predicted" not in drawn.svg


def test_rates_and_solutions_do_not_share_a_colour() -> None:
    drawn, _ = descent(tidy(settings_rows(5, 2))) or pytest.fail("no figure")
    assert set(re.findall(r"--category-\d+", drawn.svg)) == {f"--category-{k}" for k in range(5)}
    rows = bracket_rows()
    for place in range(3):
        more = [
            row | {"run_id": f"x{place}", "algorithm": f"dyck_two_neurons-{place + 3}"} for row in rows[:5]
        ]
        rows += more
    drawn, _ = brackets(tidy(rows)) or pytest.fail("no figure")
    assert set(re.findall(r"--category-\d+", drawn.svg)) == {f"--category-{k}" for k in range(5)}
    page = render(Content(name="demo", frame=tidy(rows)))
    for k, (light, dark) in enumerate(CATEGORIES):
        assert f"--category-{k}: {light}" in page
        assert f"--category-{k}: {dark}" in page


def test_more_rates_than_colours_have_other_markers() -> None:
    from raysweep.report.descent import _looks

    table = pd.DataFrame([{"lr": lr, "batch": batch} for lr in range(1, 13) for batch in (8, 32)])
    looks = [(look["color"], look["marker"]) for look in _looks(table).values()]
    assert len(set(looks)) == len(looks) == 24
