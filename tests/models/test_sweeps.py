"""Models in sweep files: what makes two of them one run, and what is refused before anything starts."""

from pathlib import Path

import pytest

from raysweep.errors import ConfigError
from raysweep.models import EncoderConfig
from raysweep.sweep import Sweep, load_sweep

BASE = """\
name: tiny
language: {kind: hmm, states: 4, vocabulary: 6, length: 4, blocks: 2, tasks: [2]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw}
pretrain: {steps: 100, batch_size: 8}
"""


def load(folder: Path, text: str) -> Sweep:
    path = folder / "sweep.yaml"
    path.write_text(BASE + text, encoding="utf-8")
    return load_sweep(path, storage=folder / "results")


def test_fields_with_no_say_in_the_weights_leave_the_identity_alone() -> None:
    assert EncoderConfig(shape="table3-128", checkpointing=True).content() == {
        "kind": "encoder",
        "shape": "128/2/4/512",
        "norm": "pre",
        "dropout": 0.1,
        "layer_norm_eps": 1e-5,
    }


def test_a_name_and_its_numbers_are_one_run(tmp_path: Path) -> None:
    sweep = load(tmp_path, "axes: {model.shape: [table3-64, 64/1/1/256, table3-128]}\n")
    assert [run.model.label for run in sweep.runs] == ["64/1/1/256", "128/2/4/512"]


def test_checkpointing_is_no_other_run_and_the_vocabulary_is(tmp_path: Path) -> None:
    plain = load(tmp_path, "").runs[0]
    sweep = load(tmp_path, "axes: {model.checkpointing: [true, false], model.vocabulary: [own, faithful]}\n")
    assert len(sweep.runs) == 2
    assert sweep.runs[0].run_id == plain.run_id
    assert sweep.runs[1].run_id.startswith("16-1-1-32-faithful-adamw")


def test_a_trace_of_lstms_is_refused_at_its_place(tmp_path: Path) -> None:
    text = "evaluate: {excess_loss: {}, trace: {}}\ninclude: [{model: {kind: lstm, shape: 8/1}}]\n"
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    [line] = str(caught.value).splitlines()
    assert ":6:29: evaluate.trace: cannot be measured of a model of kind 'lstm'" in line
    assert line.endswith("leave the trace out, or give these models a sweep of their own")
