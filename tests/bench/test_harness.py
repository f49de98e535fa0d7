"""The order of a benchmark: equality before time, all contestants in turn, ratios of the same round."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Literal

import pytest

from raysweep.bench import harness
from raysweep.bench.harness import Case, Contestant, Difference, Entry, Peer, Prepared, UnavailableError
from raysweep.bench.record import CaseRecord, Figure, Goal, Peak, Spread, Timing

PEAK = Peak(gemm_float32_gflops=100.0, gemm_float64_gflops=50.0, copy_gbytes=10.0)


class Clock:
    """Time that passes only where a contestant works; the wall clock runs twice as fast as the CPU clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.calls: list[str] = []
        fake = SimpleNamespace(process_time=lambda: self.now, perf_counter=lambda: 2 * self.now)
        monkeypatch.setattr(harness, "time", fake)
        monkeypatch.setattr(harness, "gc", SimpleNamespace(collect=self.collect))

    def collect(self) -> None:
        """Let time pass that must be in no contestant's."""
        self.now += 100.0

    def work(self, name: str, seconds: float, slower: float = 0.0) -> Callable[[], None]:
        """Return work that takes `seconds`, and `slower` more at each further call."""
        taken = [seconds]

        def run() -> None:
            self.calls.append(name)
            self.now += taken[0]
            taken[0] += slower

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def peer(name: str, work: Callable[[], None], distance: float = 0.0, units: int = 1, **more: object) -> Peer:
    prepared = Prepared(
        check=lambda: Difference(quantity="distance", value=distance, tolerance=1e-6),
        contestant=Contestant(units=units, work=work),
    )
    return Peer(name=name, prepare=lambda: prepared, **more)  # type: ignore[arg-type]


def run(case: Case) -> CaseRecord:
    entry = Entry(key="key", work="work", build=lambda quick: case)
    return harness.run_case(entry, PEAK, quick=False, say=lambda line: None)


def test_shares_are_of_one_call_and_functions_are_put_back(clock: Clock) -> None:
    fast, slow = clock.work("fast", 1.0), clock.work("slow", 3.0)
    module = SimpleNamespace(fast=fast, slow=slow)

    def work() -> None:
        module.fast()
        module.slow()
        clock.now += 4.0

    found = harness.shares({"of fast": (module, ["fast"]), "of slow": (module, ["slow"])}, work)
    assert [(figure.name, figure.value) for figure in found] == [("of fast", 1 / 8), ("of slow", 3 / 8)]
    assert (module.fast, module.slow) == (fast, slow)
    [both] = harness.shares({"of both": (module, ["fast", "slow"])}, work)
    assert both.value == 4 / 8
    [of_other] = harness.shares({"of fast": (module, ["fast"])}, clock.work("at once", 5.0), work)
    assert of_other.value == 1 / 5
    with pytest.raises(ZeroDivisionError):
        harness.shares({"of fast": (module, ["fast"])}, lambda: 1 / 0)
    assert module.fast is fast


def test_a_paired_ratio_is_the_median_of_rounds(clock: Clock) -> None:
    # After a round that warms up, the first takes 3, 4 and 5 seconds.
    assert harness.paired_ratio(clock.work("one", 2.0, slower=1.0), clock.work("other", 2.0), rounds=3) == 2.0
    assert clock.calls == ["one", "other"] * 4


def test_ratio_is_per_unit_of_work(clock: Clock) -> None:
    ours = Contestant(units=100, work=clock.work("ours", 2.0))
    record = run(Case(unit="x", ours=ours, peers=[peer("slow", clock.work("slow", 6.0), units=3)], rounds=4))
    assert record.timing == Timing(
        units=100, repeats=4, cpu_seconds=Spread.of([0.02]), wall_seconds=Spread.of([0.04])
    )
    [row] = record.comparisons
    assert row.status == "equal"
    assert row.timing is not None
    assert row.timing.cpu_seconds.median == pytest.approx(2.0)
    assert row.cpu_ratio is not None
    assert row.cpu_ratio.median == pytest.approx(100.0)
    assert row.wall_ratio is not None
    assert row.wall_ratio.median == pytest.approx(100.0)


def test_ratios_are_of_the_same_round(clock: Clock) -> None:
    # Both become slower in the same way, as on a machine that throttles; the ratio stays.
    ours = Contestant(units=1, work=clock.work("ours", 1.0, slower=1.0))
    theirs = clock.work("theirs", 6.0, slower=3.0)
    [row] = run(Case(unit="x", ours=ours, peers=[peer("theirs", theirs)], rounds=5)).comparisons
    assert row.cpu_ratio == Spread.of([3.0])


def test_everybody_takes_turns_after_a_first_call(clock: Clock) -> None:
    ours = Contestant(units=1, work=clock.work("ours", 1.0))
    peers = [peer(name, clock.work(name, 1.0)) for name in "ab"]
    run(Case(unit="x", ours=ours, peers=peers, rounds=3))
    assert clock.calls == ["ours", *("ours", "a", "b"), *("a", "b", "ours"), *("b", "ours", "a")]


@pytest.mark.parametrize("distance", [1e-3, math.nan, math.inf])
def test_a_peer_that_is_not_equal_is_not_timed(clock: Clock, distance: float) -> None:
    ours = Contestant(units=1, work=clock.work("ours", 1.0))
    peers = [peer("wrong", clock.work("wrong", 1.0), distance), peer("right", clock.work("right", 1.0))]
    wrong, right = run(Case(unit="x", ours=ours, peers=peers)).comparisons
    assert (wrong.status, wrong.timing, wrong.cpu_ratio) == ("failed", None, None)
    assert wrong.check is not None
    assert not wrong.check.passed
    assert "wrong" not in clock.calls
    assert right.status == "equal"


def test_a_peer_known_to_be_unequal_is_timed_and_marked(clock: Clock) -> None:
    ours = Contestant(units=1, work=clock.work("ours", 1.0))
    odd = peer("odd", clock.work("odd", 2.0), math.nan, known_unequal="no zeros")
    [row] = run(Case(unit="x", ours=ours, peers=[odd])).comparisons
    assert (row.status, row.reason) == ("unequal", "no zeros")
    assert row.check is not None
    assert row.check.value is None
    assert row.cpu_ratio is not None
    # A peer that is equal after all has no reason against it.
    same = peer("same", clock.work("same", 2.0), 0.0, known_unequal="no zeros")
    [row] = run(Case(unit="x", ours=ours, peers=[same])).comparisons
    assert (row.status, row.reason) == ("equal", None)


def test_what_is_absent_is_listed(clock: Clock) -> None:
    def absent() -> Prepared:
        raise UnavailableError("peer is not installed")

    ours = Contestant(units=1, work=clock.work("ours", 1.0))
    [row] = run(Case(unit="x", ours=ours, peers=[Peer(name="gone", prepare=absent, goal=3)])).comparisons
    assert (row.status, row.reason, row.met) == ("absent", "peer is not installed", None)


def test_a_case_that_cannot_be_built_is_listed() -> None:
    def build(quick: bool) -> Case:
        raise UnavailableError("not on this system")

    entry = Entry(key="key", work="work", build=build)
    record = harness.run_case(entry, PEAK, quick=True, say=lambda line: None)
    assert (record.reason, record.timing, record.comparisons) == ("not on this system", None, ())


def test_defects_are_not_hidden(clock: Clock) -> None:
    def broken() -> Prepared:
        raise ZeroDivisionError

    ours = Contestant(units=1, work=clock.work("ours", 1.0))
    with pytest.raises(ZeroDivisionError):
        run(Case(unit="x", ours=ours, peers=[Peer(name="broken", prepare=broken)]))


def test_figures_are_made_of_timing_and_peak(clock: Clock) -> None:
    def figures(timing: Timing | None, peak: Peak) -> list[Figure]:
        assert timing is not None
        share = 1.0 / timing.cpu_seconds.median / peak.gemm_float32_gflops
        return [Figure(name="share", unit="", value=share, goal=Goal(sense="at least", value=0.5))]

    ours = Contestant(units=1, work=clock.work("ours", 0.04))
    [figure] = run(Case(unit="x", ours=ours, figures=figures)).figures
    assert figure.value == pytest.approx(0.25)
    assert figure.met is False


@pytest.mark.parametrize(
    ("sense", "value", "met"), [("at least", 3.0, True), ("at least", 2.9, False), ("at most", 3.1, False)]
)
def test_goals(sense: str, value: float, met: bool) -> None:
    assert Goal.decode({"sense": sense, "value": 3.0}).met(value) is met


@pytest.mark.parametrize(("which", "seconds", "ratio"), [("cpu", 1.0, 3.0), ("wall", 2.0, 4.0)])
def test_the_time_that_counts(
    clock: Clock, which: Literal["cpu", "wall"], seconds: float, ratio: float
) -> None:
    ours = Contestant(units=1, work=clock.work("ours", 1.0))
    record = run(
        Case(unit="x", ours=ours, peers=[peer("slow", clock.work("slow", 3.0), goal=3.5)], clock=which)
    )
    assert record.timing is not None
    assert record.timing.seconds.median == pytest.approx(seconds)
    row = record.comparisons[0].model_copy(update={"wall_ratio": Spread.of([4.0])})
    assert row.ratio == Spread.of([ratio])
    assert row.met is (ratio > 3.5)


def test_the_cheapest_way_is_that_of_the_shortest_second_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    works = {"a": clock.work("a", 1.0, slower=4.0), "b": clock.work("b", 3.0), "c": clock.work("c", 4.0)}

    def cost(name: str) -> float:
        return harness.seconds(works[name], lambda: clock.now)

    assert harness.cheapest(list(works), cost) == "b"
    assert clock.calls == ["a", "a", "b", "b", "c", "c"]
