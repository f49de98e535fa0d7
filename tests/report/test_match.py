"""Pairs at equal loss with their differences, and the runs that a claim would take."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.cli.app import run
from raysweep.errors import ConfigError
from raysweep.evaluation.held_out_loss import mean_per_word
from raysweep.evaluation.run import stored_shards
from raysweep.report.claims import sweep_verdicts
from raysweep.report.data import Measurements, measurements
from raysweep.report.match import matches
from raysweep.report.paired import _of_ratio, loss_draws, loss_errors
from raysweep.report.planning import plans, run_seconds
from raysweep.sweep import Sweep, evaluation_identity, load_sweep, tidy
from raysweep.sweep.stored import save_sweep

FILE = (
    tiny.HEAD
    + """\
evaluate:
  excess_loss: {sentences: 400, shard_size: 400}
  trace: {inputs: 64, shard_size: 64}
  probe: {seeds: 4}
axes:
  model.shape: [16/1/1/32, 16/2/2/32, 16/2/1/32, 16/1/2/32]
  seed: [0, 1]
"""
)
SHARED = 0.05  # of each sentence's loss, for all checkpoints


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    """A sweep with stored draws: losses that differ by little beside their spread over sentences."""
    (tmp_path / "tiny.yaml").write_text(FILE)
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    save_sweep(sweep)
    draws = np.random.default_rng(0)
    sentences, inputs = draws.exponential(SHARED, size=400), draws.exponential(size=64)
    for place, spec in enumerate(sweep.runs):
        journal = sweep.ledger().run(spec)
        for step in spec.milestones:
            excess = sentences + 0.001 * (place % 2) + 10 / step**2 + 1e-4 * draws.normal(size=400)
            flat = 1.0 + 0.5 * place
            arrays = {
                "excess_loss": {"entropy": np.ones(400), "excess_loss": excess},
                "trace": {"head": flat * inputs, "weights": np.ones(64)},
                "probe": {
                    "accuracy.2": np.array([[0.9 - 0.05 * flat + 0.001 * draws.normal(size=4)]]),
                    "error.2": np.array([[0.01]]),
                    "gap.2": np.zeros((1, 1, 4)),
                    "l2.2": np.ones((1, 1, 4)),
                    "majority.2": np.array([0.4]),
                    "sizes.2": np.array([100]),
                    "test.2": np.array([100]),
                },
            }
            for kind, evaluation in spec.evaluations.items():
                journal.save_arrays(step, kind, evaluation_identity(evaluation), 0, arrays[kind])
                metrics = evaluation.combine([arrays[kind]])
                journal.record_evaluation(step, evaluation, metrics, seconds=2.0)
    return sweep


def measured(sweep: Sweep) -> Measurements:
    return measurements(tidy(sweep.ledger(), sweep))


def test_losses_are_compared_sentence_by_sentence(sweep: Sweep) -> None:
    found = measured(sweep)
    draws = loss_draws(sweep, found.saturating)
    assert len(draws) == 16
    table = found.checkpoints
    keys = list(zip(table["run_id"], table["step"], strict=True))
    errors = table["excess_loss_se"].to_numpy()
    for key, error in zip(keys, errors, strict=True):
        assert math.sqrt(float((draws[key] ** 2).sum())) == pytest.approx(error)
    apart, paired = loss_errors(keys, errors, draws)
    assert paired
    spec = sweep.run(keys[0][0])
    sides = []
    for run_id, step in keys[:2]:
        evaluation, journal = spec.evaluations["excess_loss"], sweep.ledger().open(run_id)

        def load(shard: int, step: int = step, journal=journal, evaluation=evaluation):
            return journal.load_arrays(step, "excess_loss", evaluation_identity(evaluation), shard)

        [arrays], missing = stored_shards(evaluation, load)
        assert missing == []
        sides.append(arrays["excess_loss"])
    direct = (sides[1] - sides[0]).std(ddof=1) / math.sqrt(400)
    assert apart[0, 1] == pytest.approx(direct)
    assert apart[0, 1] < errors[0] / 50
    assert apart[0, 0] == pytest.approx(0.0, abs=1e-9)
    without, paired = loss_errors(keys, errors, {})
    assert not paired
    assert without[0, 1] == pytest.approx(math.hypot(errors[0], errors[1]))


def test_the_draws_of_a_held_out_loss_have_its_standard_error() -> None:
    draws = np.random.default_rng(1)
    masked = draws.integers(1, 9, size=50).astype(float)
    losses = masked * draws.exponential(size=50)
    found = _of_ratio(
        [{"loss": losses[:20], "masked": masked[:20]}, {"loss": losses[20:], "masked": masked[20:]}]
    )
    assert found.sum() == pytest.approx(0.0, abs=1e-12)
    assert math.sqrt((found**2).sum()) == pytest.approx(mean_per_word(losses, masked).standard_error)


def test_pairs_have_paired_differences_and_the_flatter_one_second(sweep: Sweep) -> None:
    found, total = matches(sweep, measured(sweep), tolerance=0.0005, shown=5)
    # Per step, four places with each of the two shifts: six pairs of each, twice.
    assert total == 24
    assert len(found) == 5
    assert [pair.telling for pair in found] == sorted((pair.telling for pair in found), reverse=True)
    for pair in found:
        assert pair.first[1] == pair.second[1]
        loss, trace, accuracy = (pair.differences[m] for m in ("excess_loss", "trace", "probe/2"))
        assert loss.paired
        assert abs(loss.value) < 0.0005
        assert trace.paired
        assert trace.value < 0
        assert accuracy.paired
        assert accuracy.dof == 3
        assert accuracy.interval[0] > 0
        assert "steps" in pair.same
        assert "size" in {**pair.same, **pair.differs}
    assert matches(sweep, measured(sweep), tolerance=1e-9)[0] == []
    with pytest.raises(ConfigError, match="--task Z: no accuracy of it has been measured; measured: 2"):
        matches(sweep, measured(sweep), task="Z")


def test_the_commands_print_tables_and_json(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["tiny", "--storage", str(sweep.storage)]
    assert run(["match", *where, "--tol", "0.0005", "--limit", "3"]) == 0
    text = capsys.readouterr().out
    assert "24 pairs within 0.0005 nats, most telling:" in text
    assert "Δ trace" in text
    assert "~" not in text
    assert run(["match", *where, "--tol", "0.0005", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["pairs"] == 24
    assert len(found["shown"]) == 20
    assert found["shown"][0]["differences"]["trace"]["paired"] is True
    assert run(["power", *where, "--json"]) == 0
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert [claim["units"] for claim in claims] == ["configurations", "runs", "runs"]
    assert run(["power", *where]) == 0
    assert "with 80 %" in capsys.readouterr().out


def test_more_data_is_counted_and_priced(sweep: Sweep) -> None:
    # Two milestones of three evaluations, and no training that was timed.
    assert run_seconds(sweep) is None
    verdicts = sweep_verdicts(sweep)
    [flatter, *_] = plans(verdicts, sweep, sweep, effect=0.3)
    assert (flatter.clusters, flatter.units) == (4, "configurations")
    assert flatter.needed is None or flatter.runs == 2 * flatter.needed
    small = plans(verdicts, sweep, sweep, effect=0.1)[0]
    assert small.power is None or small.power < flatter.power
