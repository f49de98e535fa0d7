"""The costs that a launch has once: the model beside a simulation of every event, and what is measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from helpers.launch_events import Launch
from raysweep.bench import scale, table
from raysweep.bench.record import Record
from raysweep.bench.scale.constants import Launched, _counted, fitted, without_calls
from raysweep.bench.scale.model import (
    BOARD,
    OWN,
    RAYLET,
    STORE,
    Costs,
    Demand,
    Use,
    busy,
    figures,
    full,
    operations,
    rate,
)
from raysweep.engine.board import pause

COSTS = Costs(
    parts={
        OWN: Use(run=0.2, second=0.05, at_work=1e-3),
        STORE: Use(run=0.05, second=0.02, at_work=5e-4),
        RAYLET: Use(run=0.03, second=0.01),
        BOARD: Use(run=0.004),
    },
    call=1e-3,
    news=0.0,
    row=0.0,
    tracked_run=0.04,
    tracked_point=0.0,
    operations=50.0,
    look=4.0,
)


def simulated(costs: Costs, demand: Demand) -> Launch:
    points = {OWN: demand.points * costs.tracked_point}
    launch = Launch(
        gpus=int(demand.gpus),
        runs=demand.runs,
        train=demand.seconds,
        parts={name: use.run + points.get(name, 0.0) for name, use in costs.parts.items()},
        each_second={name: use.second for name, use in costs.parts.items() if use.second},
        at_work={name: use.at_work for name, use in costs.parts.items() if use.at_work},
        called=BOARD,
        call=costs.call,
        pause=pause(int(demand.at_once)),
    )
    launch.run()
    return launch


@pytest.mark.parametrize(
    ("costs", "demand", "fullest"),
    [
        # GPUs alone are the limit.
        (COSTS, Demand(gpus=20, runs=1000, seconds=30.0, points=0), None),
        (COSTS, Demand(gpus=100, runs=2000, seconds=60.0, points=0), None),
        (replace(COSTS, tracked_point=1e-4), Demand(gpus=20, runs=1000, seconds=20.0), None),
        # Each part in turn.
        (COSTS, Demand(gpus=150, runs=3000, seconds=10.0, points=0), OWN),
        (replace(COSTS, tracked_point=1e-3), Demand(gpus=60, runs=1500, seconds=10.0), OWN),
        (
            replace(COSTS, parts={**COSTS.parts, STORE: Use(run=0.4, second=0.02, at_work=5e-4)}),
            Demand(gpus=100, runs=1500, seconds=20.0, points=0),
            STORE,
        ),
        (
            replace(COSTS, parts={**COSTS.parts, RAYLET: Use(run=0.5, second=0.01)}),
            Demand(gpus=60, runs=1500, seconds=20.0, points=0),
            RAYLET,
        ),
        (
            replace(COSTS, parts={**COSTS.parts, BOARD: Use(run=0.5)}, call=1e-5),
            Demand(gpus=60, runs=1500, seconds=20.0, points=0),
            BOARD,
        ),
    ],
)
def test_the_model_agrees_with_a_simulation_of_every_event(
    costs: Costs, demand: Demand, fullest: str | None
) -> None:
    launch = simulated(costs, demand)
    ended = launch.ended
    # Without the first and the last runs, which find the parts idle.
    first, last = len(ended) // 4, 3 * len(ended) // 4
    found = (last - first) / (ended[last] - ended[first])
    expected = rate(costs, demand)
    assert expected == pytest.approx(found, rel=0.03)
    cores = busy(costs, demand, expected)
    for name, used in cores.items():
        assert used == pytest.approx(launch.used[name] / launch.now, rel=0.1, abs=0.01)
    if fullest is not None:
        assert max(cores, key=lambda name: cores[name]) == fullest
        assert cores[fullest] == pytest.approx(1.0)
    else:
        assert max(cores.values()) < 0.9
    # The first runs wait for one another, and the last ones train alone.
    assert ended[-1] == pytest.approx(demand.runs / expected + demand.seconds, rel=0.1)


def test_the_model_is_no_better_than_a_board_whose_calls_wait() -> None:
    """Runs that wait for an answer do not call again, so a full board has less to do than the model says."""
    costs = replace(COSTS, parts={**COSTS.parts, BOARD: Use(run=0.5)}, call=2e-3)
    demand = Demand(gpus=60, runs=1500, seconds=20.0, points=0)
    ended = simulated(costs, demand).ended
    found = 750 / (ended[1125] - ended[375])
    assert 0.85 * found < rate(costs, demand) < found


def test_a_part_is_full_at_so_many_gpus() -> None:
    demand = Demand(gpus=100, runs=5000, seconds=60.0, points=0)
    for part in COSTS.parts:
        most = full(COSTS, demand, part)
        at = {
            gpus: busy(
                COSTS,
                replace(demand, gpus=gpus, runs=max(demand.runs, int(gpus))),
                gpus / (60.0 + sum(use.run for use in COSTS.parts.values())),
            )[part]
            for gpus in (0.99 * most, 1.01 * most)
        }
        below, above = at.values()
        assert below < 1.0 < above
    # (1 - 0.05) / (0.2 / 60.284 + 0.001)
    assert full(COSTS, demand, OWN) == pytest.approx(0.95 / (0.2 / 60.284 + 1e-3), rel=1e-6)


def test_calls_alone_never_fill_the_board() -> None:
    """However many runs are at work, the board answers so many calls a second."""
    idle = replace(COSTS, parts={name: Use(run=0.0) for name in COSTS.parts})
    for gpus in (1000, 100_000):
        demand = Demand(gpus=gpus, runs=10 * gpus, seconds=3600.0, points=0)
        assert busy(idle, demand, gpus / 3600.0)[BOARD] <= 0.25
    assert full(idle, demand, BOARD) == 1e9


def test_figures_say_what_waits_and_what_it_costs() -> None:
    demand = Demand(gpus=1000, runs=10_000, seconds=60.0, points=0)
    found = {figure.name: figure for figure in figures(COSTS, demand, price=2.0)}
    own = found[f"{OWN}: cores for all GPUs"]
    assert own.met is False
    assert own.value == pytest.approx(busy(COSTS, demand, 1000 / 60.284)[OWN])
    # 1 = 0.05 + r (0.2 + 0.001 · 60.284)
    per_second = 0.95 / (0.2 + 1e-3 * 60.284)
    assert found["time of the sweep"].value == pytest.approx(10_000 / per_second / 3600)
    assert found["GPUs that train"].value == pytest.approx(60.0 * per_second)
    assert found["GPUs that wait"].value == pytest.approx(1000 - 60.0 * per_second)
    assert found["price of an hour"].value == 2000.0
    assert found["price of the sweep"].value == pytest.approx(2000.0 * 10_000 / per_second / 3600)
    assert found[f"{OWN}: full at so many GPUs"].value == int(full(COSTS, demand, OWN))
    files = found["operations on files of the storage"].value
    assert files == pytest.approx(per_second * (50.0 + 12 * 4.0))
    assert files == pytest.approx(operations(COSTS, demand, per_second))
    assert not any("price" in figure.name for figure in figures(COSTS, demand))


def test_what_a_part_uses_is_found_by_launches() -> None:
    """Many short runs, and few long ones, one or four of them at once."""
    use = Use(run=0.3, second=0.1, at_work=0.02)
    sizes = ((2, 60, 40.0), (1, 8, 30.0), (4, 20, 30.0))
    launches = [
        Launched(
            slots=slots,
            runs=runs,
            seconds=seconds,
            used={OWN: runs * use.run + seconds * (use.second + slots * use.at_work), STORE: 0.0},
        )
        for slots, runs, seconds in sizes
    ]
    found = fitted(launches, OWN)
    assert (found.run, found.second, found.at_work) == pytest.approx((0.3, 0.1, 0.02))
    assert fitted(launches, STORE) == Use(run=0.0)
    # The calls of runs at work are no part of what the board costs beside them.
    board = [
        replace(each, used={BOARD: each.runs * 0.01 + each.seconds * (0.02 + each.slots * COSTS.call)})
        for each in launches
    ]
    found = fitted([without_calls(each, COSTS.call) for each in board], BOARD, at_work=False)
    assert (found.run, found.second, found.at_work) == pytest.approx((0.01, 0.02, 0.0))
    # Nothing costs less than nothing.
    odd = [replace(each, used={OWN: 1.0 / each.slots}) for each in launches]
    assert fitted(odd, OWN).at_work == 0.0


def test_operations_on_files_below_a_folder_are_counted(tmp_path: Path) -> None:
    folder, other = tmp_path / "folder", tmp_path / "other"

    def work() -> None:
        folder.mkdir()  # 1
        other.mkdir()
        (folder / "a").write_text("text")  # 2
        (other / "a").write_text("text")
        (folder / "a").rename(folder / "b")  # 3
        assert list(folder.iterdir()) == [folder / "b"]  # 4
        (folder / "b").unlink()  # 5

    assert _counted(folder, work) == 5
    assert _counted(folder, lambda: None) == 0


def test_the_record_is_a_table_of_sweeps(record: Record, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "measured", lambda quick, say: COSTS)
    monkeypatch.setattr(scale, "measure_peak", lambda quick: record.peak)
    found = scale.measure(gpus=1000, runs=10_000, price=2.0)
    assert [case.key for case in found.cases] == ["costs", "1 min", "10 min", "60 min"]
    text = table.markdown(found)
    assert text.startswith(
        "The sweeps are 10,000 runs on 1,000 GPUs, one each, 1,000 points in MLflow; each column is the time "
        "of a run's training: with runs of 1 min, the launch's own process"
    )
    assert "| beside | `1 min` | `10 min` | `60 min` | goal |" in text
    assert "| price of an hour | 2,000 | 2,000 | 2,000 |  |" in text
