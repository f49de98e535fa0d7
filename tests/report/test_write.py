"""The report of a real sweep's folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from raysweep.evaluation.base import Metric
from raysweep.report import write_report
from raysweep.report.contrasts import changes
from raysweep.sweep import evaluation_identity, load_sweep, tidy
from raysweep.sweep.provenance import provenance, save_launch

FILE = """\
name: tiny
description: How it goes.
language: {kind: hmm, states: 4, vocabulary: 6, length: 4, blocks: 2, tasks: [2]}
model: {kind: encoder, shape: 16/1/1/32}
algorithm: {kind: adamw, lr: 1e-3}
pretrain: {steps: 100, batch_size: 8, milestones: [50, 100]}
evaluate: {excess_loss: {sentences: 64}}
axes:
  seed: [0, 1]
"""


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
            run.save_arrays(step, "trace", evaluation_identity(evaluation), shard, arrays)
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
