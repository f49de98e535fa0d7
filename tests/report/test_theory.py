"""The theory's figures: drawn where there are numbers for them, with their numbers, and not otherwise."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest

from raysweep.report import Content, render
from raysweep.report.data import measurements
from raysweep.report.theory import theory_figures

Table = Callable[..., pd.DataFrame]
HEAD = {"sweep": "demo", "seed": 0, "parameters": 264, "n": 32, "unit": "nats", "standard_error": 0.01}


def tidy(rows: list[dict[str, object]]) -> pd.DataFrame:
    columns = ("sweep", "run_id", "model", "algorithm", "seed", "language.length", "parameters")
    columns += ("step", "metric", "value", "standard_error", "n", "unit")
    frame = pd.DataFrame([HEAD | row for row in rows], columns=list(columns))
    return frame.astype({"seed": "Int64", "parameters": "Int64", "step": "Int64", "n": "Int64"})


def bartlett_rows() -> list[dict[str, object]]:
    head = {"run_id": "a", "model": "8/1/1/32", "algorithm": "adamw"}
    rows = []
    for step, loss, ratio in ((100, 0.3, 0.7), (200, 0.03, 0.95), (400, 0.003, 1.01)):
        found = {"excess_loss": loss, "ratio": ratio, "covariance": 5 * ratio, "hessian": 5.0}
        rows += [head | {"step": step, "metric": f"bartlett/{name}", "value": v} for name, v in found.items()]
    return rows


def descent_rows() -> list[dict[str, object]]:
    head = {"run_id": "b", "model": "4/1/1/8", "algorithm": "adamw", "step": 1000}
    rows = []
    for batch in (16, 64):
        for time in (0, 8, 16):
            trace = 3 - time / batch
            rows.append(head | {"metric": f"descent/predicted/batch-{batch}/time-{time}", "value": trace})
            for lr in ("0.05", "1e-05"):
                name = f"descent/observed/lr-{lr}/batch-{batch}/time-{time}"
                rows.append(head | {"metric": name, "value": trace + 0.01})
    return rows


def bracket_rows() -> list[dict[str, object]]:
    rows = []
    for length in (6, 8):
        for solution in ("dyck_two_neurons", "dyck_random_features"):
            head = {"run_id": f"{solution}-{length}", "algorithm": solution, "step": 0} | dict.fromkeys(
                ("model", "seed", "parameters")
            )
            head["language.length"] = length
            found = {"trace": 0.8, "bound": 0.7} | {f"accuracy/examples-{n}": n / 8 for n in (0, 2, 8)}
            rows += [head | {"metric": f"dyck/{name}", "value": value} for name, value in found.items()]
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
