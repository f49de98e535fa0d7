"""Claims in a sweep file: strict, and no part of any run's identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from helpers.tiny_sweeps import AXES, BASE
from raysweep.errors import ConfigError
from raysweep.sweep import Sweep
from raysweep.sweep.claims import TOLERANCE, Algorithm, Beats, Flatter
from raysweep.sweep.stored import load_stored, save_sweep

Load = Callable[..., Sweep]

CLAIMS = """\
tolerance: 0.05
claims:
  - flatter: {task: A, least: 0.3}
  - longer: {}
  - larger: {tolerance: 0.001}
  - algorithm: {better: adamw, than: adversarial}
  - beats: lookup_table
"""


def test_claims_are_read_in_their_order(load: Load) -> None:
    questions = load(BASE + AXES + CLAIMS).questions
    assert questions.tolerance == 0.05
    abouts = [claim.about for claim in questions.claims]
    assert abouts[0] == Flatter(task="A", least=0.3)
    assert abouts[2].tolerance == 0.001
    assert abouts[3] == Algorithm(better="adamw", than="adversarial")
    assert abouts[4] == Beats()
    plain = load().questions
    assert (plain.tolerance, plain.claims) == (TOLERANCE, None)
    assert plain.within(0.1).tolerance == 0.1
    assert plain.within(None) == plain


def test_they_change_no_identity_and_are_kept_with_the_launch(load: Load, tmp_path: Path) -> None:
    plain, asked = load(storage=tmp_path / "r"), load(BASE + AXES + CLAIMS, storage=tmp_path / "r")
    assert [run.run_id for run in plain.runs] == [run.run_id for run in asked.runs]
    save_sweep(asked)
    assert load_stored(asked.directory).questions == asked.questions


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("claims: [{flatter: {tsk: A}}]", "claims[0].flatter.tsk: unknown field"),
        ("claims: [{faster: {}}]", "claims[0].faster: unknown field"),
        ("claims: [{flatter: {}, longer: {}}]", "a claim is exactly one of flatter, longer"),
        ("claims: [{}]", "a claim is exactly one of"),
        ("claims: [{algorithm: {better: adamw}}]", "claims[0].algorithm.than: missing"),
        ("claims: [{algorithm: {better: sam, than: sam}}]", "is the algorithm of `better`"),
        ("claims: [{beats: sam}]", "claims[0].beats: 'sam' is not valid; it must be 'lookup_table'"),
        ("claims: [{flatter: {level: run}}]", "claims[0].flatter.level: 'run' is not valid"),
        ("claims: {flatter: {}}", "claims: "),
        ("tolerance: 0", "tolerance: 0 is not valid; it must be greater than 0"),
        ("tolerance: much", "tolerance: 'much' is not valid; it must be a number"),
    ],
)
def test_mistakes_are_named_with_their_place(load: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(BASE + AXES + text + "\n")
    assert said in str(caught.value)
    assert "s.yaml:" in str(caught.value)
