"""Settings that all tests share: one thread a process, no network, and an order for several workers."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")

import pytest
import torch

torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Share the tests out to the workers of pytest-xdist by files, and give one worker all that start Ray.

    Two Rays at once would take each other's processors.  The tests of a file share what its fixtures make.
    The tests that start Ray come first, because they take longest.
    """
    if not hasattr(config, "workerinput"):
        return
    items.sort(key=lambda item: item.get_closest_marker("ray") is None)
    for item in items:
        group = "ray" if item.get_closest_marker("ray") else item.nodeid.partition("::")[0]
        item.add_marker(pytest.mark.xdist_group(group))
