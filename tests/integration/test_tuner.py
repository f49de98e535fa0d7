"""`rs.tuner`: a real Tuner that takes the user's scheduler, search algorithm and space."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

import raysweep as rs
from helpers.real_sweeps import changed, write
from raysweep.errors import ConfigError
from raysweep.report.best import best_tables
from raysweep.sweep import make_plan
from raysweep.sweep.made import with_made
from raysweep.sweep.run_state import run_states

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def disconnect() -> Iterator[None]:
    """The first tuner connects, the others find the connection; it is ended here."""
    yield
    ray.shutdown()


def small(tmp_path: Path, **sections: Any) -> rs.Sweep:
    data = changed(
        resources={"max_concurrent": 1},
        evaluate={"probe": {"seeds": 1, "train": 32, "test": 32, "projection": 8}},
        **sections,
    )
    del data["evaluate"]["trace"]
    return rs.load_sweep(write(tmp_path / "tiny.yaml", data), storage=tmp_path / "results")


@pytest.fixture
def sweep(tmp_path: Path) -> rs.Sweep:
    return small(tmp_path)


#: The first rung must be measured well before the last step is reached.
LONG = (20, 12000)


def test_asha_stops_the_worse_run(tmp_path: Path) -> None:
    """A rate that cannot learn is stopped at the first rung, and its training with it."""
    sweep = small(tmp_path, pretrain={"steps": LONG[-1], "milestones": list(LONG)})
    tuner = rs.tuner(
        sweep,
        # One run at a time on two processors, the other being left to evaluations: the good one sets the bar.
        param_space={"algorithm.lr": tune.grid_search([1e-2, 1e-9])},
        scheduler=ASHAScheduler(
            time_attr="step", grace_period=LONG[0], max_t=LONG[-1], reduction_factor=2, brackets=1
        ),
        metric="excess_loss",
        mode="min",
    )
    assert isinstance(tuner, tune.Tuner)
    grid = tuner.fit()
    assert not grid.errors
    steps = {result.config["algorithm.lr"]: result.metrics["step"] for result in grid}
    assert steps == {1e-2: LONG[-1], 1e-9: LONG[0]}
    assert grid.get_best_result().config["algorithm.lr"] == 1e-2
    worse = next(result for result in grid if result.config["algorithm.lr"] == 1e-9)
    run = sweep.ledger().open(worse.metrics["run_id"])
    assert [record.step for record in run.evaluations() if record.kind == "excess_loss"] == [LONG[0]]
    assert LONG[-1] not in run.steps_on_disk()
    # The grid has a row for each milestone, and what the Tuner made is in every table.
    assert sorted(grid.get_dataframe()["step"]) == [LONG[0], LONG[-1]]
    assert [len(result.metrics_dataframe) for result in grid] == [2, 1]
    assert {"step", "excess_loss", "run_id"} <= set(grid[0].metrics_dataframe)
    shown = with_made(rs.load_sweep(sweep.path, storage=sweep.storage))
    states = {state.label: state.state for state in run_states(shown)}
    assert {"lr 0.01": "done", "lr 1e-09": "stopped"}.items() <= states.items()
    [table] = best_tables(shown)
    assert [row[1] for row in table.rows] == ["0.01", "1e-09"]
    assert make_plan(sweep).strays == ()


def test_a_request_ends_a_tuner_and_the_same_program_continues(
    tmp_path: Path, raysweep: Callable[..., tuple[int, str, str]]
) -> None:
    sweep = small(tmp_path, pretrain={"steps": LONG[-1], "milestones": list(LONG), "checkpoint_every": 500})
    first = sweep.variant({"algorithm.lr": 1e-2})

    def steps() -> list[int]:
        return sorted(sweep.ledger().open(first.run_id).steps_on_disk())

    def tuner() -> tune.Tuner:
        return rs.tuner(sweep, param_space={"algorithm.lr": 1e-2}, metric="excess_loss", mode="min")

    told: list[tuple[int, str, str]] = []

    def cancel() -> None:
        deadline = time.monotonic() + 600
        while not steps() and time.monotonic() < deadline:
            time.sleep(0.1)
        told.append(raysweep("cancel", "tiny", "--storage", sweep.storage, "--json"))

    watching = threading.Thread(target=cancel)
    watching.start()
    grid = tuner().fit()
    watching.join()
    [(code, out, err)] = told
    assert code == 0, out + err
    assert json.loads(out)["stopped"]
    assert not grid.errors
    left = steps()[-1]
    # It is the checkpoint that was written on request, and the run is one to go on with.
    assert LONG[0] < left < LONG[-1]
    assert left % 500
    shown = {state.run_id: state.state for state in run_states(with_made(sweep))}
    assert shown[first.run_id] == "unfinished"
    # A later Tuner takes no old request for its own.
    grid = tuner().fit()
    assert grid[0].metrics["step"] == LONG[-1]
    assert run_states(with_made(sweep))[-1].state == "done"


@pytest.mark.slow
def test_optuna_suggests_runs(sweep: rs.Sweep) -> None:
    tuner = rs.tuner(
        sweep,
        param_space={"algorithm.lr": tune.loguniform(1e-4, 1e-1), "seed": 3},
        search_alg=OptunaSearch(seed=0),
        num_samples=2,
        metric="excess_loss",
        mode="min",
    )
    grid = tuner.fit()
    assert not grid.errors
    assert ray.is_initialized()  # it is the caller's to end
    rates = [result.config["algorithm.lr"] for result in grid]
    assert len(set(rates)) == 2
    for result in grid:
        assert result.metrics["step"] == 60
        assert result.metrics["excess_loss"] > 0
        spec = sweep.variant(result.config)
        assert spec.run_id == result.metrics["run_id"]
        assert spec.seed == 3


@pytest.mark.slow
def test_the_sweep_itself_is_the_default_space(sweep: rs.Sweep) -> None:
    grid = rs.tuner(sweep).fit()
    assert not grid.errors
    assert {result.metrics["run_id"] for result in grid} == {run.run_id for run in sweep.runs}
    # What the tuner has done is done: a launch finds nothing missing.
    results = rs.launch(sweep)
    assert results.worked_on == ()
    assert len(results.to_frame()) > 0


@pytest.mark.parametrize(
    ("space", "text"),
    [
        ({"algorithm.lrr": 1e-3}, "lrr"),
        ({"model.shape": "10/3/1/8"}, "heads"),
        ({"seed": tune.grid_search([])}, "empty"),
        ({"run": "no-such-run"}, "no-such-run"),
    ],
)
def test_a_space_that_does_not_fit_is_refused_before_anything_starts(
    sweep: rs.Sweep, space: dict, text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        rs.tuner(sweep, param_space=space)
    assert not sweep.directory.joinpath("runs").exists()
