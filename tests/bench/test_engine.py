"""The costs of short runs: computed from records and samples, compared with the bare loop."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raysweep.bench.engine import cases, launches, measure
from raysweep.bench.engine.bare import run_all
from raysweep.bench.engine.cases import MANY, Turns, figures, sweep_of
from raysweep.bench.engine.commands import RUNS
from raysweep.bench.engine.launches import Alone, Content, Kept, Measured, alone, content, kept, moments
from raysweep.bench.harness import Spent
from raysweep.bench.launching import engines, with_engine, write_sweep
from raysweep.bench.record import Figure, Record
from raysweep.errors import RunFailedError
from raysweep.sweep import Resources, Sweep, load_sweep

CONTENT = Content(table=b"table", weights={("a", 20): "0" * 64, ("b", 20): "1" * 64})


def measured(
    *, cpu: float = 1.0, wall: float = 1.0, runs: int = 8, slots: int = 2, **more: object
) -> Measured:
    """Return the costs of a launch, with CPU and wall time of a run after warm-up."""
    counted = runs - slots
    found = Measured(
        runs=runs,
        slots=slots,
        first_step=7.0,
        cpu=80.0,
        wall=30.0,
        leaving=2.0,
        spent=Spent(cpu=cpu * counted, wall=wall * counted),
        slowing=1.05,
        growing=1.2,
        each=50e3,
        memory=1.1,
        processes=12,
        content=CONTENT,
    )
    return replace(found, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Sweep, float]:
    """Return a sweep that the bare loop has done, and the moment at which it began."""
    folder = tmp_path_factory.mktemp("bare")
    file = write_sweep(folder, sweep_of(3, 20))
    sweep = load_sweep(file, storage=folder / "results")
    began = time.time()
    run_all(sweep)
    return sweep, began


def test_the_bare_loop_fills_the_ledger(bare: tuple[Sweep, float]) -> None:
    sweep, began = bare
    found = content(sweep)
    assert sorted(found.weights) == sorted((spec.run_id, 20) for spec in sweep.runs)
    assert len(set(found.weights.values())) == 3
    assert found.table.count(b"excess_loss") >= 3
    first, done = moments(sweep)
    assert began < first < done[0] < done[1] < done[2] < time.time()


def test_the_bare_loop_measures_the_untrained_and_both_sides_of_a_split(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, sweep_of(1, 20))
    told = ["include=[{algorithm: {kind: lookup_table}}]", "pretrain.sentences=64"]
    told.append("evaluate={excess_loss: {sentences: 64, split: both}}")
    sweep = load_sweep(file, told, storage=tmp_path / "results")
    run_all(sweep)
    for spec in sweep.runs:
        for step in spec.milestones:
            record = sweep.ledger().run(spec).evaluation(step, spec.evaluations["excess_loss"])
            assert record is not None
            names = {metric.name for metric in record.metrics}
            assert any("gap" in name for name in names) == spec.trains
            assert "excess_loss" in names
    assert [spec.trains for spec in sweep.runs].count(False) == 1


def test_an_incomplete_sweep_is_an_error(tmp_path: Path) -> None:
    sweep = load_sweep(write_sweep(tmp_path, sweep_of(2, 20)), storage=tmp_path / "results")
    with pytest.raises(RunFailedError, match="is not complete"):
        moments(sweep)


def test_contents_are_compared() -> None:
    assert CONTENT.unlike(CONTENT) == 0
    assert CONTENT.unlike(replace(CONTENT, table=b"other")) == 1
    assert CONTENT.unlike(replace(CONTENT, weights={("a", 20): "2" * 64})) == 2


def test_engines_are_those_that_a_sweep_file_may_name(tmp_path: Path) -> None:
    found = engines()
    assert found in (("nested",), ("nested", "lanes"))
    for name in found:
        sweep = load_sweep(write_sweep(tmp_path, with_engine(sweep_of(2, 20), name)), storage=tmp_path)
        assert getattr(sweep.resources, "engine", "nested") == name
    assert ("engine" in Resources.model_fields) == (len(found) > 1)


def values(found: list[Figure]) -> dict[str, float]:
    return {figure.name: figure.value for figure in found}


def turns(engine: str | None, *costs: Measured) -> Turns:
    return Turns(engine, sweep_of(8, 20), lambda line: None, list(costs))


def test_overheads_are_medians_over_the_rounds() -> None:
    # The first launch is the warm-up.
    ours = turns(
        "lanes", measured(memory=1.1), *(measured(cpu=c, wall=w) for c, w in [(3, 2), (9, 8), (4, 3)])
    )
    bare = turns(None, measured(slots=1), *(measured(cpu=c, wall=c, slots=1) for c in (2, 2, 1)))
    found = figures(ours, bare, goals=True)
    named = values(found)
    assert named["engine lanes: CPU time of a run beyond the bare loop's"] == pytest.approx(3.0)
    assert named["engine lanes: wall time of a run beyond the bare loop's"] == pytest.approx(2.0)
    assert named["engine lanes: memory of all processes at the peak (PSS)"] == 1.1
    assert named["engine lanes: CPU time of a whole launch, for each run"] == 10.0
    assert [figure.met for figure in found if figure.goal] == [False, False, True, True]
    assert not any(figure.goal for figure in figures(ours, bare))


def test_many_runs_show_growth() -> None:
    ours = turns("lanes", *[measured(runs=MANY)] * 2)
    named = values(figures(ours, turns(None, *[measured(runs=MANY, slots=1)] * 2), goals=True))
    assert named["engine lanes: second half of the runs by the first, wall"] == 1.05
    assert named["engine lanes: driver's memory at the end by the start"] == 1.2


def test_a_thousand_runs_are_a_case_of_their_own(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def launch(sweep: dict[str, Any], engine: str | None, *, memory: bool = False) -> Measured:
        sizes.append(len(sweep["axes"]["seed"]))
        return measured(runs=sizes[-1], slots=1 if engine is None else 2)

    monkeypatch.setattr(cases, "launch", launch)
    monkeypatch.setattr(cases, "alone", lambda trials: Alone(9.5, 2.0, 20))
    monkeypatch.setattr(cases, "kept", lambda trials: Kept(1e8, trials * 30.0))
    monkeypatch.setattr(cases, "engines", lambda: ("nested", "lanes"))
    monkeypatch.setattr("raysweep.bench.engine.measure_peak", lambda quick: record.peak)
    asked: list[int] = []
    monkeypatch.setattr("raysweep.bench.engine.commands.measured", lambda runs, say: asked.append(runs) or [])
    assert [case.key for case in measure(quick=True).cases] == ["short-runs"]
    assert set(sizes) == {cases.QUICK_RUNS}
    _, many, records = measure().cases
    assert (records.key, asked) == ("many-records", [RUNS])
    assert (many.key, sizes.count(cases.THOUSAND)) == ("many-runs", 4)
    found = values(list(many.figures))
    assert "engine lanes: driver's memory at the end by the start" in found
    assert found["engine lanes: driver's memory for a run, after the first hundred"] == 50
    assert found["Tune alone: driver's memory for a trial"] == 0.03 * cases.THOUSAND
    assert found["MLflow alone: memory of its client and store"] == 100


def test_many_runs_are_left_to_lanes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "engines", lambda: ("nested", "lanes"))
    assert [peer.name for peer in cases.short_runs(True).peers] == [cases.BARE, "engine nested"]
    assert [peer.name for peer in cases.short_runs(True, runs=MANY).peers] == [cases.BARE]


def test_contestants_take_turns_and_must_be_equal(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str | None, bool]] = []
    other: dict[str | None, Content] = {}

    def launch(sweep: object, engine: str | None, *, memory: bool = False) -> Measured:
        made.append((engine, memory))
        cost = 1.0 if engine is None else 2.0
        given = {"content": other.get(engine, CONTENT), "slots": 1 if engine is None else 2}
        return measured(cpu=cost, wall=cost, **given)

    monkeypatch.setattr(cases, "launch", launch)
    monkeypatch.setattr(cases, "engines", lambda: ("nested",))
    monkeypatch.setattr(cases, "alone", lambda trials: Alone(9.5, 2.0, 20))
    monkeypatch.setattr("raysweep.bench.engine.measure_peak", lambda quick: record.peak)
    found = measure(runs=8, rounds=2)
    # Memory is measured in the first launch of each.
    assert made == [
        ("nested", True),
        (None, True),
        ("nested", False),
        (None, False),
        (None, False),
        ("nested", False),
    ]
    [case] = found.cases
    assert case.timing is not None
    assert (case.timing.units, case.timing.repeats, case.timing.cpu_seconds.median) == (6, 2, 2.0)
    [row] = case.comparisons
    assert (row.status, row.peer) == ("equal", cases.BARE)
    assert row.cpu_ratio is not None
    assert row.cpu_ratio.median == pytest.approx(0.5)
    assert values(list(case.figures))["Ray alone: start to first step"] == 9.5

    other[None] = replace(CONTENT, table=b"other")
    [case] = measure(runs=8, rounds=1).cases
    assert [row.status for row in case.comparisons] == ["failed"]


def test_the_growth_for_a_run_is_that_after_the_first_hundred() -> None:
    done = [float(k) for k in range(1, 201)]
    # It grows by a hundred bytes a run, after a jump at the beginning.
    sizes = [(k + 0.5, 5000 * (k > 50) + 100 * k) for k in range(300)]
    assert launches._growth(sizes, done) == pytest.approx(100, rel=0.02)
    assert launches._growth(sizes, done[:100]) == 0
    assert launches._growth([], done) == 0


@pytest.mark.ray
@pytest.mark.slow
def test_ray_alone_starts_and_is_measured() -> None:
    found = alone(2)
    assert 1 < found.first_step < 120
    assert found.memory > 0.5
    # The program, Ray's control store and raylet, and for each trial its actor, a controller and a worker.
    assert found.processes >= 3 + 2 * 3


@pytest.mark.ray
@pytest.mark.slow
def test_what_tune_and_mlflow_keep_is_measured() -> None:
    found = kept(110)
    assert 10e6 < found.client < 1e9
    assert abs(found.trial) < 10e6
