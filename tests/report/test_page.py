"""The page: complete, offline, honest about what is missing, and the same for the same content."""

from __future__ import annotations

import base64
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from raysweep.evaluation.held_out_loss import HELD_OUT_LOSS
from raysweep.evaluation.metric import NOT_TRUSTED
from raysweep.evaluation.trace import NOT_REACHED
from raysweep.report import Content, Failure, render
from raysweep.report.association import at_level
from raysweep.report.axes import log_ticks
from raysweep.report.claims import verdicts
from raysweep.report.correlations import configurations, correlations
from raysweep.report.data import measurements
from raysweep.report.figures import across_sizes, along_training, scatter
from raysweep.report.summary import summary
from raysweep.sweep.claims import Claim, Longer, Questions
from raysweep.sweep.tidy import cells

Table = Callable[..., pd.DataFrame]


class Reader(HTMLParser):
    """Collects ids and everything that a browser would fetch; refuses tags that do not close."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.fetched: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in self.VOID:
            self.open.append(tag)
        self._attributes(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._attributes(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def _attributes(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id":
                self.ids.append(str(value))
            # A link is followed by who clicks on it.
            if tag == "a" and name == "href":
                continue
            if name in ("src", "href", "xlink:href", "data", "srcset") and not str(value).startswith(
                ("#", "data:")
            ):
                self.fetched.append(f"{tag} {value}")


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    return reader


def text(page: str) -> str:
    return re.sub(r"<[^>]+>", " ", re.sub(r"<(style|svg).*?</\1>", " ", page, flags=re.DOTALL))


@pytest.fixture(scope="module")
def page(table: Table) -> str:
    return render(Content(name="demo", frame=table()))


def test_the_page_is_whole_and_needs_no_network(page: str) -> None:
    reader = read(page)
    assert reader.fetched == []
    assert "script" not in reader.tags
    assert not re.search(r"url\((?!#)", page)
    assert "@import" not in page
    assert len(set(reader.ids)) == len(reader.ids)
    # Of each task loss, flatness at equal loss, and flatness of all; sizes, steps, laws, the trace by run,
    # and what the verdict on flatness rests on.
    assert reader.tags.count("figure") == 2 * 3 + 5
    for svg in re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL):
        ElementTree.fromstring(svg)
    references = re.findall(r"(?:url\(#|<use href=\"#)([^)\"]+)", page)
    assert set(references) <= set(reader.ids)


def test_colours_come_from_the_scheme_of_the_reader(page: str) -> None:
    svg = "".join(re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL))
    # What is left of fixed colours in the drawings would vanish in one of the two schemes.
    assert re.findall(r"#[0-9a-f]{6}\b", svg) == []
    for used in set(re.findall(r"var\((--[a-z0-9-]+)\)", page)):
        light, dark = page.split("prefers-color-scheme: dark")[:2]
        assert f"{used}:" in light
        assert f"{used}:" in dark.split("@media print")[0]


def test_the_same_content_gives_the_same_bytes(table: Table, page: str) -> None:
    assert render(Content(name="demo", frame=table())) == page


def test_a_standard_error_that_is_not_trusted_is_marked(table: Table, page: str) -> None:
    frame = table(steps=(400, 800))
    traces = frame[frame.metric == "trace"]
    last = traces[traces.step == 800].index
    frame.loc[last[0], "reservations"] = f"{NOT_TRUSTED}; {NOT_REACHED}"
    frame.loc[last[1], "reservations"] = NOT_REACHED
    # At an earlier milestone, which the table does not show.
    frame.loc[traces[traces.step == 400].index[1], "reservations"] = NOT_TRUSTED
    marked = render(Content(name="demo", frame=frame))
    assert marked.count('<span class="warn">not trusted, target not reached</span>') == 1
    assert marked.count('<span class="warn">target not reached</span>') == 1
    assert marked.count('class="warn"') == 2
    assert "A standard error that is not trusted comes from few inputs" in marked
    assert 'class="warn"' not in page
    assert "that is not trusted" not in page


def test_text_from_outside_cannot_become_markup(table: Table) -> None:
    frame = table(tasks=("<u>",), steps=(400,))
    frame["run_id"] = frame["run_id"] + "<b>&"
    failure = Failure(run_id="<i>", error="E", message="<script>alert(1)</script>")
    page = render(
        Content(name="<u>", description="<u>", frame=frame, failures=[failure], provenance={"<u>": "<u>"})
    )
    reader = read(page)
    assert not {"script", "u", "i"} & set(reader.tags)
    assert "&lt;script&gt;alert(1)" in page


@pytest.mark.parametrize(
    ("change", "figures"),
    [
        ({"tasks": ()}, 4),
        ({"tasks": (), "trace": False, "lookup": False}, 3),
        # A single seed does not tell noise from a misfit, so there is no law.
        ({"seeds": (0,)}, 10),
        # Too few saturated checkpoints for a figure at equal loss: all are in the headline.
        ({"seeds": (0,), "steps": (400,), "models": (("32/1/2/128", 14_000),)}, 6),
        ({"models": (("32/1/2/128", 14_000),)}, 9),
        # The losses of this table drift off a law, by chance.
        ({"trace": False, "tasks": ("A",)}, 3),
        ({"models": ()}, 0),
        ({"models": (), "lookup": False}, 0),
    ],
)
def test_nothing_is_drawn_that_was_not_measured(table: Table, change: dict, figures: int) -> None:
    page = render(Content(name="demo", frame=table(**change), milestones={"x": (400, 800)}))
    assert read(page).tags.count("figure") == figures
    assert "not enough data" in text(page).lower()
    assert "nan" not in re.sub(r"\w*nan\w+|\w+nan\w*", "", text(page).lower())


def test_a_run_that_is_behind_ends_where_its_measurements_end(table: Table) -> None:
    frame = table(lookup=False)
    behind = (frame["model"] == "64/1/2/256") & (frame["step"] > 800)
    unprobed = (frame["step"] == 1600) & frame["metric"].str.startswith("probe/")
    measured = measurements(frame[~behind & ~unprobed])
    steps = along_training(measured, ["excess_loss", "trace", "probe/A"], name="s")
    assert steps is not None
    last = steps.data.groupby(["model", "metric"])["step"].agg(list)
    assert last["64/1/2/256", "trace"] == [400, 800]
    assert last["32/1/2/128", "probe/A"] == [400, 800, 3200]
    drawn, step = across_sizes(measured, ["excess_loss", "trace", "probe/A"], name="z")
    assert step == 800
    assert set(drawn.data["step"]) == {800}
    dots = scatter(measured, "trace", "probe/A", tolerance=0.02, name="t")
    assert len(dots.data) == 3 * 3 + 3 * 2


def test_means_and_errors_over_seeds_are_those_of_the_seeds(table: Table) -> None:
    frame = table()
    drawn = along_training(measurements(frame), ["trace"], name="s")
    cell = drawn.data[(drawn.data["model"] == "32/1/2/128") & (drawn.data["step"] == 800)].iloc[0]
    chosen = (frame["model"] == "32/1/2/128") & (frame["step"] == 800) & (frame["metric"] == "trace")
    values = frame.loc[chosen, "value"].to_numpy()
    assert cell["seeds"] == 3
    assert cell["mean"] == pytest.approx(values.mean())
    assert cell["standard_error"] == pytest.approx(values.std(ddof=1) / np.sqrt(3))
    one = along_training(measurements(table(seeds=(0,))), ["trace"], name="s")
    assert one.data["standard_error"].isna().all()


def test_numbers_that_are_not_finite_or_not_positive_do_not_break_a_log_axis(table: Table) -> None:
    frame = table()
    losses = frame.index[frame["metric"] == "excess_loss"]
    frame.loc[losses[0], "value"] = np.nan
    frame.loc[losses[1], "value"] = np.inf
    frame.loc[losses[2], "value"] = 0.0
    measured = measurements(frame)
    dots = scatter(measured, "excess_loss", "probe/A", tolerance=0.02, name="t")
    assert len(dots.data) == 24 - 3
    along_training(measured, ["excess_loss"], name="s")


def test_bars_stay_inside_the_axes(table: Table) -> None:
    frame = table(lookup=False)
    wide = frame.copy()
    accuracies = wide["metric"].str.startswith("probe/")
    wide.loc[accuracies, "standard_error"] = 0.2

    def lowest(tidy: pd.DataFrame) -> float:
        drawn = scatter(measurements(tidy), "trace", "probe/A", tolerance=0.02, name="t")
        return min(float(t) for t in re.findall(r"<text[^>]*>(0\.\d+)</text>", drawn.svg))

    smallest = frame.loc[accuracies, "value"].min()
    assert smallest - 0.25 < lowest(wide) < smallest - 0.1
    assert lowest(frame) > smallest - 0.02


def test_runs_of_other_lengths_are_no_seeds_of_one_another(table: Table) -> None:
    frame = table()
    lengths = frame["run_id"].map({run: k for k, run in enumerate(frame["run_id"].unique())}) % 3
    # Where a rate is constant a run has no length of its own.
    frame["pretrain.steps"] = lengths.map({0: 500.0, 1: 1000.0, 2: None})
    assert measurements(frame).variants == ("", "steps 1000", "steps 500")


def test_axes_beyond_size_and_seed_become_variants(table: Table) -> None:
    measured = measurements(table(rates=(0.001, 0.01)))
    assert measured.variants == ("lr 0.001", "lr 0.01")
    assert measurements(table()).variants == ("",)
    # The label of an algorithm adds nothing to its rate, but tells a run without a rate from the others.
    named = table(rates=(0.001, 0.01))
    named["algorithm"] = "adamw-lr" + named["algorithm.lr"].astype(str)
    assert measurements(named).variants == ("lr 0.001", "lr 0.01")
    named.loc[named["algorithm.lr"] == 0.001, ["algorithm", "algorithm.lr"]] = "sam", None
    assert measurements(named).variants == ("adamw-lr0.01, lr 0.01", "sam")
    page = render(Content(name="demo", frame=table(rates=(0.001, 0.01), seeds=(0,), tasks=("A",))))
    assert "lr 0.01" in text(page)


def test_the_data_of_every_figure_travels_with_the_page(table: Table, page: str) -> None:
    frame = table()
    files = dict(re.findall(r'download="([^"]+)" href="data:[a-z/]+;base64,([^"]+)"', page))
    assert len(files) == 11 + 1
    # A large table is compressed.
    assert {name.endswith(".gz") for name in files} == {True, False}
    assert all(len(content) < 20_000 for content in files.values())
    back = pd.read_csv(io.BytesIO(base64.b64decode(files["demo.csv.gz"])), compression="gzip")
    pd.testing.assert_series_equal(back["value"], frame["value"])


def test_correlations_find_what_is_there_and_say_when_they_cannot(table: Table) -> None:
    rows = {(r.task, r.band): r for r in correlations(measurements(table()), tolerance=0.02)}
    assert set(rows) == {("A", "all"), ("A", "saturated"), ("B", "all"), ("B", "saturated")}
    found = rows["A", "all"]
    assert (found.checkpoints, found.runs, found.configurations) == (24, 6, 2)
    assert found.of_flatness.value < -0.95
    assert found.of_flatness_given_loss.value < 0
    # Three seeds of two configurations are two clusters.
    assert found.of_flatness.low is None
    models = [(f"{16 * k}/1/2/{64 * k}", 7000 * k * k) for k in range(1, 7)]
    many = correlations(measurements(table(models=models, seeds=(0,))), tolerance=0.02)[0]
    assert many.of_flatness.low <= many.of_flatness.value <= many.of_flatness.high < -0.7
    unsaturated = {(r.task, r.band): r for r in correlations(measurements(table()), tolerance=1e-9)}
    assert unsaturated["A", "saturated"].checkpoints == 0
    assert unsaturated["A", "saturated"].of_flatness is None


def test_the_correlations_are_those_of_the_statistics_room(table: Table) -> None:
    measured = measurements(table())
    found = correlations(measured, tolerance=0.02)[0]
    rows = measured.has("excess_loss", "trace", "probe/A")
    loss, trace, accuracy = (rows[c].to_numpy() for c in ("excess_loss", "trace", "probe/A"))
    assert found.of_loss.value == pytest.approx(stats.spearmanr(loss, accuracy).statistic)
    assert found.of_flatness.value == pytest.approx(stats.spearmanr(trace, accuracy).statistic)
    clusters = configurations(rows)
    given = at_level(trace, accuracy, loss, clusters, clusters, "all")
    assert found.of_flatness_given_loss.value == pytest.approx(float(given.value))
    assert found.configurations == 2


def test_the_verdicts_are_the_first_section(table: Table) -> None:
    page = render(Content(name="demo", frame=table()))
    # A figure of what a verdict rests on is beside it, all others follow.
    assert page.index("<h2>Verdicts</h2>") < page.index("<figure>") < page.index("runs measured")
    assert page.index("demo-adjusted-0.csv") < page.index("runs measured") < page.index("demo-A-excess_loss")
    assert "At equal loss, flatter goes with better: <b>" in page
    assert "look-up table: <b>" in page
    told = measurements(table())
    some = verdicts(told, Questions(claims=(Claim(longer=Longer(task="B")),)))
    other = render(Content(name="demo", frame=table(), verdicts=some))
    assert "Task B: at equal loss, longer training" in other
    assert "flatter goes with better" not in other


def test_progress_failures_and_provenance_are_told(table: Table) -> None:
    frame = table(seeds=(0,))
    runs = [r for r in frame["run_id"].unique() if not r.startswith("lookup")]
    page = text(
        render(
            Content(
                name="demo",
                frame=frame,
                milestones={
                    runs[0]: (400, 800, 1600, 3200, 6400),
                    runs[1]: (400, 800, 1600, 3200),
                    "later": (400,),
                    "lookup": (0,),
                },
                failures=[
                    Failure(run_id=runs[0], error="RunFailedError", message="loss is not finite", step=3500),
                    Failure(run_id=runs[1], error="OSError", message="disk", retried=True),
                ],
                provenance={"commit": "abc123"},
                commands={"MLflow": "raysweep ui demo"},
            )
        )
    )
    for expected in (
        "2 of 3",
        "8 of 10",
        "4 of 5",
        "not measured yet",
        "loss is not finite",
        "tried again",
        "abc123",
    ):
        assert expected in page
    assert "raysweep ui demo" in page


def test_summary_is_the_last_milestone_of_each_size(table: Table) -> None:
    found = summary(table())
    headings, rows = found.headings, found.rows
    assert headings[:4] == ["model", "parameters", "step", "seeds"]
    assert [row[:4] for row in rows[:2]] == [
        ["32/1/2/128", "14k", "3,200", "3"],
        ["64/1/2/256", "52k", "3,200", "3"],
    ]
    assert rows[2][0] == "look-up table"
    assert all(len(row) == len(headings) for row in rows)
    assert "±" in rows[0][4]
    assert headings[4:] == ["excess loss", "trace", "A", "B"]
    assert found.title.endswith(
        "the last columns are probe accuracy by task; "
        "± leaves out the draw of test sentences, which all share"
    )
    assert summary(table().iloc[:0]).rows == []
    assert rows[2][4:] == ["–", "–", "0.860 ± 0.001", "0.860 ± 0.001"]
    # A sweep that tests a theory measures nothing of what the table holds.
    theory = table().assign(metric="sharpness/sam", report=False)
    assert summary(theory).rows == []
    assert "saturated" not in render(Content(name="theory", frame=theory))
    # A single seed has the error of its own measurement.
    alone = summary(table(seeds=(0,), tasks=("A",), lookup=False)).rows[0]
    assert alone[4].endswith("± 0.0003")
    assert re.fullmatch(r"0\.8\d\d ± 0\.001", alone[6])


@pytest.mark.parametrize(("low", "high"), [(0.011, 0.013), (0.5, 0.9), (0.01, 0.3), (3, 5e4), (1e-6, 1e3)])
def test_ticks_are_few_round_and_inside(low: float, high: float) -> None:
    ticks = log_ticks(low, high)
    assert 2 <= len(ticks) <= 7
    assert all(low <= tick <= high for tick in ticks)
    assert ticks == sorted(ticks)


def test_a_corpus_shows_its_held_out_loss(table: Table) -> None:
    frame = table()
    frame = frame[frame["metric"].isin(["excess_loss", "trace"]) & frame["model"].notna()]
    for place in frame.index[frame["metric"] == "excess_loss"]:
        held_out = cells(HELD_OUT_LOSS.number(frame.loc[place, "value"], n=4096))
        frame.loc[place, list(held_out)] = pd.Series(held_out)
    found = summary(frame)
    assert found.headings[4:] == ["held-out loss", "trace"]
    assert all(row[4] != "–" for row in found.rows)
    page = render(Content(name="corpus", frame=frame))
    assert "held-out loss (nats) over" in page or "held-out loss (nats), " in page
    assert "<th>held-out loss (nats)" in page or "held-out loss (nats)</th>" in page
