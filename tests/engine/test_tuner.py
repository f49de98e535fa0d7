"""Schedulers that a sweep cannot take are refused; what a Tuner's launch records.  Nothing is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.schedulers.pb2 import PB2

from helpers import local_models
from helpers.real_sweeps import TINY, write
from raysweep import load_sweep, tuner
from raysweep.engine.heed import Requests
from raysweep.engine.tuner import Bookkeeping
from raysweep.errors import ConfigError
from raysweep.sweep.provenance import last_launch
from raysweep.sweep.sentences import described, wanted


@pytest.mark.parametrize("kind", [PopulationBasedTraining, PB2])
def test_population_based_training_is_refused_by_name(kind: type, tmp_path: Path) -> None:
    scheduler = kind.__new__(kind)  # PB2 itself needs a further package
    sweep = load_sweep(write(tmp_path / "tiny.yaml", TINY), storage=tmp_path)
    with pytest.raises(ConfigError, match=rf"scheduler: {kind.__name__} changes the settings of a run"):
        tuner(sweep, scheduler=scheduler)
    assert not ray.is_initialized()
    assert not sweep.directory.exists()


class _Tracker:
    """Nothing of MLflow."""

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("stored", [True, False])
def test_a_tuner_records_the_stored_sentences_as_a_launch_does(stored: bool, tmp_path: Path) -> None:
    data: dict[str, Any] = {**TINY, "evaluate": {"excess_loss": {"sentences": 8}}}
    if stored:
        opt = str(local_models.random_opt())
        data["language"] = {"kind": "causal_lm", "model": opt, "keep": 4, "length": 3}
    sweep = load_sweep(write(tmp_path / "tiny.yaml", data), storage=tmp_path)
    board: Any = None  # nobody asks for a stop
    bookkeeping = Bookkeeping(_Tracker(), sweep, Requests(sweep.directory, board))  # type: ignore[arg-type]
    bookkeeping.setup()
    bookkeeping.on_experiment_end([])
    facts = last_launch(sweep.directory)
    assert facts is not None
    if stored:
        assert [one["seed"] for one in facts["sentences"]] == [0, 1]
        assert facts["sentences"] == described(wanted(sweep))
    else:
        assert "sentences" not in facts
