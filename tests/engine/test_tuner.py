"""Schedulers that a sweep cannot take are refused; what a Tuner's launch records.  Nothing is started."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray import tune
from ray.tune.schedulers import ASHAScheduler, PopulationBasedTraining
from ray.tune.schedulers.pb2 import PB2
from ray.tune.search import BasicVariantGenerator

from helpers import local_models
from helpers.real_sweeps import TINY, write
from raysweep import load_sweep, tuner
from raysweep.engine.heed import Requests
from raysweep.engine.tuner import Bookkeeping
from raysweep.errors import ConfigError
from raysweep.sweep.expansion import unmeasured
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


SPACE = {"algorithm.lr": tune.loguniform(1e-4, 1e-2)}


@pytest.mark.parametrize("space", [None, SPACE], ids=["file", "space"])
@pytest.mark.parametrize(
    ("given", "texts"),
    [
        (
            {"metric": "exces"},
            ["metric: 'exces' is not measured — did you mean 'excess_loss'?; the sweep measures"],
        ),
        (
            {"metric": "excess_loss", "mode": "minimum"},
            ["mode: 'minimum' is not one of min, max — did you mean 'min'?"],
        ),
        (
            {"metric": "exces", "mode": "least"},
            ["metric: 'exces' is not measured", "mode: 'least' is not one of min, max"],
        ),
        (
            {"scheduler": ASHAScheduler(metric="exces", mode="min")},
            ["scheduler.metric: 'exces' is not measured — did you mean 'excess_loss'?"],
        ),
        (
            {"search_alg": BasicVariantGenerator(), "metric": "exces"},
            ["metric: 'exces' is not measured"],
        ),
        ({"mode": ""}, ["mode: '' is not one of min, max"]),
        ({"metric": ""}, ["metric: '' is not measured"]),
    ],
)
def test_a_metric_or_mode_that_does_not_exist_is_refused_before_anything_starts(
    space: Any, given: dict[str, Any], texts: list[str], tmp_path: Path
) -> None:
    sweep = load_sweep(write(tmp_path / "tiny.yaml", TINY), storage=tmp_path)
    with pytest.raises(ConfigError) as caught:
        tuner(sweep, param_space=space, **given)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(texts)
    assert all(line.startswith(text) for line, text in zip(lines, texts, strict=True))
    assert not ray.is_initialized()
    assert not sweep.directory.exists()


def test_the_sentence_for_a_metric_is_that_of_a_search_in_a_file(tmp_path: Path) -> None:
    sweep = load_sweep(write(tmp_path / "tiny.yaml", TINY), storage=tmp_path)
    search = {"metric": "exces", "samples": 1, "space": {"algorithm.lr": {"loguniform": [1e-4, 1e-2]}}}
    with pytest.raises(ConfigError) as told:
        load_sweep(write(tmp_path / "searched.yaml", {**TINY, "search": search}), storage=tmp_path)
    with pytest.raises(ConfigError) as refused:
        tuner(sweep, param_space=SPACE, metric="exces", mode="min")
    assert str(told.value).endswith(f"search.{refused.value}")


def test_what_the_samples_measure_counts(tmp_path: Path) -> None:
    """Not what the runs of the file do."""
    sweep = load_sweep(write(tmp_path / "tiny.yaml", TINY), storage=tmp_path)
    with pytest.raises(ConfigError, match=r"metric: 'probe/3' is not measured — did you mean 'probe/1'"):
        tuner(sweep, param_space=SPACE | {"language.tasks": [1]}, metric="probe/3", mode="max")
    assert unmeasured("probe/3", sweep.runs, sweep.languages) is None


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
    closed: list[str] = []
    slots: Any = SimpleNamespace(close=lambda: closed.append("the share is left to others"))
    requests = Requests(sweep.directory, board)
    bookkeeping = Bookkeeping(_Tracker(), sweep, requests, slots)  # type: ignore[arg-type]
    bookkeeping.setup()
    assert not closed
    bookkeeping.on_experiment_end([])
    assert closed
    facts = last_launch(sweep.directory)
    assert facts is not None
    if stored:
        assert [one["seed"] for one in facts["sentences"]] == [0, 1]
        assert facts["sentences"] == described(wanted(sweep))
    else:
        assert "sentences" not in facts
