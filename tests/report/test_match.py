"""Pairs at equal loss with their differences, and the runs that a claim would take."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from helpers import tiny_sweeps as tiny
from helpers.json_output import check, documented
from raysweep.cli import claims
from raysweep.cli.app import run
from raysweep.cli.claims import _plan_lines, _what
from raysweep.errors import ConfigError
from raysweep.evaluation.held_out_loss import mean_per_word
from raysweep.evaluation.run import stored_shards
from raysweep.models.shapes import Shape
from raysweep.report.claims import sweep_verdicts
from raysweep.report.data import Measurements, measurements
from raysweep.report.match import Match, matches
from raysweep.report.paired import Apart, LossDraws, _of_ratio, loss_errors
from raysweep.report.planning import plans, run_seconds
from raysweep.report.reference import by_seeds
from raysweep.report.verdict import ALPHA, amount
from raysweep.sweep import Sweep, arrays_identity, load_sweep
from raysweep.sweep.claims import Questions
from raysweep.sweep.made import record_made
from raysweep.sweep.stored import save_sweep
from raysweep.sweep.tidy import tidy

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
#: Sizes that one shape holds, 32/2/2/64.
HELD = ("axes.model.shape=[16/1/1/32, 16/1/2/32, 32/2/1/64]",)
SHARED = 0.05  # of each sentence's loss, for all checkpoints


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return stored_draws(tmp_path)


def stored_draws(tmp_path: Path, overrides: tuple[str, ...] = ()) -> Sweep:
    """A sweep with stored draws: losses that differ by little beside their spread over sentences."""
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "tiny.yaml").write_text(FILE)
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), overrides, storage=tmp_path / "results")
    save_sweep(sweep)
    draws = np.random.default_rng(0)
    sentences, inputs = draws.exponential(SHARED, size=400), stored_inputs()
    for place, spec in enumerate(sweep.runs):
        journal = sweep.ledger().run(spec)
        for step in spec.milestones:
            excess = sentences + 0.001 * (place % 2) + 10 / max(step, 1) ** 2 + 1e-4 * draws.normal(size=400)
            flat = 1.0 + 0.5 * place
            arrays = {
                "excess_loss": {"entropy": np.ones(400), "excess_loss": excess},
                "trace": {
                    "head": flat * inputs,
                    "weights": np.ones(64),
                    "enlarged/shape": np.tile(np.int32(Shape.parse(spec.model.shape)), (64, 1)),
                    "enlarged/powers": np.outer(flat * inputs, [0.25, 0.125, 0.0]),
                    "enlarged/last": 0.1 * inputs,
                },
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
                journal.save_arrays(step, kind, arrays_identity(evaluation), 0, arrays[kind])
                metrics = evaluation.combine([arrays[kind]])
                journal.record_evaluation(step, evaluation, metrics, seconds=2.0)
    return sweep


def stored_inputs() -> np.ndarray:
    """Sizes of the inputs' values of all traces [64]."""
    return np.random.default_rng(7).exponential(size=64)


def measured(sweep: Sweep) -> Measurements:
    return measurements(tidy(sweep.ledger(), sweep))


def test_losses_are_compared_sentence_by_sentence(sweep: Sweep) -> None:
    found = measured(sweep)
    draws = LossDraws(sweep, found.saturating)
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
            return journal.load_arrays(step, "excess_loss", arrays_identity(evaluation), shard)

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
    every = matches(sweep, measured(sweep), tolerance=0.0005, shown=5)
    found, total = every.shown, every.total
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
        # Four seeds: Student's t with three degrees of freedom.
        assert accuracy.interval[1] - accuracy.value == pytest.approx(3.182446 * accuracy.standard_error)
        assert accuracy.interval[0] > 0
        assert "steps" in pair.same
        assert "size" in {**pair.same, **pair.differs}
    assert matches(sweep, measured(sweep), tolerance=1e-9).shown == []
    with pytest.raises(ConfigError, match="--task Z: no accuracy of it has been measured; measured: 2"):
        matches(sweep, measured(sweep), task="Z")


def test_sizes_apart_are_compared_in_one_space_by_the_same_inputs(tmp_path: Path) -> None:
    sweep = stored_draws(tmp_path, HELD)
    found = matches(sweep, measured(sweep), tolerance=0.0005).shown
    apart = [pair for pair in found if "size" in pair.differs]
    assert apart
    for pair in apart:
        assert "trace" not in pair.differences
        trace = pair.differences["trace_enlarged"]
        assert trace.paired
        assert trace.value < 0
        values = [in_one_space(sweep, key) for key in (pair.first, pair.second)]
        changes = values[1] - values[0]
        assert trace.value == pytest.approx(changes.mean())
        assert trace.standard_error == pytest.approx(changes.std(ddof=1) / math.sqrt(64))
        # The differences are skewed as the inputs are, so the interval reaches further on their side.
        assert trace.value - trace.interval[0] > trace.interval[1] - trace.value
        independent = math.hypot(*(v.std(ddof=1) / math.sqrt(64) for v in values))
        assert trace.standard_error < 0.8 * independent


def in_one_space(sweep: Sweep, key: tuple[str, int]) -> np.ndarray:
    """The inputs' values of a checkpoint seen as 32/2/2/64, by hand from what `stored_draws` stores."""
    place = [spec.run_id for spec in sweep.runs].index(key[0])
    inputs = stored_inputs()
    own, shape = (1.0 + 0.5 * place) * inputs, sweep.runs[place].model.shape
    wider = {16: 2, 32: 1}[int(shape.split("/")[0])]
    deeper = 2 - int(shape.split("/")[2])
    # A quarter of the trace grows with the width, an eighth shrinks, the rest stays.
    return own * (0.25 * wider + 0.125 / wider + 0.625) + deeper * 2 / wider * 0.1 * inputs


def test_probes_are_compared_with_the_look_up_table_seed_by_seed(tmp_path: Path) -> None:
    table = "include=[{algorithm: {kind: lookup_table}}]"
    asked = Questions.decode({"claims": [{"beats": "lookup_table"}]})
    sweep = stored_draws(tmp_path, (table,))
    [verdict] = sweep_verdicts(sweep, questions=asked)
    own, seeds = {}, []
    for spec in sweep.runs:
        probe = spec.evaluations["probe"]
        arrays = (
            sweep.ledger()
            .open(spec.run_id)
            .load_arrays(spec.milestones[-1], "probe", arrays_identity(probe), 0)
        )
        if spec.trains:
            seeds.append(arrays["accuracy.2"][0, 0])
        else:
            own = arrays["accuracy.2"][0, 0]
    found = by_seeds(np.array(seeds) - own)
    assert verdict.main.value == pytest.approx(float(found.value))
    assert (verdict.main.low, verdict.main.p) == pytest.approx((float(found.low), float(found.p)))
    assert "seed by seed" in verdict.test
    # Runs of another language are probed on other sentences.
    both = stored_draws(tmp_path / "two", (table, "zip=[{language.seed: [0, 1]}]"))
    [verdict] = sweep_verdicts(both, questions=asked)
    assert "with the standard errors of both" in verdict.test


def test_draws_that_are_all_alike_have_no_interval() -> None:
    """Accuracies on 512 sentences have steps of 1/512, so the differences of two seeds may be equal."""
    alike = Apart.of_draws(np.array([1 / 512, 1 / 512]))
    assert math.isnan(alike.standard_error)
    assert claims._between(alike) == "+0.00195"
    apart = Apart.of_draws(np.array([1 / 512, 3 / 512]))
    assert apart.standard_error == pytest.approx(1 / 512)
    assert claims._between(apart).startswith("+0.00391 [−")


def test_what_differs_is_said_once() -> None:
    def said(**differs: tuple[Any, Any]) -> str:
        same = {"size": "8/2/1/16", "steps": 4}
        return _what(Match(first=("a", 4), second=("b", 4), same=same, differs=differs), "")

    labels = ("adamw-lr0.003", "adamw-lr0.008")
    rates = {"algorithm.lr": (0.003, 0.008)}
    assert said(algorithm=labels, **rates) == "size 8/2/1/16, steps 4, algorithm.lr 0.003 → 0.008"
    # A run beside the grid has no value of the axis.
    told = "size 8/2/1/16, steps 4, algorithm adamw-lr0.003 → sgd, algorithm.lr 0.003 → None"
    assert said(algorithm=("adamw-lr0.003", "sgd"), **{"algorithm.lr": (0.003, None)}) == told
    assert said(algorithm=labels, seed=(0, 1)).startswith(
        "size 8/2/1/16, steps 4, algorithm adamw-lr0.003 → "
    )


RATES = "axes.algorithm.lr=[1e-3, 2e-3]"


@pytest.mark.parametrize("overrides", [(), (RATES,), (RATES, "axes.model.shape=null")])
def test_no_two_rows_are_alike(
    tmp_path: Path,
    overrides: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pairs of the same runs at each step, and pairs at each value of an axis that a pair shares."""
    sweep = stored_draws(tmp_path, overrides)
    monkeypatch.setattr(claims, "console", lambda pipe_width: Console(markup=False, width=300))
    assert run(["match", "tiny", "--storage", str(sweep.storage), "--limit", "1000"]) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    whats = [row.split("  ")[0] for row in rows if "[" in row]
    assert head == f"{len(whats)} pairs within 0.002 nats (--tol), the most telling first:"
    assert len(set(whats)) == len(whats)
    assert all("steps " in what for what in whats)


@pytest.mark.parametrize(
    ("claims", "said"),
    [
        ("claims=[]", ""),
        ("claims=[beats: lookup_table]", ""),
        ("claims=[longer: {tolerance: 0.002}]", ""),
        ("claims=[longer: {}]", "within 0.005 nats as"),
        ("claims=[longer: {}, larger: {tolerance: 0.001}]", "within 0.001 or 0.005 nats as"),
    ],
)
def test_the_tolerance_of_claims_is_told_where_it_is_another_one(
    tmp_path: Path, claims: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = "include=[{algorithm: {kind: lookup_table}}]"
    sweep = stored_draws(tmp_path, ("tolerance=0.05", claims, table))
    assert run(["match", "tiny", "--storage", str(sweep.storage), "--limit", "1"]) == 0
    assert said in (line := capsys.readouterr().out.splitlines()[-1])
    assert line.startswith("claims of this sweep") == bool(said)


def test_the_commands_print_tables_and_json(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["tiny", "--storage", str(sweep.storage)]
    assert run(["match", *where, "--tol", "0.0005", "--limit", "3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("24 pairs within 0.0005 nats (--tol), 3 of 24 shown, the most telling first:\n")
    # A tenth of 0.02, what counts as saturated where the file does not say it.
    assert text.endswith("\nclaims of this sweep count losses within 0.002 nats as equal, by its file\n")
    assert "Δ trace" in text
    assert "~" not in text
    assert run(["match", *where, "--tol", "0.0005", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check(found, documented()["match NAME"])
    assert found["pairs"] == 24
    assert len(found["shown"]) == 20
    assert found["shown"][0]["differences"]["trace"]["paired"] is True
    assert run(["power", *where, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check(found, documented()["power NAME"])
    assert [claim["units"] for claim in found["claims"]] == ["configurations", "runs"]
    assert run(["power", *where]) == 0
    assert "with 80 %" in capsys.readouterr().out


def test_a_narrow_terminal_has_the_differences_below(
    sweep: Sweep, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ["tiny", "--storage", str(sweep.storage), "--tol", "0.0005", "--limit", "2"]
    monkeypatch.setattr(claims, "console", lambda pipe_width: Console(markup=False, width=200))
    assert run(["match", *where]) == 0
    wide = capsys.readouterr().out.splitlines()
    monkeypatch.setattr(claims, "console", lambda pipe_width: Console(markup=False, width=60))
    assert run(["match", *where]) == 0
    lines = capsys.readouterr().out.splitlines()
    # The last two are remarks.
    assert max(map(len, lines[1:-2])) <= 60
    headings = [line.split("  ")[1].strip() for line in lines if line.startswith("  Δ")]
    assert headings == 2 * headings[: len(headings) // 2]
    assert all(heading in wide[1] for heading in headings)
    # What differs is in one piece, and each difference is that of the table.
    what = wide[2].split("  ")[0]
    assert what in " ".join(lines)
    values = [line.rsplit("  ", 1)[1] for line in lines if line.startswith("  Δ")]
    assert all(value in wide[2] + wide[3] for value in values)


def test_the_commands_see_runs_of_a_tuner(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    less = load_sweep(sweep.path, ["axes.seed=[0]"], storage=sweep.storage)
    save_sweep(less)
    own = {spec.run_id for spec in less.runs}
    for spec in sweep.runs:
        if spec.run_id not in own:
            record_made(sweep.directory, spec, metric="excess_loss", mode="min", step=spec.milestones[-1])
    assert 0 < len(own) < len(sweep.runs)
    where = ["tiny", "--storage", str(sweep.storage), "--json"]
    assert run(["match", *where, "--tol", "0.0005"]) == 0
    assert json.loads(capsys.readouterr().out)["pairs"] == 24
    assert run(["power", *where]) == 0
    claims = json.loads(capsys.readouterr().out)["claims"]
    assert [claim["clusters"] for claim in claims] == [4, len(sweep.runs)]


def test_more_data_is_counted_and_priced(sweep: Sweep) -> None:
    # Two milestones of three evaluations, and no training that was timed.
    assert run_seconds(sweep) is None
    verdicts = sweep_verdicts(sweep)
    [flatter, *_] = plans(verdicts, sweep, sweep, effect=0.3)
    assert (flatter.clusters, flatter.units) == (4, "configurations")
    assert flatter.needed is None or flatter.runs == 2 * flatter.needed
    small = plans(verdicts, sweep, sweep, effect=0.1)[0]
    assert small.power is None or small.power < flatter.power


def test_data_are_counted_at_the_level_of_the_claim_among_all(sweep: Sweep) -> None:
    first, *_ = sweep_verdicts(sweep)
    alone = replace(first, main=replace(first.main, p=0.03), p_corrected=0.03)
    among = replace(alone, p_corrected=0.06)
    assert (alone.level, among.level) == (ALPHA, pytest.approx(ALPHA / 2))
    assert replace(first, p_corrected=math.nan).level == ALPHA
    [free], [strict] = plans([alone], sweep, sweep), plans([among], sweep, sweep)
    assert strict.power < free.power  # type: ignore[operator]
    assert strict.detectable > free.detectable  # type: ignore[operator]
    assert strict.needed == among.needed(level=among.level)
    assert strict.needed > free.needed  # type: ignore[operator]
    assert strict.alone == free.alone == free.detectable
    said = f"tested among all ({amount(free.detectable, first.unit)} if it were tested alone)"  # type: ignore[arg-type]
    assert [_plan_lines(plan)[0].endswith(said) for plan in (free, strict)] == [False, True]


def test_a_tiny_effect_of_a_pilot_is_planned_as_the_least_one_worth_mentioning(sweep: Sweep) -> None:
    first, *_ = sweep_verdicts(sweep)
    tiny = replace(first, main=replace(first.main, value=-0.001))
    assert [plan.effect for plan in plans([first, tiny], sweep, sweep)] == [first.main.value, tiny.least]
    assert plans([tiny], sweep, sweep, effect=0.002)[0].effect == 0.002


def test_the_number_of_runs_is_said_once(sweep: Sweep) -> None:
    """So many runs are so many runs in all."""
    first, *_ = sweep_verdicts(sweep)
    [plan] = plans([replace(first, main=replace(first.main, p=0.03), p_corrected=0.06)], sweep, sweep)
    assert plan.needed is not None
    said = _plan_lines(replace(plan, needed=1150, runs=2300))[-1]
    assert said.endswith("takes 1,150 configurations, 2,300 runs in all")
    said = _plan_lines(replace(plan, units="runs", needed=1150, runs=1150))[-1]
    assert said.endswith("takes 1,150 runs")
