"""Seeds of initial weights, data and dropout: which runs they make, what these are called, and replicates."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pandas as pd
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.errors import ConfigError
from raysweep.report.correlations import configurations
from raysweep.report.data import measurements, seed_of
from raysweep.sweep import RunSpec
from raysweep.sweep.tidy import tidy
from raysweep.training import Seeds


def test_one_seed_is_all_three(load: Any) -> None:
    [alone] = load(tiny.BASE + "seed: 4\n").runs
    [spelled] = load(tiny.BASE + "seed: 9\nseeds: {init: 4, data: 4, dropout: 4}\n").runs
    [partly] = load(tiny.BASE + "seed: 4\nseeds: {data: null}\n").runs
    assert alone.seeds == Seeds.of(4)
    assert alone.seed == 4
    assert alone.identity_content["seed"] == 4
    assert alone.run_id == spelled.run_id == partly.run_id


def test_seeds_are_axes_like_any_other(load: Any) -> None:
    sweep = load(tiny.BASE + "seed: 1\naxes: {seeds.init: [0, 1], seeds.data: [0, 1]}\n")
    found = [(run.seeds.init, run.seeds.data, run.seeds.dropout) for run in sweep.runs]
    assert found == [(i, d, 1) for i, d in itertools.product((0, 1), (0, 1))]
    names = [run.run_id.rpartition("-")[0].removeprefix("16-1-1-32-adamw-") for run in sweep.runs]
    assert names == ["init0-data0-dropout1", "init0-data1-dropout1", "init1-data0-dropout1", "s1"]
    assert len({run.training_identity for run in sweep.runs}) == 4
    assert [run.seed for run in sweep.runs] == [None, None, None, 1]
    for run in sweep.runs:
        assert RunSpec.decode(json.loads(json.dumps(run.encode()))) == run


def test_a_table_without_training_has_no_seeds(load: Any) -> None:
    text = "axes: {seeds.init: [0, 1]}\ninclude: [{algorithm: {kind: lookup_table}}]\n"
    sweep = load(tiny.BASE + text)
    assert [run.trains for run in sweep.runs] == [True, True, False]


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("3", "seeds: 3 is not a mapping, e.g. {init: 0, data: 1, dropout: 0}"),
        ("{intt: 1}", "seeds.intt: unknown field — did you mean 'init'?"),
        ("{init: -1}", "seeds.init: -1 is not valid; it must be at least 0"),
        ("{data: 1.5}", "seeds.data: 1.5 is not valid; it must be a whole number"),
    ],
)
def test_seeds_that_make_no_sense(load: Any, seeds: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tiny.BASE + f"seeds: {seeds}\n")
    assert message in str(caught.value)


def test_an_axis_of_seeds_without_effect_is_refused(load: Any) -> None:
    with pytest.raises(ConfigError, match="names all seeds, so the axis seed has no effect"):
        load(tiny.BASE + "seeds: {init: 0, data: 0, dropout: 0}\naxes: {seed: [0, 1]}\n")
    assert len(load(tiny.BASE + "seeds: {init: 0, data: 0}\naxes: {seed: [0, 1]}\n").runs) == 2


def test_runs_that_differ_in_seeds_alone_are_replicates(load: Any) -> None:
    sweep = load(
        tiny.BASE + "axes: {algorithm.lr: [1e-3, 1e-2], seeds.init: [0, 1], seeds.dropout: [0, 2]}\n"
    )
    for run in sweep.runs:
        tiny.finish(sweep.ledger().run(run), run)
    frame = tidy(sweep.ledger(), sweep)
    assert frame["seed"].dropna().unique().tolist() == [0]
    seeds = frame[["seeds.init", "seeds.data", "seeds.dropout"]].drop_duplicates()
    assert sorted(seeds.to_numpy().tolist()) == [
        [0, 0, 0], [0, 0, 2], [1, 0, 0], [1, 0, 2],
    ]  # fmt: skip
    table = measurements(frame).checkpoints
    assert table["run_id"].nunique() == 8
    assert sorted(table["variant"].unique()) == ["lr 0.001", "lr 0.01"]
    assert len(set(configurations(table))) == 2
    assert len({(seed_of(row), row["variant"]) for _, row in table.iterrows()}) == 8


def test_a_reader_is_told_all_seeds() -> None:
    several = {"seed": pd.NA, "seeds.init": 1, "seeds.data": 0, "seeds.dropout": 2}
    assert seed_of(pd.Series(several)) == "init 1, data 0, dropout 2"
    assert seed_of(pd.Series({"seed": 3})) == "seed 3"
    assert seed_of(pd.Series({"seed": pd.NA})) == ""


def test_runs_with_one_seed_and_fresh_data_keep_their_names(load: Any) -> None:
    """The id of this run before there were finite data and separate seeds."""
    [run] = load(tiny.BASE).runs
    assert run.run_id == "16-1-1-32-adamw-s0-07a9841a41"
    [finite] = load(tiny.BASE, "pretrain.sentences=100").runs
    assert finite.run_id != run.run_id
