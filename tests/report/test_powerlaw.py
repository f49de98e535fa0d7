"""Power laws: known truths are found, intervals are Student's where they should be, and no law is made up."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from scipy import optimize, stats

from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.metric import Description
from raysweep.report import Content, render
from raysweep.report.data import measurements
from raysweep.report.law_fit import Fit, Meeting
from raysweep.report.law_intervals import EXPONENT, Quantity, Scores, Term
from raysweep.report.laws import Asked, Found, law_of, laws
from raysweep.report.laws_section import ends, law_figure, laws_section, when
from raysweep.report.powerlaw import Curves, Law

STEPS = np.array([250.0, 500, 1000, 2000, 4000])
LOSS = Description(**EXCESS_LOSS.model_dump())


def noisy(generator: np.random.Generator, floors: list[float], *, beta: float = 0.8, seeds: int = 3) -> list:
    """Return the logs of runs that deviate from their laws by a constant, a slope and noise."""
    logs = []
    for floor in floors:
        law = np.log(floor + 0.02 * (STEPS / 4000) ** -beta)
        constant, slope = generator.normal(size=(2, seeds, 1))
        noise = generator.normal(size=(seeds, len(STEPS)))
        logs.append(law + 0.05 * constant + 0.03 * slope * np.log(STEPS / 1000) + 0.01 * noise)
    return logs


def sweep(
    floors: tuple[float, ...] = (0.03, 0.01),
    *,
    steps: tuple[int, ...] = (250, 500, 1000, 2000, 4000),
    seeds: int = 2,
    beta: float = 0.8,
    transient: float = 0.0,
    noise: float = 0.002,
) -> pd.DataFrame:
    """Return the values of runs as a law is asked for, scaled by a little noise."""
    generator = np.random.default_rng(0)
    rows = []
    for size, floor in enumerate(floors):
        for seed in range(seeds):
            scale = math.exp(noise * generator.normal())
            for step in steps:
                value = floor + 0.02 * (step / 4000) ** -beta + transient * math.exp(-step / 100)
                rows.append((f"{size}-{seed}", f"size {size}", 1000 * 2**size, step, scale * value))
    return pd.DataFrame(rows, columns=["run_id", "model", "parameters", "step", "value"])


def declining() -> pd.DataFrame:
    """Return values that fall with the logarithm of the step, which the law follows only at β = 0."""
    generator, table = np.random.default_rng(0), sweep(seeds=3)
    scatter = 1 + 0.002 * generator.normal(size=len(table))
    return table.assign(value=(0.5 - 0.03 * np.log(table["step"])) * scatter)


def law(table: pd.DataFrame) -> Found:
    return law_of(Asked(metric=LOSS, title="excess loss", variant="", table=table))


def test_a_law_without_noise_is_found() -> None:
    logs = [
        [np.log(floor + scale * STEPS**-0.37)] * 2 for floor, scale in ((0.5, 3.0), (0.0, 2.0), (0.1, 1.0))
    ]
    found = Fit(Curves.of(STEPS, logs)).law
    assert float(found.exponent) == pytest.approx(0.37, abs=1e-4)
    assert found.floor == pytest.approx([0.5, 0.0, 0.1], abs=1e-3)
    at_end = [found.at(size, np.log([4000.0]))[0] for size in range(3)]
    assert at_end == pytest.approx([math.exp(one[0][-1]) for one in logs])


@pytest.mark.parametrize("floors", [[0.03, 0.01], [0.02, 0.0]])
def test_no_general_optimiser_finds_a_better_fit(floors: list[float]) -> None:
    curves = Curves.of(STEPS, noisy(np.random.default_rng(3), floors))
    found, (k, x) = Fit(curves).law, (len(floors), curves.log_steps - np.log(4000))

    def misfit(theta: np.ndarray) -> np.ndarray:
        fitted = theta[1 : 1 + k, None] + theta[1 + k :, None] * np.exp(-theta[0] * x)
        return (fitted / np.exp(curves.means) - 1).ravel()

    ours = np.concatenate([[found.exponent], found.floor, found.scale])
    starts = [
        np.r_[beta, np.full(k, share * 0.02), np.full(k, 0.02)] for beta in (0.3, 1, 2) for share in (0.1, 1)
    ]
    best = min(optimize.least_squares(misfit, s, bounds=(0, np.inf), xtol=1e-12).cost for s in starts)
    assert (misfit(ours) ** 2).sum() / 2 <= best * (1 + 1e-6)


def test_the_interval_of_a_level_is_that_of_student() -> None:
    generator = np.random.default_rng(1)
    flat = [np.log(0.01) + 0.05 * generator.normal(size=(3, 1)) + 0 * STEPS for _ in range(2)]
    # A constant for each run shifts the whole law of its size, so the loss is that constant's mean.
    logs = [one + np.log(1 + 2 * (STEPS / 4000) ** -0.8) for one in flat]
    low, high = (float(end[0]) / 0.03 for end in Fit(Curves.of(STEPS, logs)).at(0, np.log([4000.0])))
    spread = np.concatenate([one[:, 0] - one[:, 0].mean() for one in flat])
    half = stats.t.ppf(0.975, 4) * math.sqrt((spread**2).sum() / 4 / 3)
    # Relative to the estimate itself, since values are relative to means.
    centre = math.exp((flat[0] - np.log(0.01)).mean())
    assert low == pytest.approx(centre * (1 - half), rel=1e-3)
    assert high == pytest.approx(centre * (1 + half), rel=1e-3)


def by_hand(curves: Curves, quantity: Quantity, theta: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Return a quantity, its score and its direction at a law, by numerical derivatives."""
    k, origin = len(curves.runs), float(curves.last.max())

    def laws(theta: np.ndarray) -> Law:
        return Law(np.exp(theta[0]), theta[1 : 1 + k], theta[1 + k :], origin)

    def fitted(theta: np.ndarray) -> np.ndarray:
        rows = [laws(theta).at(size, curves.log_steps[size]) for size in range(k)]
        return (np.stack(rows) / np.exp(curves.means)).ravel()

    def value(theta: np.ndarray) -> float:
        total = 0.0
        for term in quantity:
            if term.size is None:
                total += term.factor * theta[0]
            elif np.isinf(term.log_steps[0]):
                total += term.factor * theta[1 + term.size]
            else:
                total += term.factor * laws(theta).at(term.size, term.log_steps)[0]
        return float(total)

    moves = np.diag(1e-5 * np.maximum(np.abs(theta), 1e-3))
    slopes = np.stack([(fitted(theta + m) - fitted(theta - m)) / (2 * m.sum()) for m in moves], axis=1)
    gradient = np.array([(value(theta + m) - value(theta - m)) / (2 * m.sum()) for m in moves])
    inverse = np.linalg.inv(slopes.T @ slopes)
    # The covariance of all means: pooled deviations by the runs of each size, none between sizes.
    milestones = curves.means.shape[1]
    covariance = np.zeros((k * milestones, k * milestones))
    for size, runs in enumerate(curves.runs):
        own = slice(size * milestones, (size + 1) * milestones)
        spread = curves.deviations[:, size].T @ curves.deviations[:, size]
        covariance[own, own] = spread / curves.dof / runs
    weights = slopes @ inverse @ gradient
    error = math.sqrt(weights @ covariance @ weights)
    along = inverse @ slopes.T @ covariance @ weights / error
    return value(theta), float(weights @ (1 - fitted(theta))) / error, along


QUANTITIES = [
    EXPONENT,
    [Term(1.0, 0, np.array([np.inf]))],
    [Term(1.0, 1, np.log([16000.0]))],
    [Term(1.0, 0, np.log([8000.0])), Term(-1.0, 1, np.log([4000.0]))],
]


@pytest.mark.parametrize("floors", [[0.03, 0.01], [0.02, 0.0, 0.01]])
@pytest.mark.parametrize("quantity", QUANTITIES)
def test_scores_are_those_of_numerical_derivatives(floors: list[float], quantity: Quantity) -> None:
    generator = np.random.default_rng(4)
    curves = Curves.of(STEPS, noisy(generator, floors))
    scores = Scores(curves)
    best = np.concatenate([one.ravel() for one in scores.estimate])
    k = len(floors)
    assert scores.at(quantity, *scores.estimate).t == pytest.approx(0.0, abs=1e-3)
    for _ in range(3):
        theta = best + np.abs(best) * 0.1 * generator.normal(size=best.shape)
        found = scores.at(quantity, theta[:1], theta[None, 1 : 1 + k], theta[None, 1 + k :])
        value, t, along = by_hand(curves, quantity, theta)
        assert found.value == pytest.approx([value])
        assert found.t == pytest.approx([t], rel=1e-3)
        assert np.concatenate([one.ravel() for one in found.along]) == pytest.approx(along, rel=1e-3)


@pytest.mark.parametrize("quantity", QUANTITIES)
def test_an_interval_ends_where_its_test_does(quantity: Quantity) -> None:
    """By the same way in a hundred small steps, with numerical derivatives."""
    curves = Curves.of(STEPS, noisy(np.random.default_rng(4), [0.03, 0.01]))
    scores = Scores(curves)
    for side, end in zip((-1, 1), scores.interval(quantity), strict=True):
        theta = np.concatenate([one.ravel() for one in scores.estimate])
        here = by_hand(curves, quantity, theta)
        while -side * here[1] < scores.critical():
            before, theta = here, theta + side * scores.critical() / 50 * here[2]
            here = by_hand(curves, quantity, theta)
        share = (-side * scores.critical() - before[1]) / (here[1] - before[1])
        expected = before[0] + share * (here[0] - before[0])
        assert end == pytest.approx([expected], rel=0.02, abs=0.01 * abs(here[0] - before[0]) * 50)


def test_what_runs_do_not_bound_has_no_ends() -> None:
    """Values that fall with the logarithm of the step are met by ever smaller exponents and floors."""
    generator = np.random.default_rng(5)
    logs = [
        np.log(0.5 - 0.03 * np.log(STEPS)) + 0.002 * generator.normal(size=(2, len(STEPS))) for _ in range(2)
    ]
    scores = Scores(Curves.of(STEPS, logs))
    low, high = scores.interval(EXPONENT)
    assert low == -np.inf or np.exp(low) < 0.1
    assert scores.interval([Term(1.0, 0, np.array([np.inf]))])[0] < 0
    assert np.isfinite(high)


def test_intervals_hold_the_truth_in_95_percent() -> None:
    """With correlated checkpoints, which a count of all of them would take for many runs."""
    generator, held, narrow = np.random.default_rng(6), [], []
    for _ in range(400):
        curves = Curves.of(STEPS, noisy(generator, [0.03, 0.01]))
        scores = Scores(curves)
        low, high = scores.interval(EXPONENT)
        held.append(bool(low <= np.log(0.8) <= high))
        # As if every checkpoint were a run of its own.
        error = scores.at(EXPONENT, *scores.estimate).error * scores.critical()
        narrow.append(bool(high - low < 2 * error / math.sqrt(len(STEPS))))
    assert 0.92 <= np.mean(held) <= 0.98
    assert not any(narrow)


def test_intervals_shrink_with_seeds_and_need_two_degrees_of_freedom() -> None:
    few, many = (
        Fit(Curves.of(STEPS, noisy(np.random.default_rng(2), [0.03, 0.01], seeds=n))) for n in (2, 12)
    )
    widths = [fit.exponent[2] - fit.exponent[1] for fit in (few, many)]
    assert widths[1] < widths[0] / 1.5
    again = Fit(few.curves)
    assert again.exponent == few.exponent
    single = Fit(Curves.of(STEPS, noisy(np.random.default_rng(2), [0.03, 0.01], seeds=1)))
    assert not single.sure
    assert math.isnan(single.exponent[1])
    assert math.isnan(single.equal(0, 1).low)
    assert single.exponent[0] == pytest.approx(0.8, abs=0.3)


def test_the_interval_of_a_floor_of_zero_holds_zero() -> None:
    fitted = Fit(Curves.of(STEPS, noisy(np.random.default_rng(0), [0.0, 0.01])))
    value, low, high = (ends[0] for ends in fitted.floors())
    assert value >= 0
    assert low == 0 < high


def test_an_interval_reaches_over_that_of_the_fit_that_was_given_up() -> None:
    logs = noisy(np.random.default_rng(3), [0.03, 0.01])
    early = Fit(Curves.of(STEPS, logs))
    late = Curves.of(STEPS[1:], [one[:, 1:] for one in logs])
    alone, both = Fit(late), Fit(late, earlier=early)
    assert both.exponent[0] == alone.exponent[0]
    for quantity in (
        [Term(1.0, 0, np.array([np.inf]))],
        [Term(1.0, 0, np.log(np.array([8000.0, 16000.0])))],
        [Term(1.0, 0, np.log(np.array([8000.0]))), Term(-1.0, 1, np.log(np.array([4000.0])))],
    ):
        ends = [np.stack(fit.interval(quantity)) for fit in (early, alone, both)]
        assert np.array_equal(ends[2][0], np.minimum(ends[0][0], ends[1][0]))
        assert np.array_equal(ends[2][1], np.maximum(ends[0][1], ends[1][1]))
    exponents = [fit.exponent for fit in (early, alone, both)]
    assert exponents[2][1:] == (
        min(exponents[0][1], exponents[1][1]),
        max(exponents[0][2], exponents[1][2]),
    )
    meetings = [fit.equal(0, 1) for fit in (early, alone, both)]
    assert meetings[2].low == min(meetings[0].low, meetings[1].low)
    assert meetings[2].high == max(meetings[0].high, meetings[1].high)
    # Whether the exponent drifts is asked of the later milestones alone.
    assert both.drifts() == alone.drifts()


def test_a_law_whose_start_was_moved_knows_the_earlier_one() -> None:
    """The exponent drifts from a quarter of the last milestone on, and not from half of it."""
    moved = 0
    for seed in range(12):
        table = sweep(steps=tuple(range(500, 8001, 500)), seeds=4, noise=0.02, beta=0.5)
        generator = np.random.default_rng(seed)
        slow = 1 + 0.02 * np.exp(-(table["step"] - 2000) / 700)
        value = table["value"] * slow * (1 + 0.002 * generator.normal(size=len(table)))
        found = law(table.assign(value=value))
        if found.fit is not None and found.start == 4000:
            assert found.fit.earlier is not None
            assert np.exp(found.fit.earlier.curves.log_steps[0][0]) == pytest.approx(2000)
            moved += 1
        elif found.fit is not None:
            assert found.fit.earlier is None
    assert moved > 0


def test_sizes_may_have_milestones_of_their_own() -> None:
    short = STEPS[:4]
    logs = [[np.log(0.03 + 2 * STEPS**-0.5)] * 2, [np.log(0.01 + 2 * short**-0.5)] * 2]
    curves = Curves.of([STEPS, short], logs)
    assert curves.known.sum(axis=1).tolist() == [5, 4]
    assert Fit(curves).law.floor == pytest.approx([0.03, 0.01], abs=1e-4)
    # What a run deviates by is carried to the milestones of other sizes.
    logs[1] = [logs[1][0] - np.log(short), logs[1][1] + np.log(short)]
    carried = Curves.of([STEPS, short], logs).deviations
    assert carried[3, 0] == pytest.approx([*np.log(short), np.log(short[-1])])


def test_a_floor_above_is_never_and_a_step_in_the_data_is_found() -> None:
    found = law(sweep((0.05, 0.01, 0.009)))
    assert found.fit is not None
    never, later = found.fit.equal(0, 1), found.fit.equal(1, 2)
    assert never == Meeting(math.inf, math.inf, never.high)
    assert when(found, 0, never) == "never, its floor is above"
    # (0.02 / (0.029 − 0.01))^(1 / 0.8) of the last milestone
    assert later.step == pytest.approx(4000 * (20 / 19) ** 1.25, rel=0.02)
    assert later.low < later.step < later.high < 6000
    assert "extrapolated to 1.1 × its last milestone" in when(found, 1, later)
    inside = law(sweep((0.01, 0.02)))
    assert inside.fit is not None
    meeting = inside.fit.equal(0, 1)
    assert meeting.step == pytest.approx(4000 * 1.5**-1.25, rel=0.02)
    assert "extrapolated" not in when(inside, 0, meeting)
    assert ends(inside, Meeting(1000.0, 900.0, math.inf)) == "[900, never]"
    assert ends(inside, Meeting(200.0, 250.0, 250.0)) == "≤ 250"


def test_a_transient_is_left_out() -> None:
    assert law(sweep()).start == 500
    found = law(sweep(steps=(125, 250, 500, 1000, 2000, 4000, 8000, 16000), transient=0.5))
    assert found.start >= 1000
    assert found.fit is not None
    assert found.fit.exponent[0] == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (sweep(steps=(250, 500, 1000)), "it takes 4 milestones at each of 2 sizes"),
        (sweep((0.03,)), "it takes 4 milestones at each of 2 sizes"),
        (sweep().iloc[:0], "it takes 4 milestones at each of 2 sizes"),
        (sweep().assign(value=0.0), "not all values are positive"),
        (sweep().assign(value=lambda t: t["value"] * (1 + 0.2 * (t["step"] == 1000))), "it is off by"),
        (declining(), "the exponent is not determined"),
        (sweep().assign(value=lambda t: 0.3 + 1e-9 * t["step"]), "the values hardly change"),
        (sweep(seeds=1).assign(value=0.3), "the values hardly change"),
        (sweep().assign(parameters=1000), "models of one size differ in something else"),
    ],
)
def test_no_law_is_made_of_too_little(table: pd.DataFrame, reason: str) -> None:
    found = law(table)
    assert found.fit is None
    assert reason in found.reason


def test_a_size_that_is_behind_is_left_out() -> None:
    table = sweep((0.03, 0.02, 0.01))
    found = law(table[(table["model"] != "size 2") | (table["step"] <= 500)])
    assert found.sizes == ["size 0", "size 1"]


def test_the_page_has_exponents_a_figure_and_the_steps(table: Callable[..., pd.DataFrame]) -> None:
    measured = measurements(table(steps=(200, 400, 800, 1600, 3200)))
    [loss, *others] = laws(measured)
    assert loss.fit is not None
    # The loss of the table is 40 / (1 + size) / S.
    _, low, high = loss.fit.exponent
    assert low <= 1.0 <= high
    assert [one.asked.metric.kind for one in others] == ["flatness", "accuracy", "accuracy"]
    section = laws_section(measured, "demo")
    for expected in ("over steps, β", "demo-laws.csv", "1.0", "probe accuracy, task A"):
        assert expected in section
    drawn = law_figure(measured, loss, name="laws-0")
    assert set(drawn.data["kind"]) == {"measured", "law", "equal loss"}
    assert (drawn.data["kind"] == "measured").sum() == 2 * 3 * 5
    assert "32/1/2/128 reaches the" in drawn.alternative
    assert "<title>32/1/2/128 reaches the" in drawn.svg
    assert laws_section(measured, "demo") == section


def test_without_enough_milestones_the_page_says_so(table: Callable[..., pd.DataFrame]) -> None:
    short = laws_section(measurements(table(steps=(400, 800))), "demo")
    assert "<figure" not in short
    assert "Excess loss; trace; " in short
    assert "not enough data: it takes 4 milestones at each of 2 sizes." in short
    assert laws_section(measurements(table(models=(("32/1/2/128", 14_000),))), "demo") == ""
    assert "Power laws" in render(Content(name="demo", frame=table(rates=(0.001, 0.01), tasks=("A",))))
