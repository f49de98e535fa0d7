"""Schedulers that a sweep cannot take are refused before anything is started."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.schedulers.pb2 import PB2

from helpers.real_sweeps import TINY, write
from raysweep import load_sweep, tuner
from raysweep.errors import ConfigError


@pytest.mark.parametrize("kind", [PopulationBasedTraining, PB2])
def test_population_based_training_is_refused_by_name(kind: type, tmp_path: Path) -> None:
    scheduler = kind.__new__(kind)  # PB2 itself needs a further package
    sweep = load_sweep(write(tmp_path / "tiny.yaml", TINY), storage=tmp_path)
    with pytest.raises(ConfigError, match=rf"scheduler: {kind.__name__} changes the settings of a run"):
        tuner(sweep, scheduler=scheduler)
    assert not ray.is_initialized()
    assert not sweep.directory.exists()
