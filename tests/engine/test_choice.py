"""The choice between nested training and lanes, and the CPUs that training leaves to evaluations."""

from __future__ import annotations

from dataclasses import replace

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.engine.choice import SHORT, choose_engine, evaluation_need, reserved, shares
from raysweep.errors import ConfigError
from raysweep.sweep import Plan, Resources, load_sweep, make_plan
from raysweep.sweep.estimate import Cost

#: The default.
AUTO = Resources()


def plan(tmp_path, *seconds: float | None) -> Plan:
    """Return the plan of a new sweep of runs that take so many seconds."""
    file = tmp_path / "tiny.yaml"
    file.write_text(tiny.HEAD + f"axes: {{seed: {list(range(len(seconds)))}}}\n")
    made = make_plan(load_sweep(file, storage=tmp_path))
    runs = [replace(run, cost=Cost(s, 0.0, training=s)) for run, s in zip(made.runs, seconds, strict=True)]
    return replace(made, runs=tuple(runs))


@pytest.mark.parametrize(
    ("seconds", "engine"),
    [
        ([1.0, 2.0], "lanes"),
        ([SHORT], "lanes"),
        ([0.5 * SHORT, 1.5 * SHORT], "lanes"),
        ([SHORT, 1.1 * SHORT], "nested"),
        # What nobody has timed counts as long.
        ([1.0, None], "nested"),
        ([None], "nested"),
    ],
)
def test_auto_takes_lanes_for_short_runs(tmp_path, seconds: list[float | None], engine: str) -> None:
    assert choose_engine(AUTO, plan(tmp_path, *seconds)) == engine


@pytest.mark.parametrize("field", ["per_worker", "evaluate"])
def test_auto_takes_lanes_on_cpus_alone(tmp_path, field: str) -> None:
    resources = AUTO.model_copy(update={field: {"CPU": 1.0, "GPU": 0.5}})
    assert choose_engine(resources, plan(tmp_path, 1.0)) == "nested"


def test_auto_takes_no_lanes_for_workers_that_come_and_go(tmp_path) -> None:
    assert choose_engine(Resources(workers=2), plan(tmp_path, 1.0)) == "lanes"
    assert choose_engine(Resources(workers=2, min_workers=1), plan(tmp_path, 1.0)) == "nested"


def test_no_workers_come_and_go_where_cpus_are_shared() -> None:
    resources = Resources(workers=3, min_workers=1)
    assert reserved(resources, shared=True).min_workers is None
    assert reserved(resources, shared=False).min_workers == 1


def test_auto_is_nested_where_nothing_is_to_be_trained(tmp_path) -> None:
    short = plan(tmp_path, 1.0)
    done = replace(short, runs=tuple(replace(run, state="done") for run in short.runs))
    assert choose_engine(AUTO, done) == "nested"


def test_a_named_engine_is_taken(tmp_path) -> None:
    assert choose_engine(Resources(engine="nested"), plan(tmp_path, 1.0)) == "nested"
    assert choose_engine(Resources(engine="lanes"), plan(tmp_path, None)) == "lanes"
    on_gpus = Resources(engine="lanes", per_worker={"GPU": 1.0})
    assert choose_engine(on_gpus, plan(tmp_path, None)) == "lanes"


def test_lanes_that_would_starve_evaluations_are_refused(tmp_path) -> None:
    resources = Resources(engine="lanes", per_worker={"GPU": 1.0}, evaluate={"CPU": 1.0, "GPU": 0.25})
    with pytest.raises(ConfigError, match=r"resources\.engine: .*GPU for ever; use nested"):
        choose_engine(resources, plan(tmp_path, 1.0))


@pytest.mark.parametrize("cpus", [1, 2, 4, 64, 98])
def test_beside_training_there_is_room_for_as_many_evaluations_as_cpus(cpus: int) -> None:
    resources = Resources()
    run = reserved(resources, shared=True).per_worker["CPU"]
    # The node takes no more runs than it has CPUs for.
    assert int(cpus / run) == cpus
    left = cpus - cpus * run
    assert round(left / evaluation_need(resources, shared=True)["CPU"], 6) == cpus


def test_only_cpus_are_shared() -> None:
    resources = Resources(per_worker={"CPU": 4.0, "GPU": 1.0}, evaluate={"CPU": 2.0})
    assert reserved(resources, shared=True).per_worker == {"CPU": 3.96, "GPU": 1.0}
    assert evaluation_need(resources, shared=True) == {"CPU": 0.02}
    assert reserved(resources, shared=False) == resources
    assert evaluation_need(resources, shared=False) == resources.evaluate


@pytest.mark.parametrize(
    "resources",
    [
        Resources(per_worker={"CPU": 4.0, "GPU": 1.0}, evaluate={"CPU": 2.0}),
        Resources(evaluate={"CPU": 1.0, "GPU": 0.25}),
        Resources(per_worker={"GPU": 1.0}),
    ],
)
def test_runs_on_gpus_share_nothing_unless_they_are_lanes(resources: Resources) -> None:
    assert not shares(resources, "nested", embedded=True)


def test_runs_on_a_cluster_share_nothing_unless_they_are_lanes() -> None:
    assert shares(Resources(), "nested", embedded=True)
    assert not shares(Resources(), "nested", embedded=False)
    assert shares(Resources(), "lanes", embedded=False)
