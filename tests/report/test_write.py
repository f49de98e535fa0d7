"""The report of a real sweep's folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.evaluation.metric import Metric
from raysweep.evaluation.run import stored_shards
from raysweep.flatness.trace.regression import FOLDS
from raysweep.report import write_report
from raysweep.report.contrasts import Change, _judged, changes
from raysweep.sweep import arrays_identity, load_sweep
from raysweep.sweep.provenance import provenance, save_launch
from raysweep.sweep.tidy import tidy

FILE = (
    tiny.HEAD
    + """\
description: How it goes.
evaluate: {excess_loss: {sentences: 64}}
axes:
  seed: [0, 1]
"""
)


def test_a_report_can_be_written_at_any_time(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE)
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    page = write_report(sweep, tidy(sweep.ledger(), sweep), tmp_path / "new" / "report.html")
    assert page == tmp_path / "new" / "report.html"
    before = page.read_text()
    assert "0 of 2" in before
    assert "How it goes." in before
    one, two = sweep.runs
    save_launch(sweep.directory, provenance())
    [evaluation] = one.evaluations.values()
    metric = Metric(name="excess_loss", value=0.5, standard_error=0.1, n=64, unit="nats")
    sweep.ledger().run(one).record_evaluation(50, evaluation, [metric], seconds=1.0)
    sweep.ledger().run(two).record_failure("loss is not finite", error="RunFailedError", step=60)
    after = write_report(sweep, tidy(sweep.ledger(), sweep), page).read_text()
    for expected in ("1 of 2", "loss is not finite", "last launch"):
        assert expected in after
    where = f" --storage {tmp_path / 'results'}"
    assert f"<code>raysweep ui tiny{where}</code>" in after
    assert f"<code>raysweep export tiny -o tiny.parquet{where}</code>" in after
    assert list(page.parent.iterdir()) == [page]


def test_a_report_that_cannot_be_written_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(FILE)
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    frame = tidy(sweep.ledger(), sweep)
    page = write_report(sweep, frame, tmp_path / "out" / "report.html")
    old = page.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space"):
        write_report(sweep, frame, page)
    assert page.read_bytes() == old
    assert list(page.parent.iterdir()) == [page]


def test_the_trace_between_milestones_is_a_paired_difference(tmp_path: Path) -> None:
    text = FILE.replace("excess_loss: {sentences: 64}", "trace: {inputs: 64, shard_size: 40}")
    (tmp_path / "tiny.yaml").write_text(text.replace("[50, 100]", "[25, 50, 100]"))
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    assert changes(sweep) == []
    one, _ = sweep.runs
    [evaluation] = one.evaluations.values()
    run, generator = sweep.ledger().run(one), np.random.default_rng(0)
    values = {25: generator.exponential(size=64)}
    values[50] = values[25] + 0.5 + 0.01 * generator.normal(size=64)
    values[100] = values[50] + 0.01 * generator.normal(size=64)
    for step, whole in values.items():
        shards = [
            {"embedding": 0.25 * part, "head": 0.75 * part, "weights": np.ones(len(part))}
            for part in (whole[:40], whole[40:])
        ]
        for shard, arrays in enumerate(shards):
            run.save_arrays(step, "trace", arrays_identity(evaluation), shard, arrays)
        if step < 100:
            run.record_evaluation(step, evaluation, evaluation.combine(shards), seconds=1.0)
    # What is not recorded is not compared, though its arrays are there.
    [change] = changes(sweep)
    assert (change.run_id, change.before, change.after) == (one.run_id, 25, 50)
    run.record_evaluation(100, evaluation, evaluation.combine(shards), seconds=1.0)
    found = changes(sweep)
    assert [(c.before, c.after) for c in found] == [(25, 50), (50, 100), (25, 100)]
    for change in found:
        apart = values[change.after] - values[change.before]
        assert change.difference == pytest.approx(apart.mean())
        assert change.standard_error == pytest.approx(apart.std(ddof=1) / 8)
        assert change.independent > 10 * change.standard_error
    page = write_report(sweep, tidy(sweep.ledger(), sweep), tmp_path / "report.html").read_text()
    assert "The trace between milestones" in page
    assert page.count("25 → 50") == 1
    assert page.count(">rises<") == 2


@pytest.mark.parametrize("controlled", [(100,), (50, 100)])
def test_milestones_of_different_length_are_compared_on_the_inputs_of_both(
    tmp_path: Path, controlled: tuple[int, ...]
) -> None:
    text = FILE.replace("{sentences: 64}", "{inputs: 20000, shard_size: 500, target_rse: 0.02}")
    (tmp_path / "tiny.yaml").write_text(text.replace("excess_loss", "trace").replace("[0, 1]", "[0]"))
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    [spec] = sweep.runs
    [evaluation] = spec.evaluations.values()
    run, generator = sweep.ledger().run(spec), np.random.default_rng(0)
    values = {50: generator.exponential(size=20_000), 100: generator.lognormal(sigma=1.2, size=20_000)}
    # Statistics of mean zero that tell something of a milestone's values.
    control = {step: generator.normal(size=(20_000, 2)) for step in (50, 100)}
    values[50] += 0.2 * control[50][:, 1]
    values[100] += 0.5 * control[100][:, 0] + 1.0
    lengths = {}
    for step, whole in values.items():
        cuts = range(0, 20_000, 500)
        shards = [{"head": whole[k : k + 500], "weights": np.ones(500)} for k in cuts]
        for k, shard in zip(cuts, shards, strict=True):
            if step in controlled:
                shard["control"] = control[step][k : k + 500]
        # All are in the ledger, as after a change of the rule; those that the rule asks for count.
        for number, arrays in enumerate(shards):
            run.save_arrays(step, "trace", arrays_identity(evaluation), number, arrays)
        found, missing = stored_shards(evaluation, shards.__getitem__)
        assert missing == []
        run.record_evaluation(step, evaluation, evaluation.combine(found), seconds=1.0)
        lengths[step] = 500 * len(found)
    assert 1000 < lengths[50] < lengths[100] < 20_000
    [change] = changes(sweep)
    n = lengths[50]
    # A difference of an adjusted and a plain value would hold what the adjustment takes off.
    apart = values[100][:n] - values[50][:n]
    if len(controlled) == 2:
        apart = _adjusted(apart, np.column_stack([control[50][:n], control[100][:n]]))
    x, y = (_adjusted(values[s][:n], control[s][:n]) if s in controlled else values[s][:n] for s in (50, 100))
    assert change.n == n
    assert change.difference == pytest.approx(apart.mean())
    assert change.standard_error == pytest.approx(apart.std(ddof=1) / n**0.5)
    assert change.independent == pytest.approx(np.hypot(x.std(ddof=1), y.std(ddof=1)) / n**0.5)
    assert change.warning is None
    assert change.significant
    # Where a shard that counts is gone, nothing is compared.
    (run.arrays_directory(100, "trace", arrays_identity(evaluation)) / "000000.npz").unlink()
    assert changes(sweep) == []


def _adjusted(values: np.ndarray, control: np.ndarray) -> np.ndarray:
    """Return values less their regression on `control`, each fold by the coefficients of the others."""
    columns, fold = np.column_stack([np.ones(len(values)), control]), np.arange(len(values)) % FOLDS
    left = values.copy()
    for k in range(FOLDS):
        fitted = np.linalg.lstsq(columns[fold != k], values[fold != k], rcond=None)[0]
        left[fold == k] -= control[fold == k] @ fitted[1:]
    return left


def test_one_input_that_makes_a_change_is_doubted(tmp_path: Path) -> None:
    text = FILE.replace("excess_loss: {sentences: 64}", "trace: {inputs: 64, shard_size: 64}")
    (tmp_path / "tiny.yaml").write_text(text)
    sweep = load_sweep(str(tmp_path / "tiny.yaml"), (), storage=tmp_path / "results")
    generator = np.random.default_rng(0)
    for spec, last in zip(sweep.runs, (0.0, 30.0), strict=True):
        [evaluation] = spec.evaluations.values()
        run, values = sweep.ledger().run(spec), generator.exponential(size=64)
        for step in (50, 100):
            arrays = {"head": values.copy(), "weights": np.ones(64)}
            run.save_arrays(step, "trace", arrays_identity(evaluation), 0, arrays)
            notes = {"method": "vmap", "reason": "a <Conv> is unknown"} if step == 50 and last else {}
            run.record_evaluation(step, evaluation, evaluation.combine([arrays]), seconds=1.0, notes=notes)
            # Differences of both signs, and in the second run one that is most of them.
            values = values + 1.0 + 0.1 * generator.normal(size=64)
            values[3] += last
    sure, doubtful = changes(sweep)
    assert (sure.warning, sure.significant) == (None, True)
    assert doubtful.warning is not None
    assert doubtful.warning.startswith("one of 64 inputs makes 3")
    assert not doubtful.significant
    page = write_report(sweep, tidy(sweep.ledger(), sweep), tmp_path / "report.html").read_text()
    assert page.count(">not trusted</span>: one of 64 inputs makes 3") == 1
    assert page.count(">rises<") == 1
    # How gradient norms were computed, where it was not the usual way.
    assert "<dd>trace was measured by vmap: a &lt;Conv&gt; is unknown (1 of 4 checkpoints)</dd>" in page


@pytest.mark.parametrize("count", [1, 20])
def test_more_changes_take_more_to_be_told(count: int) -> None:
    small = [_deviation(0.1)] * (count - 1)
    [first, *others] = _judged([_deviation(-2.5), *small])
    # A deviation of 2.5 standard errors has probability 0.0124: told alone, not one of 20.
    assert first.significant == (count == 1)
    assert not any(change.significant for change in others)
    [sure, *_] = _judged([_deviation(5.0), *small])
    assert sure.significant
    [doubtful, *_] = _judged([replace(_deviation(5.0), warning="few inputs"), *small])
    assert not doubtful.significant


def _deviation(size: float) -> Change:
    """Return a change of so many standard errors."""
    return Change(
        run_id="x",
        before=1,
        after=2,
        difference=size,
        standard_error=1.0,
        n=1000,
        independent=2.0,
        correlation=0.9,
        skewness=0.0,
        warning=None,
    )
