"""Killed and resumed equals never killed, with real processes and real SIGKILLs."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import training_fakes as fakes
from raysweep.training import World, checkpoint_directory, pretrain

PATIENCE = 120.0
#: Dropout, milestones that are no curve points, and states between them.
OPTIONS = {"pretrain": {"steps": 120, "milestones": [60, 120], "checkpoint_every": 15}}
# New processes that need not import torch and torch._dynamo, which several workers need, again: each is
# forked from a server that has done nothing else.
context = multiprocessing.get_context("forkserver")
context.set_forkserver_preload(["raysweep.training", "torch._dynamo", "torch.distributed.fsdp"])


class Workers:
    """The processes of one attempt at a run."""

    def __init__(
        self,
        directory: Path,
        size: int = 1,
        options: dict[str, Any] = OPTIONS,
        *,
        seconds: float = 0.0,
        fate: str = "",
        shards: int = 1,
    ) -> None:
        rendezvous = directory.with_name(f"{directory.name}-{time.monotonic_ns()}")
        self.processes: list[BaseProcess] = [
            context.Process(
                target=fakes.work,
                args=(directory, World(rank, size, shards), rendezvous, options, seconds, fate),
                daemon=True,
            )
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def end(self, code: int = 0) -> None:
        """Wait until all have ended, with exit code `code`."""
        for process in self.processes:
            process.join(PATIENCE)
            assert process.exitcode == code

    def kill_when(self, condition: Callable[[], bool]) -> None:
        """Send SIGKILL to all of them as soon as `condition()` is true."""
        deadline = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < deadline
            assert all(process.is_alive() for process in self.processes)
            time.sleep(0.002)
        for process in self.processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        self.end(-signal.SIGKILL)


def assert_same_run(found_at: Path, expected_at: Path) -> None:
    expected = {r.step: r for r in fakes.FolderJournal(expected_at).checkpoints()}
    found = {r.step: r for r in fakes.FolderJournal(found_at).checkpoints()}
    assert sorted(found) == sorted(expected) == list(range(15, 121, 15))
    for step in (60, 120):
        for name in {name for name in expected[step].files if name.endswith(".safetensors")}:
            bits = (checkpoint_directory(found_at, step) / name).read_bytes()
            assert bits == (checkpoint_directory(expected_at, step) / name).read_bytes(), (step, name)
    left = sorted(path.name for path in (found_at / "checkpoints").iterdir())
    assert left == ["step-00000060", "step-00000120"]
    points = [p for r in found.values() for p in r.curve]
    assert {p.step: p.loss for p in points} == {p.step: p.loss for r in expected.values() for p in r.curve}
    assert {p.step for p in points} == {50, 100}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return the folder of a run that was never killed, by its workers and those that share weights."""
    made: dict[tuple[int, int], Path] = {}

    def make(size: int, shards: int = 1) -> Path:
        if (size, shards) not in made:
            made[size, shards] = tmp_path_factory.mktemp("never-killed") / f"{size}-{shards}"
            Workers(made[size, shards], size, shards=shards).end()
        return made[size, shards]

    return make


@pytest.mark.parametrize(("size", "shards"), [(1, 1), (2, 1), (2, 2)])
def test_killed_and_resumed_is_bitwise_never_killed(
    size: int, shards: int, whole: Callable[..., Path], tmp_path: Path
) -> None:
    broken = tmp_path / "broken"
    # Slow steps, so that the signal comes while most of them are still ahead.
    for step in (30, 60):
        record = broken / f"checkpoint-{step:08d}.json"
        Workers(broken, size, seconds=0.02, shards=shards).kill_when(record.exists)
        assert not (broken / "checkpoint-00000120.json").exists()
    Workers(broken, size, shards=shards).end()
    assert_same_run(broken, whole(size, shards))


@pytest.mark.parametrize("fate", ["in a step", "between its two files"])
def test_one_of_two_that_share_weights_is_killed(
    fate: str, whole: Callable[..., Path], tmp_path: Path
) -> None:
    """The other one ends too, and what both have written of a checkpoint counts for nothing."""
    broken = tmp_path / "broken"
    workers = Workers(broken, 2, fate=fate, shards=2).processes
    for process in workers:
        process.join(PATIENCE)
    assert [process.exitcode for process in workers] == [1, -signal.SIGKILL]
    recorded = [r.step for r in fakes.FolderJournal(broken).checkpoints()]
    assert recorded == [30, 15]
    Workers(broken, 2, shards=2).end()
    assert_same_run(broken, whole(2, 2))


@pytest.mark.parametrize(
    "death",
    [
        "in a step",
        "between two files",
        "before the renaming",
        "after the renaming",
        "before the record",
        "after the record",
    ],
)
def test_killed_at_the_worst_moment(death: str, whole: Callable[..., Path], tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    Workers(broken, fate=death).end(-signal.SIGKILL)
    recorded = [r.step for r in fakes.FolderJournal(broken).checkpoints()]
    assert recorded == ([45, 30, 15] if death == "after the record" else [30, 15])
    Workers(broken).end()
    assert_same_run(broken, whole(1))


def test_all_workers_stop_where_one_is_asked_to(whole: Callable[..., Path], tmp_path: Path) -> None:
    Workers(tmp_path / "run", 2, fate="stop").end()
    assert [r.step for r in fakes.FolderJournal(tmp_path / "run").checkpoints()] == [1]
    Workers(tmp_path / "run", 2).end()
    for step in (60, 120):
        found, expected = (
            (checkpoint_directory(run, step) / "model.safetensors").read_bytes()
            for run in (tmp_path / "run", whole(2))
        )
        assert found == expected


@pytest.mark.parametrize(
    ("fate", "first"), [("disk full", "StorageError"), ("record refused", "OSError: [Errno 28]")]
)
def test_all_workers_fail_in_kind_where_the_first_cannot_write(
    fate: str, first: str, whole: Callable[..., Path], tmp_path: Path
) -> None:
    Workers(tmp_path / "run", 2, fate=fate).end(1)
    errors = [(tmp_path / "run" / f"error-{rank}.txt").read_text() for rank in range(2)]
    assert errors[0].startswith(first)
    assert errors[1].startswith("StorageError")
    # Each of them says of itself that another attempt would be in vain.
    assert all(error.endswith("no room") for error in errors)
    assert [r.step for r in fakes.FolderJournal(tmp_path / "run").checkpoints()] == [30, 15]
    Workers(tmp_path / "run", 2).end()
    assert_same_run(tmp_path / "run", whole(2))


def test_all_workers_fail_in_kind_where_one_of_those_that_share_weights_cannot_write(
    whole: Callable[..., Path], tmp_path: Path
) -> None:
    Workers(tmp_path / "run", 2, fate="disk full for its files", shards=2).end(1)
    for rank in range(2):
        error = (tmp_path / "run" / f"error-{rank}.txt").read_text()
        assert error.startswith("StorageError: checkpoint of step 45 cannot be written")
        assert error.endswith("no room")
    # Nothing is left beside those that count.
    left = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert left == ["step-00000030"]
    Workers(tmp_path / "run", 2, shards=2).end()
    assert_same_run(tmp_path / "run", whole(2, 2))


def test_two_workers_train_as_one(tmp_path: Path) -> None:
    """The same batches of 13 sentences, shared 6 and 7, give one worker's weights up to rounding."""
    options = {
        "model": {"dropout": 0.0},
        "pretrain": {"steps": 30, "milestones": [30], "mask": 0.3},
    }
    weights = []
    for size in (1, 2):
        directory = tmp_path / str(size)
        Workers(directory, size, options).end()
        weights.append(load_file(checkpoint_directory(directory, 30) / "model.safetensors"))
    start = dict(fakes.arguments(**options)["model"].build(fakes.Walk(), seed=5).named_parameters())
    for name, one in weights[0].items():
        torch.testing.assert_close(weights[1][name], one, rtol=0, atol=2e-4)
        if one.ndim == 2:
            # The way travelled is far beyond the tolerance: they do not agree for want of training.
            assert (one - start[name]).abs().max() > 1e-2, name


def test_a_run_goes_on_with_another_number_of_workers(tmp_path: Path) -> None:
    """It ends with the losses and weights of one worker's uninterrupted run, up to rounding."""
    # Where a model does not key dropout by sentence, its draws are those of a worker.
    options = {"model": {"dropout": 0.0}, "pretrain": {"mask": 0.3, "checkpoint_every": 5}}

    def train(name: str, size: int, steps: int) -> None:
        extent = {"pretrain": {**options["pretrain"], "steps": steps, "milestones": [steps]}}
        if size == 1:
            pretrain(journal=fakes.FolderJournal(tmp_path / name), **fakes.arguments(**{**options, **extent}))
        else:
            Workers(tmp_path / name, size, {**options, **extent}).end()
        assert fakes.FolderJournal(tmp_path / name).checkpoints()[0].step == steps

    train("whole", 1, 60)
    # All within the steps of one point of the curve, whose loss is thus put together from theirs.
    for size, steps in ((2, 10), (1, 20), (2, 30), (3, 40), (2, 60)):
        train("changed", size, steps)
    records = {name: fakes.FolderJournal(tmp_path / name).checkpoints() for name in ("whole", "changed")}
    [expected], [found] = ({p for r in each for p in r.curve} for each in records.values())
    assert found.step == expected.step == 50
    assert found.loss == pytest.approx(expected.loss, rel=1e-5)
    assert found.tokens_per_second > 0
    one, other = (
        load_file(checkpoint_directory(tmp_path / name, 60) / "model.safetensors") for name in records
    )
    for name, weights in one.items():
        torch.testing.assert_close(other[name], weights, rtol=0, atol=5e-4)
