"""Figures on a page and as files: values under the pointer, real colours, a legend of their own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread
from scipy.ndimage import label

from raysweep.evaluation.metric import NOT_TRUSTED
from raysweep.report import Content, figures, render
from raysweep.report.curves import runs_along_training, thinned, training_curves
from raysweep.report.data import measurements
from raysweep.report.drawing import RC
from raysweep.report.figures import along_training, draw_dots, scatter
from raysweep.report.paper import save_figures
from raysweep.report.parts import figures_kept
from raysweep.report.style import INNER, MARKERS, declarations, series
from raysweep.training import CurvePoint

Table = Callable[..., pd.DataFrame]
TITLE = "{http://www.w3.org/2000/svg}title"


def titles(svg: str) -> list[str]:
    return [str(title.text) for title in ElementTree.fromstring(svg).iter(TITLE)]


def test_each_point_shows_its_own_values(table: Table) -> None:
    """The text of a point is that of the dot at the same place."""
    frame = table(tasks=('"A" & <B>',), seeds=(0,))
    measured = measurements(frame)
    name = 'probe/"A" & <B>'
    drawn = scatter(measured, "trace", name, tolerance=0.02, name="t")
    assert drawn is not None
    texts = titles(drawn.svg)
    assert len(texts) == len(drawn.data) == 8
    for text, (_, row) in zip(texts, drawn.data.iterrows(), strict=True):
        assert text.startswith(
            f"{row['model']} · seed 0 · step {row['step']:,}\ntrace (nats): {row['trace']:.1f}"
        )
        assert 'task "A" & <B>' in text
    assert drawn.svg.count('pointer-events="all"') == 1
    after = r'<title>[^<]*</title>\s*<g [^>]*>\s*<use href="[^"]*" x="([\d.]+)" y="([\d.]+)"'
    places = re.findall(after, drawn.svg)
    assert len(places) == 8
    # The axis of the trace is a log axis.  A page has hundredths of a point.
    values = (np.log(drawn.data["trace"]), drawn.data[name])
    for placed, value in zip(np.array(places, dtype=float).T, values, strict=True):
        line = np.polynomial.Polynomial.fit(value, placed, 1)
        assert np.abs(line(value.to_numpy()) - placed).max() < 0.01


def test_points_of_lines_show_their_values(table: Table) -> None:
    drawn = along_training(measurements(table(rates=(0.001, 0.01))), ["trace"], name="s")
    assert drawn is not None
    cells = drawn.data
    assert len(titles(drawn.svg)) == len(cells) == 2 * 2 * 4
    assert titles(drawn.svg)[0].splitlines()[0] == "32/1/2/128 · lr 0.001"
    assert titles(drawn.svg)[0].splitlines()[1].startswith("training steps 400: trace (nats): ")
    one = along_training(
        measurements(table(steps=(400,), seeds=(0,), models=(("a", 1),))), ["trace"], name="s"
    )
    assert one is not None
    assert len(titles(one.svg)) == 1


def test_at_equal_loss_only_saturated_checkpoints_are_drawn(table: Table) -> None:
    measured = measurements(table())
    drawn = scatter(measured, "trace", "probe/A", tolerance=0.02, name="t", saturated=True)
    assert drawn is not None
    assert 0 < len(drawn.data) < 24
    assert (drawn.data["excess_loss"] <= 0.02).all()
    left = measured.checkpoints[~measured.checkpoints["run_id"].isin(drawn.data["run_id"])]
    assert (left["excess_loss"] > 0.02).all()
    assert scatter(measured, "trace", "probe/A", tolerance=1e-9, name="t", saturated=True) is None


def test_a_trace_that_is_not_trusted_is_hollow(table: Table) -> None:
    frame = table()
    traces = frame.index[frame["metric"] == "trace"]
    frame.loc[traces[:5], "reservations"] = NOT_TRUSTED
    measured = measurements(frame)
    drawn = runs_along_training(measured, measured.metrics["trace"], name="r")
    assert drawn is not None
    assert (~drawn.data["trusted"]).sum() == 5
    assert sum("not trusted" in text for text in titles(drawn.svg)) == 5
    zero = frame.assign(value=frame["value"].where(frame["metric"] != "trace", 0.0))
    measured = measurements(zero)
    assert runs_along_training(measured, measured.metrics["trace"], name="r") is None


def curve(steps: range, speed: float | None = 1e5) -> list[CurvePoint]:
    return [CurvePoint(step=s, loss=1 + 3 / s, time_ms=s, tokens_per_second=speed) for s in steps]


def test_curves_of_all_runs_are_drawn_and_all_points_are_in_the_data(table: Table) -> None:
    frame = table(seeds=(0, 1))
    measured = measurements(frame)
    runs = list(measured.checkpoints["run_id"].unique())
    curves = {run: curve(range(10, 5001, 10)) for run in runs} | {
        "not measured yet": curve(range(10, 101, 10))
    }
    drawn = training_curves(measured, curves)
    assert drawn is not None
    assert len(drawn.data) == 4 * 500 + 10
    assert len(titles(drawn.svg)) == 2 * 4
    assert titles(drawn.svg)[0] == "32/1/2/128 · seed 0 · step 5,000\ntraining loss (nats): 1.00"
    # Thousands of points are no page's business.
    longest = max(path.count("L") for path in re.findall(r'd="([^"]*)"', drawn.svg))
    assert 20 < longest < 80
    slow = training_curves(measured, {runs[0]: curve(range(10, 101, 10), speed=None)})
    assert slow is not None
    assert "tokens/s" not in slow.svg
    assert training_curves(measured, {runs[0]: []}) is None


def test_points_are_thinned_evenly_with_both_ends() -> None:
    steps = pd.Series(range(1, 10_001))
    places = thinned(steps, 50)
    chosen = steps.to_numpy()[places]
    assert len(chosen) <= 50
    assert (chosen[0], chosen[-1]) == (1, 10_000)
    ratios = chosen[1:] / chosen[:-1]
    assert ratios[-10:].max() / ratios[-10:].min() < 1.1
    assert list(thinned(pd.Series([5]), 50)) == [0]


def save(table: Table, folder: Path, kind: str) -> list[Path]:
    frame = table(rates=(0.001, 0.01), seeds=(0,), tasks=("A/b",))
    with figures_kept() as kept:
        render(Content(name="demo", frame=frame))
    return save_figures(kept, frame, folder, kind)


@pytest.mark.parametrize("kind", ["svg", "pdf", "png"])
def test_every_figure_of_the_page_becomes_a_file(table: Table, tmp_path: Path, kind: str) -> None:
    paths = save(table, tmp_path / "figures", kind)
    names = {path.name for path in paths}
    assert {f"demo-A-b-excess_loss.{kind}", f"steps.{kind}", f"demo-trace-runs.{kind}"} <= names
    assert sorted((tmp_path / "figures").iterdir()) == sorted(paths)
    again = save(table, tmp_path / "again", kind)
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in paths]
    headline = tmp_path / "figures" / f"demo-A-b-excess_loss.{kind}"
    if kind == "pdf":
        assert headline.read_bytes().startswith(b"%PDF")
        assert b"/URI" not in headline.read_bytes()
    elif kind == "png":
        picture = imread(headline)
        assert picture[0, 0, :3] == pytest.approx(1)  # white
        assert picture.shape[1] > 1000
    else:
        check_standalone(headline.read_text())


def check_standalone(svg: str) -> None:
    ElementTree.fromstring(svg)
    # Neither a page's variables nor stand-ins, and nothing for a pointer.
    assert "var(--" not in svg
    assert not re.search(r"#a[123]0", svg)
    assert "<title>" not in svg
    assert 'class="hover"' not in svg
    # What the page says once, each file says.
    for said in ("32/1/2/128 (14k)", "64/1/2/256 (52k)", "lr 0.01", "excess loss (nats)"):
        assert said in svg
    colours = declarations(2)
    assert colours["--series-0"] in svg
    assert colours["--ink"] in svg


@pytest.mark.parametrize("index", range(len(MARKERS)))
@pytest.mark.parametrize("variant", range(len(INNER)))
def test_a_filled_dot_has_no_hole(index: int, variant: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mark that tells variants apart must not make it a hollow one."""
    # The page's own colour has a stand-in that is near to those of the dots.
    monkeypatch.setattr(figures, "SURFACE", "#ffffff")

    def grounds(filled: bool) -> int:
        with matplotlib.rc_context(RC):
            figure = Figure(figsize=(1, 1), dpi=600)
            axes = figure.add_axes((0, 0, 1, 1))
            axes.set_axis_off()
            dot = pd.DataFrame({"x": [1.0], "x_se": [0.0], "y": [1.0], "y_se": [0.0]})
            draw_dots(axes, dot, "x", "y", index, variant, filled=pd.Series([filled]))
            canvas = FigureCanvasAgg(figure)
            canvas.draw()
        seen = np.asarray(canvas.buffer_rgba())[..., :3].astype(float) / 255
        ink = np.abs(seen - to_rgb(series(index))).sum(axis=-1) < 0.2
        assert ink.any()
        return int(label(~ink)[1])

    assert grounds(filled=True) == 1
    if not INNER[variant]:
        assert grounds(filled=False) > 1
