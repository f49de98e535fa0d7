"""Tokens a second and MFU of curve points, and where the time of steps goes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from helpers import training_fakes as fakes
from raysweep.models.encoder import Encoder
from raysweep.models.flops import training_flops
from raysweep.training import CurvePoint, Progress, StepTimes, World, loop, pretrain, progress, throughput
from raysweep.training.data import batches, masked_words
from raysweep.training.throughput import Throughput, peak_flops, product_flops

CPU = torch.device("cpu")
OPTIONS = {"steps": 100, "milestones": (100,), "checkpoint_every": None}


class Clock:
    """A clock that moves only when a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A clock for the loop: a step takes 2 s, a checkpoint 1000 s."""
    clock = Clock()
    update, write = loop.Stepper.update, loop.disk.write_checkpoint

    def step(self: Any, *given: Any) -> Any:
        clock.now += 2.0
        return update(self, *given)

    def checkpoint(*given: Any) -> Any:
        clock.now += 1000.0
        return write(*given)

    monkeypatch.setattr(loop.Stepper, "update", step)
    monkeypatch.setattr(loop.disk, "write_checkpoint", checkpoint)
    monkeypatch.setattr(loop.time, "monotonic", clock)
    monkeypatch.setattr(throughput, "peak_flops", lambda device, dtype: 1e6)
    return clock


@pytest.mark.parametrize("mask", ["one", 0.3])
@pytest.mark.parametrize("every", [None, 20])
@pytest.mark.usefixtures("clock")
def test_a_point_has_the_words_of_its_steps_by_the_time_they_took(
    tmp_path: Path, mask: Any, every: int | None
) -> None:
    arguments = fakes.arguments(pretrain={**OPTIONS, "mask": mask, "checkpoint_every": every})
    journal = fakes.FolderJournal(tmp_path)
    pretrain(journal=journal, **arguments)
    points = sorted({p for r in journal.checkpoints() for p in r.curve}, key=lambda p: p.step)
    assert [p.step for p in points] == [50, 100]
    language, model = arguments["language"], arguments["model"].build(arguments["language"], seed=0)
    drawn = list(batches(language, arguments["pretrain"], seed=5, first=1, last=100))
    # The first step of a process is not counted.
    for point, steps in zip(points, (drawn[1:50], drawn[50:]), strict=True):
        seconds = 2.0 * len(steps)
        # Words one by one, padding left out.
        words = sum(int(w) != language.pad_id for batch in steps for row in batch.ids for w in row)
        assert point.tokens_per_second == pytest.approx(words / seconds)
        flops = 0
        for batch in steps:
            hidden = torch.zeros_like(batch.ids).flatten()
            at = batch.index + 6 * torch.arange(13) if batch.single else batch.index
            hidden[at] = 1
            flops += training_flops(model, batch.lengths, hidden.view(13, 6).sum(dim=1))
        assert point.mfu == pytest.approx(flops / seconds / 1e6)


@pytest.mark.parametrize("stopped", [30, 49])
@pytest.mark.usefixtures("clock")
def test_a_resumed_run_counts_its_own_steps_and_time(tmp_path: Path, stopped: int) -> None:
    calls = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == stopped

    journal = fakes.FolderJournal(tmp_path)
    pretrain(journal=journal, stop=stop, **fakes.arguments(pretrain=OPTIONS))
    pretrain(journal=journal, **fakes.arguments(pretrain=OPTIONS))
    [point, _] = journal.checkpoints()[0].curve
    drawn = list(batches(fakes.Walk(), fakes.arguments()["pretrain"], seed=5, first=stopped + 2, last=50))
    if drawn:
        expected = sum(int(b.lengths.sum()) for b in drawn) / (2.0 * len(drawn))
        assert point.tokens_per_second == pytest.approx(expected)
    else:
        assert (point.tokens_per_second, point.mfu) == (None, None)
    assert journal.checkpoints()[0].train_seconds == 200.0


def test_processor_time_is_counted_over_all_attempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = iter(range(0, 10**6, 7))
    monkeypatch.setattr(time, "process_time", lambda: float(next(used)))
    journal = fakes.FolderJournal(tmp_path)
    pretrain(journal=journal, stop=iter([*[False] * 29, True]).__next__, **fakes.arguments(pretrain=OPTIONS))
    assert journal.checkpoints()[0].train_cpu_seconds == 7.0
    pretrain(journal=journal, **fakes.arguments(pretrain=OPTIONS))
    # Between two looks at the clock lie 7 s: from the start to step 30, from there to the end.
    assert journal.checkpoints()[0].train_cpu_seconds == 14.0


@pytest.mark.usefixtures("clock")
def test_progress_tells_the_mean_up_to_the_newest_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.0)
    seen: list[Progress] = []
    journal = fakes.FolderJournal(tmp_path)
    pretrain(journal=journal, on_progress=seen.append, **fakes.arguments(pretrain=OPTIONS))
    [first, last] = journal.checkpoints()[0].curve
    assert {(p.tokens_per_second, p.mfu) for p in seen[:49]} == {(None, None)}
    assert {(p.tokens_per_second, p.mfu) for p in seen[49:99]} == {(first.tokens_per_second, first.mfu)}
    assert first.tokens_per_second is not None
    assert last.tokens_per_second is not None
    assert first.mfu is not None
    assert last.mfu is not None
    # 49 steps of 2 s and 50 of them: the first step of a process is not counted.
    tokens = (98 * first.tokens_per_second + 100 * last.tokens_per_second) / 198
    assert seen[99].tokens_per_second == pytest.approx(tokens)
    assert seen[99].mfu == pytest.approx((98 * first.mfu + 100 * last.mfu) / 198)


def test_a_model_of_unknown_operations_has_no_mfu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "training_flops", lambda *given: None)
    arguments = fakes.arguments()
    model = arguments["model"].build(arguments["language"], seed=0)
    meter = Throughput(model, arguments["pretrain"], World(), CPU, torch.float32)
    for batch in batches(arguments["language"], arguments["pretrain"], seed=0, first=1, last=2):
        meter.add(batch)
    # Sentence i has 4 words where 3 divides i, else 6.
    assert meter.take(2.0) == ((26 * 6 - 9 * 2) / 2.0, None)


def test_workers_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three workers of like speed have three times the tokens and the peak of one, and its MFU."""
    arguments = fakes.arguments()
    model = arguments["model"].build(arguments["language"], seed=0)
    monkeypatch.setattr(throughput, "peak_flops", lambda device, dtype: 1e6)
    monkeypatch.setattr(distributed, "all_reduce", lambda values: values.mul_(3))
    found = []
    for size in (1, 3):
        meter = Throughput(model, arguments["pretrain"], World(0, size), CPU, torch.float32)
        for batch in batches(arguments["language"], arguments["pretrain"], seed=0, first=1, last=2):
            meter.add(batch)
        found.append(meter.take(2.0))
    [(tokens, mfu), (together, same)] = found
    assert together == pytest.approx(3 * tokens)
    assert same == pytest.approx(mfu)


@pytest.mark.parametrize("mask", ["one", 0.15, 0.5])
def test_masked_words_are_those_of_the_batches(mask: Any) -> None:
    config = fakes.arguments(pretrain={"mask": mask})["pretrain"]
    found = list(batches(fakes.Walk(), config, seed=0, first=1, last=3))
    assert [int(masked_words(batch.lengths, mask).sum()) for batch in found] == [
        batch.count for batch in found
    ]
    assert len(found) == 3


def test_points_recorded_before_speeds_were_known_still_load() -> None:
    point = CurvePoint.model_validate_json('{"step": 50, "loss": 1.5, "time_ms": 7}')
    assert (point.tokens_per_second, point.mfu) == (None, None)
    assert CurvePoint.model_validate_json(point.model_dump_json()) == point


@pytest.fixture
def no_peak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of peaks of a machine that has measured none."""
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
    throughput._peak_flops.cache_clear()
    yield tmp_path / "cache" / "peaks"
    throughput._peak_flops.cache_clear()


def test_a_machine_has_the_best_peak_of_its_processes(
    no_peak: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Four processes measure; then the file is damaged, and then there can be none."""
    found = []
    for measured in (3e10, 5e10, 2e10, 4e10):
        monkeypatch.setattr(throughput, "product_flops", lambda *given, flops=measured, **how: flops)
        throughput._peak_flops.cache_clear()
        found.append(peak_flops(CPU, torch.float32))
    assert found == [3e10, 5e10, 5e10, 5e10]
    assert peak_flops(CPU, torch.bfloat16) == 4e10
    for path in no_peak.iterdir():
        path.write_text("[")
    throughput._peak_flops.cache_clear()
    assert peak_flops(CPU, torch.float32) == 4e10
    monkeypatch.setenv("RAYSWEEP_CACHE", "/dev/null/cache")
    throughput._peak_flops.cache_clear()
    assert peak_flops(CPU, torch.float32) == 4e10
    assert "the peak of this machine is not kept" in caplog.text


@pytest.mark.usefixtures("no_peak")
def test_the_peak_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def product(size: int, dtype: torch.dtype, *given: Any, **how: Any) -> float:
        calls.append(dtype)
        return product_flops(64, dtype, *given, **how)

    monkeypatch.setattr(throughput, "product_flops", product)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    found = [peak_flops(CPU, dtype) for dtype in (torch.float32, torch.bfloat16, torch.float32)]
    assert torch.equal(torch.get_rng_state(), before)
    assert calls == [torch.float32, torch.bfloat16]
    assert found[0] == found[2]
    # Between the slowest and the fastest that there is.
    assert all(1e7 < flops < 1e14 for flops in found)


@pytest.mark.usefixtures("no_peak")
def test_the_peak_is_that_of_a_processor_without_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every product takes 2 ms of the processor and, since others have it too, 90 ms of the clock."""
    wall, own = Clock(), Clock()
    product = torch.mm

    def crowded(*given: Any, **how: Any) -> Any:
        wall.now += 0.09
        own.now += 0.002
        return product(*given, **how)

    monkeypatch.setattr(torch, "mm", crowded)
    monkeypatch.setattr(time, "perf_counter", wall)
    monkeypatch.setattr(time, "thread_time", own)
    assert peak_flops(CPU, torch.float32) == pytest.approx(2 * 512**3 / 0.002)


def test_the_best_of_several_calls_is_taken() -> None:
    clock, seconds = Clock(), iter([9.0, 3.0, 1.0, 2.0])

    def work() -> None:
        clock.now += next(seconds)

    assert throughput.best_seconds(work, 3, CPU, clock) == 1.0


@pytest.mark.parametrize("kind", ["adamw", "sam"])
@pytest.mark.parametrize("fused", [True, False])
def test_the_parts_of_a_step_are_all_of_it(
    tmp_path: Path, fused: bool, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clock that goes on by 1 at each look: a part is as many looks as it has ends."""
    monkeypatch.setattr(Encoder, "fused", property(lambda self: fused))
    looks = iter(range(10**6))
    times = StepTimes(clock=lambda: float(next(looks)))
    arguments = fakes.arguments(algorithm={"kind": kind}, pretrain={"steps": 20, "milestones": None})
    journal = fakes.FolderJournal(tmp_path / "timed")
    pretrain(journal=journal, timings=times, **arguments)
    passes = 2.0 if kind == "sam" else 1.0
    middle = {"forward+backward": passes} if fused else {"forward": passes, "backward": passes}
    assert times.seconds() == {"data": 1.0, **middle, "optimizer": 1.0}
    assert len(times.steps) == 20
    plain = fakes.FolderJournal(tmp_path / "plain")
    pretrain(journal=plain, **arguments)
    [a, b] = (j.checkpoints()[0].files["model.safetensors"] for j in (journal, plain))
    assert a == b


def test_parts_are_medians_and_data_is_a_mean() -> None:
    clock = Clock()
    times = StepTimes(clock=clock)
    for data, forward in ((10.0, 1.0), (0.0, 1.0), (0.0, 7.0)):
        clock.now += 1000.0
        times.begin()
        for part, seconds in (("data", data), ("forward", forward / 2), ("forward", forward / 2)):
            clock.now += seconds
            times.mark(part)
        times.end()
    assert times.seconds() == {"data": pytest.approx(10 / 3), "forward": 1.0}
    assert StepTimes().seconds() == {}
