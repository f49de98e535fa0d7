"""GPU-hours of a plan: by hand from the operations of its models, and nothing where none was measured."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from helpers import paper_suite
from raysweep.bench.gpu import Rate, gpu_hours, prices, rates, typical_lengths
from raysweep.bench.record import Figure, Record, Spread, load, save
from raysweep.cli.app import run
from raysweep.languages import PCFG
from raysweep.models.flops import training_flops
from raysweep.sweep import Sweep, load_sweep, make_plan
from raysweep.sweep.estimate import END, RUN, START

FILE = """\
name: sizes
language: {kind: pcfg, structure: layered, seed: 0}
model: {kind: encoder, shape: 512/8/8/2048}
algorithm: {kind: adamw}
pretrain: {steps: 1000, batch_size: 64, milestones: [500, 1000]}
evaluate: {excess_loss: {sentences: 8}}
resources: {workers: 2, per_worker: {GPU: 1}}
axes: {seed: [0, 1]}
"""


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "sizes.yaml").write_text(FILE)
    return load_sweep(tmp_path / "sizes.yaml", storage=tmp_path)


def rate(gpu: str = "H9", case: str = "encoder-512", token: float = 1.2e8, second: float = 3e14) -> Rate:
    return Rate(gpu=gpu, case=case, date="2026-01-02", token_flops=token, second_flops=second)


def changed(sweep: Sweep, *overrides: str) -> Sweep:
    return load_sweep(sweep.path, overrides, storage=sweep.storage)


def test_lengths_are_those_of_the_language() -> None:
    language = PCFG.random(seed=0)
    ids = language.sample(4096, seed=3)
    drawn, typical = language.lengths(ids).double(), typical_lengths(language).double()
    assert typical.mean().item() == pytest.approx(drawn.mean().item(), rel=0.05)
    assert typical.std().item() == pytest.approx(drawn.std().item(), rel=0.1)
    assert (typical.min(), typical.max()) >= (drawn.min(), torch.tensor(0.0))


def test_hours_are_operations_by_speed(sweep: Sweep) -> None:
    spec = sweep.runs[0]
    language = sweep.language(spec)
    lengths = language.lengths(language.sample(4096, seed=0))
    flops = training_flops(spec.model.build(language, seed=0), lengths, torch.ones_like(lengths))
    assert flops is not None
    token, step = flops / int(lengths.sum()), flops / 4096 * 64
    near, far = rate(token=1.1 * token), rate(case="encoder-1024", token=3 * token, second=9e14)
    [found] = gpu_hours(sweep, make_plan(sweep), [far, near])
    assert found.cases == ("encoder-512",)
    assert found.hours == pytest.approx(2 * 1000 * step / 3e14 / 3600, rel=0.05)
    assert found.unmeasured == ()
    # Every device that was measured has its own hours, and cost.
    both = prices(sweep, make_plan(sweep), [near, rate("H8", token=token, second=1.5e14)])
    assert both.gpu is not None
    assert both.gpu[1].hours == pytest.approx(2 * found.hours)
    first, second = both.lines(1000.0)
    assert first.startswith(
        f"GPU-hours on H9: {found.hours:,.1f} of training, {1000 * found.hours:,.2f} at 1000 an"
    )
    assert "extrapolated by operations from encoder-512 of bench train, 2026-01-02; evaluations" in first
    assert second.startswith("GPU-hours on H8: ")
    assert both.encode(1000.0)["gpu_hours"][0]["cost"] == pytest.approx(1000 * found.hours)


@pytest.mark.parametrize(
    ("override", "label"),
    [
        ("algorithm={kind: sam, lr: 1e-3, warmup_steps: 10}", "512/8/8/2048 by sam"),
        ("model={kind: lstm, shape: 128/4}", "lstm-128/4 by adamw"),
        ("model.shape=32/1/1/64", "32/1/1/64 by adamw"),
    ],
)
def test_what_no_case_is_like_is_not_measured(sweep: Sweep, override: str, label: str) -> None:
    other = changed(sweep, override)
    [found] = gpu_hours(other, make_plan(other), [rate()])
    assert (found.hours, found.unmeasured) == (None, (label,))
    assert found.line(2.0) == f"GPU-hours on H9: not measured: {label}"
    two = changed(sweep, "axes.model.shape=[32/1/1/64, 512/8/8/2048]")
    [found] = gpu_hours(two, make_plan(two), [rate()])
    assert found.hours is not None
    assert found.line(None).endswith("; not measured: 32/1/1/64 by adamw")


def test_runs_of_other_batches_and_languages_take_other_hours(sweep: Sweep) -> None:
    def hours(*overrides: str) -> float:
        asked = changed(sweep, *overrides)
        [found] = gpu_hours(asked, make_plan(asked), [rate()])
        assert found.hours is not None
        return found.hours

    one, four = (hours(f"pretrain.batch_size={size}") for size in (64, 256))
    assert four == pytest.approx(4 * one)
    assert hours("axes.pretrain.batch_size=[64, 256]") == pytest.approx(one + four)
    # Equal in all but the words that are hidden, and so in the logits to compute.
    some = hours("pretrain.mask=0.5")
    assert some > one
    assert hours("axes.pretrain.mask=[one, 0.5]") == pytest.approx(one + some)


def test_without_a_record_nothing_is_said_in_numbers(sweep: Sweep) -> None:
    found = prices(sweep, make_plan(sweep), [])
    assert found.lines(2.0) == [
        "GPU-hours: not measured (there is no record of `raysweep bench train --device cuda`)"
    ]
    assert found.encode(2.0) == {"gpu_hours": [], "cpu_hours": None, "cpu_cost": None}


def test_rates_are_read_from_records_of_gpus(record: Record, tmp_path: Path) -> None:
    shares = (Figure(name="share of the peak in bfloat16", unit="", value=0.4),)
    case = record.cases[0]
    assert case.timing is not None
    timing = case.timing.model_copy(update={"clock": "wall", "wall_seconds": Spread.of([1e-7])})
    case = case.model_copy(update={"unit": "token", "figures": shares, "timing": timing})
    peak = record.peak.model_copy(update={"gemm_bfloat16_gflops": 800_000.0})
    gpu = record.environment.model_copy(update={"gpu": "H9"})
    update = {"suite": "train", "cases": (case,), "peak": peak}
    save(record.model_copy(update=update), tmp_path / "train.json")
    assert rates(tmp_path) == [], "a record of a processor"
    (tmp_path / "gpus").mkdir()
    save(record.model_copy(update=update | {"environment": gpu}), tmp_path / "gpus" / "h9.json")
    [found] = rates(tmp_path)
    # 40 % of 800 TF/s, 100 ns a token.
    assert (found.gpu, found.case, found.date) == ("H9", "first", "2026-01-02")
    assert (found.second_flops, found.token_flops) == (pytest.approx(3.2e14), pytest.approx(3.2e7))
    quick = load(tmp_path / "gpus" / "h9.json").model_copy(update={"quick": True})
    save(quick, tmp_path / "gpus" / "h9.json")
    assert rates(tmp_path) == []


def test_a_plan_says_what_its_hours_cost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = paper_suite.write_suite(tmp_path / "paper")
    words = ["plan", str(folder / "fig2-small.yaml"), "--set", "resources={workers: 2, per_worker: {CPU: 3}}"]
    assert run([*words, "--price", "36", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["work_seconds"] > 0
    low, high = data["wall_seconds_range"]
    assert 0 < low < data["wall_seconds"] < high
    assert data["not_counted"] == []
    # Each step takes six processors, an evaluation one, and start and end of a launch 1.4.
    training = sum(run["train_seconds"] for run in data["runs"])
    assert 0 < training < data["work_seconds"]
    besides = (1.4 * (sum(START) + sum(END)) + len(data["runs"]) * sum(RUN)) / 2
    assert data["cpu_hours"] == pytest.approx((5 * training + data["work_seconds"] + besides) / 3600)
    assert data["hours"] == {"CPU": data["cpu_hours"]}
    assert data["cpu_cost"] == pytest.approx(36 * data["cpu_hours"])
    assert run([*words, "--price", "36"]) == 0
    assert re.search(r"^  cost: [\d.,]+ for [\d.]+ CPU-hours at 36 an hour$", capsys.readouterr().out, re.M)
    assert run(words) == 0
    assert "cost" not in capsys.readouterr().out
    assert run(["plan", str(folder / "fig1.yaml")]) == 0
    assert "  GPU-hours on NVIDIA H200: not measured: 16/2/1/32-" in capsys.readouterr().out
