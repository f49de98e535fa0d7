"""`rs.tuner`: a real Tuner that takes the user's scheduler, search algorithm and space."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler
from ray.tune.search.optuna import OptunaSearch

import raysweep as rs
from raysweep.errors import ConfigError

from .conftest import changed, write

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module", autouse=True)
def disconnect() -> Iterator[None]:
    """The first tuner connects, the others find the connection; it is ended here."""
    yield
    ray.shutdown()


@pytest.fixture
def sweep(tmp_path: Path) -> rs.Sweep:
    data = changed(
        pretrain={"steps": 60, "milestones": [20, 60]},
        evaluate={"probe": {"seeds": 1, "train": 32, "test": 32, "projection": 8, "epochs": 1}},
    )
    del data["evaluate"]["trace"]
    return rs.load_sweep(write(tmp_path / "tiny.yaml", data), storage=tmp_path / "results")


def test_asha_stops_the_worse_run(sweep: rs.Sweep) -> None:
    """A rate that cannot learn is stopped at the first rung; what was measured stays in the ledger."""
    tuner = rs.tuner(
        sweep,
        param_space={"algorithm.lr": tune.grid_search([1e-2, 1e-9])},
        scheduler=ASHAScheduler(time_attr="step", grace_period=20, max_t=60, reduction_factor=2, brackets=1),
        metric="excess_loss",
        mode="min",
    )
    assert isinstance(tuner, tune.Tuner)
    grid = tuner.fit()
    assert not grid.errors
    steps = {result.config["algorithm.lr"]: result.metrics["step"] for result in grid}
    assert steps[1e-2] == 60
    assert grid.get_best_result().config["algorithm.lr"] == 1e-2
    ledger = sweep.ledger()
    for result in grid:
        run = ledger.open(result.metrics["run_id"])
        assert [record.kind for record in run.evaluations()].count("excess_loss") >= 1


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
    rates = [result.config["algorithm.lr"] for result in grid]
    assert len(set(rates)) == 2
    for result in grid:
        assert result.metrics["step"] == 60
        assert result.metrics["excess_loss"] > 0
        spec = sweep.variant(result.config)
        assert spec.run_id == result.metrics["run_id"]
        assert spec.seed == 3


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


def test_ray_is_left_connected() -> None:
    assert ray.is_initialized()
