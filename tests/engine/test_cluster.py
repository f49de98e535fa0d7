"""How many runs train at once."""

from __future__ import annotations

import pytest

from raysweep.engine.cluster import Cluster, concurrency, per_run
from raysweep.errors import ConfigError
from raysweep.sweep import Resources


def cluster(**resources: float) -> Cluster:
    return Cluster(address="", embedded=True, nodes=1, resources=resources, dashboard="")


@pytest.mark.parametrize(
    ("need", "offer", "expected"),
    [
        ({"CPU": 1.0}, {"CPU": 2.0}, 2),
        ({"CPU": 3.0}, {"CPU": 8.0}, 2),
        ({"GPU": 1.0}, {"CPU": 64.0, "GPU": 4.0}, 4),
        ({"CPU": 8.0, "GPU": 1.0}, {"CPU": 16.0, "GPU": 4.0}, 2),
        ({"CPU": 0.1}, {"CPU": 0.3}, 3),
        ({}, {"CPU": 2.0}, 1),
    ],
)
def test_as_many_as_fit(need: dict[str, float], offer: dict[str, float], expected: int) -> None:
    assert concurrency("auto", need, cluster(**offer)) == expected


def test_a_number_is_taken_at_its_word() -> None:
    assert concurrency(7, {"GPU": 8.0}, cluster(CPU=2.0)) == 7


def test_not_even_one_fits() -> None:
    with pytest.raises(ConfigError, match="needs 4 GPU but the cluster has 0"):
        concurrency("auto", {"GPU": 4.0}, cluster(CPU=2.0))


def test_a_run_takes_what_its_workers_take() -> None:
    assert per_run(Resources(workers=4, per_worker={"CPU": 2.0, "GPU": 1.0})) == {"CPU": 8.0, "GPU": 4.0}
