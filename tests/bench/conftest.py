"""A record with every kind of entry."""

from __future__ import annotations

import pytest

from raysweep.bench.record import (
    CaseRecord,
    Check,
    Comparison,
    Environment,
    Figure,
    Goal,
    Peak,
    Record,
    Spread,
    Timing,
)


def spread(value: float) -> Spread:
    return Spread(median=value, lower=0.9 * value, upper=1.1 * value)


def timing(seconds: float) -> Timing:
    return Timing(units=10, repeats=3, cpu_seconds=spread(seconds), wall_seconds=spread(seconds))


@pytest.fixture
def record() -> Record:
    check = Check(quantity="distance", value=1e-8, tolerance=1e-6, passed=True)
    timed = {"timing": timing(0.1), "cpu_ratio": spread(1000.0), "wall_ratio": spread(900.0)}
    comparisons = (
        Comparison(peer="good", status="equal", check=check, goal=Goal(sense="at least", value=800), **timed),
        Comparison(
            peer="odd|peer",
            status="unequal",
            reason="no zeros",
            check=check.model_copy(update={"value": None, "passed": False}),
            goal=Goal(sense="at least", value=8000),
            **timed,
        ),
        Comparison(peer="wrong", status="failed", check=check.model_copy(update={"passed": False})),
        Comparison(peer="gone", status="absent", reason="gone is not installed"),
    )
    figures = (
        Figure(name="peak memory", unit="GiB", value=1.5, goal=Goal(sense="at most", value=2.0)),
        Figure(name="entropy", unit="nats", value=4.35),
    )
    cases = (
        CaseRecord(
            key="first", work="some work", unit="sentence", timing=timing(1e-4), comparisons=comparisons
        ),
        CaseRecord(key="second", work="other work", unit="sentence", figures=figures),
        CaseRecord(key="third", work="no work", unit="", reason="not on this system"),
    )
    environment = Environment(
        date="2026-01-02",
        cpu="A Processor",
        cpu_capability="AVX2",
        cores=8,
        memory_gib=31.0,
        threads=1,
        system="Linux",
        python="3.11.7",
        versions={"torch": "2.13.0"},
        commit="0123456789abcdef",
        dirty=True,
    )
    peak = Peak(gemm_float32_gflops=100.0, gemm_float64_gflops=50.0, copy_gbytes=10.0)
    return Record(suite="exact", quick=False, environment=environment, peak=peak, cases=cases)
