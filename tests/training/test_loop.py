"""The loop in one process: milestones, damage, full disks, divergence, stopping and going on."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import local_models
from helpers import training_fakes as fakes
from raysweep.algorithms import LookupTableConfig
from raysweep.errors import CheckpointError, ConfigError, RunFailedError, StorageError
from raysweep.languages import CausalLM
from raysweep.models.encoder import Encoder
from raysweep.training import (
    Progress,
    World,
    checkpoint,
    checkpoint_directory,
    load_model,
    loop,
    pretrain,
    progress,
    step_seconds,
    verify,
)
from raysweep.training.data import batches


@pytest.fixture
def run(tmp_path: Path):
    """Return a function that trains in `tmp_path/<name>` and gives its journal."""

    def train(name: str = "run", **options: Any) -> Any:
        calls = {k: options.pop(k) for k in ("on_progress", "stop", "world") if k in options}
        journal = fakes.FolderJournal(tmp_path / name)
        pretrain(journal=journal, **fakes.arguments(**options), **calls)
        return journal

    return train


def weights(journal: Any, step: int) -> bytes:
    return (checkpoint_directory(journal.directory, step) / "model.safetensors").read_bytes()


def places(journal: Any) -> list[str]:
    return sorted(path.name for path in (journal.directory / "checkpoints").iterdir())


def test_milestones_stay_and_states_between_them_go(run) -> None:
    journal = run()
    assert [(r.step, r.milestone) for r in journal.checkpoints()] == [
        (60, True),
        *((step, False) for step in (56, 49, 42, 35, 28, 21)),
        (20, True),
        *((step, False) for step in (14, 7)),
    ]
    assert places(journal) == ["step-00000020", "step-00000060"]
    for record in journal.checkpoints():
        if record.milestone:
            verify(checkpoint_directory(journal.directory, record.step), record.files)
    seconds = [r.train_seconds for r in reversed(journal.checkpoints())]
    assert seconds == sorted(seconds)
    assert seconds[0] > 0
    used = [r.train_cpu_seconds or 0.0 for r in reversed(journal.checkpoints())]
    assert used == sorted(used)
    assert used[0] > 0


def test_a_longer_run_contains_the_shorter_one(run) -> None:
    short = run("short", pretrain={"steps": 20, "milestones": None})
    long = run("long")
    assert weights(short, 20) == weights(long, 20)
    extended = run("short", pretrain={"steps": 60, "milestones": (20, 60)})
    assert weights(extended, 60) == weights(long, 60)


def test_training_lowers_the_loss_and_the_curve_has_its_mean(run) -> None:
    options = {"steps": 200, "milestones": (200,), "checkpoint_every": None, "batch_size": 64}
    points = run(pretrain=options).checkpoints()[0].curve
    assert [p.step for p in points] == [50, 100, 150, 200]
    assert points[0].loss > points[-1].loss + 0.3
    assert points[0].time_ms <= points[-1].time_ms


def test_one_lost_record_loses_no_point_of_the_curve(run) -> None:
    options = {"steps": 300, "milestones": (300,), "checkpoint_every": 60}
    run(pretrain={**options, "steps": 180, "milestones": (180,)})
    records = run(pretrain=options).checkpoints()
    assert [r.step for r in records] == [300, 240, 180, 120, 60]
    for lost in records[1:]:
        kept = {p for r in records if r is not lost for p in r.curve}
        assert sorted(p.step for p in kept) == [50, 100, 150, 200, 250, 300], lost.step
    assert all(len(r.curve) <= 3 for r in records)


def test_nothing_is_done_where_nothing_is_missing(run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights(run(), 60)
    monkeypatch.setattr(loop, "Stepper", None)  # making one would be an error
    assert weights(run(), 60) == before


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [truncate, flip, Path.unlink])
@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_damaged_checkpoint_is_set_aside_and_computed_again(run, tmp_path: Path, damage, name: str) -> None:
    first = run(pretrain={"steps": 20, "milestones": (20,), "checkpoint_every": None})
    good = weights(first, 20)
    damage(checkpoint_directory(first.directory, 20) / name)
    whole = run("whole", pretrain={"checkpoint_every": None})
    again = run(pretrain={"checkpoint_every": None})
    assert weights(again, 20) == good
    assert weights(again, 60) == weights(whole, 60)
    assert [path.name[:13] for path in (again.directory / "quarantine").iterdir()] == ["step-00000020"]
    assert name in (again.directory / "quarantined-00000020.txt").read_text()


def test_an_earlier_milestone_that_is_gone_is_computed_again(run) -> None:
    journal = run()
    expected = weights(journal, 20)
    truncate(checkpoint_directory(journal.directory, 20) / "model.safetensors")
    assert weights(run(), 20) == expected


def test_a_milestone_that_is_there_is_not_written_again_on_the_way(run) -> None:
    journal = run(pretrain={"steps": 35, "milestones": (35,)})
    place = checkpoint_directory(journal.directory, 35)
    before = place.stat().st_ino
    run(pretrain={"milestones": (20, 60)})
    assert place.stat().st_ino == before
    assert places(journal) == ["step-00000020", "step-00000035", "step-00000060"]
    assert [record.step for record in journal.checkpoints() if record.milestone] == [60, 35, 20]


@pytest.mark.parametrize("call", ["write_new", "rename"])
def test_a_full_disk_leaves_the_last_checkpoint_as_it_was(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    real = getattr(checkpoint, call)

    def full(path: Path, *args: Any) -> None:
        if path.match("*step-00000021/optimizer.safetensors" if call == "write_new" else "*step-00000021"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, *args)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, call, full)
        with pytest.raises(StorageError, match=r"step 21 cannot be written.*No space left.*make room"):
            run()
    journal = fakes.FolderJournal(tmp_path / "run")
    assert [r.step for r in journal.checkpoints()] == [20, 14, 7]
    assert places(journal) == ["step-00000020"]
    newest = journal.checkpoints()[0]
    verify(checkpoint_directory(journal.directory, 20), newest.files)
    assert weights(run(), 60) == weights(run("whole"), 60)


def test_what_a_killed_writer_left_is_cleared(run, tmp_path: Path) -> None:
    run(pretrain={"steps": 20, "milestones": (20,)})
    torn = tmp_path / "run" / "checkpoints" / "unfinished-step-00000021"
    torn.mkdir()
    (torn / "model.safetensors").write_bytes(b"half")
    # Written whole, and the process killed before it was recorded.
    unrecorded = checkpoint_directory(tmp_path / "run", 60)
    unrecorded.mkdir()
    (unrecorded / "model.safetensors").write_bytes(b"whatever")
    journal = run()
    assert places(journal) == ["step-00000020", "step-00000060"]
    assert weights(journal, 60) == weights(run("whole"), 60)


@pytest.mark.parametrize("bad", [17, 53])
def test_a_loss_that_is_not_finite_names_its_step(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    real = loop.Stepper.update

    def update(self: Any, batch: Any, step: int) -> torch.Tensor:
        loss = real(self, batch, step)
        return loss * torch.nan if step >= bad else loss

    monkeypatch.setattr(loop.Stepper, "update", update)
    with pytest.raises(RunFailedError, match=rf"^step {bad}: the training loss is nan.*algorithm\.lr"):
        run(pretrain={"checkpoint_every": None, "milestones": (10, 60)})
    assert [r.step for r in fakes.FolderJournal(tmp_path / "run").checkpoints()] == [10]


def test_weights_that_are_not_finite_are_never_kept(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = loop.Stepper.update

    def update(self: Any, batch: Any, step: int) -> torch.Tensor:
        loss = real(self, batch, step)
        if step == 20:
            with torch.no_grad():
                self.model.decoder.bias[0] = torch.inf
        return loss

    monkeypatch.setattr(loop.Stepper, "update", update)
    with pytest.raises(RunFailedError, match="step 20: weights are not finite"):
        run(pretrain={"checkpoint_every": None})
    assert fakes.FolderJournal(tmp_path / "run").checkpoints() == []


def test_divergence_by_a_huge_rate_is_reported(run) -> None:
    with pytest.raises(RunFailedError, match=r"^step \d+: the training loss is (nan|inf)"):
        run(algorithm={"lr": 1e30, "warmup_steps": 0}, pretrain={"checkpoint_every": None})


def test_stop_leaves_a_state_to_go_on_from(run) -> None:
    calls = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == 33

    options = {"checkpoint_every": None}
    journal = run(pretrain=options, stop=stop)
    assert [(r.step, r.milestone) for r in journal.checkpoints()] == [(33, False), (20, True)]
    assert weights(run(pretrain=options), 60) == weights(run("whole", pretrain=options), 60)
    assert places(journal) == ["step-00000020", "step-00000060"]


def test_progress_is_reported_now_and_then(run, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Progress] = []
    run(on_progress=seen.append, pretrain={"checkpoint_every": None})
    rare = len(seen)
    monkeypatch.setattr(progress, "LOOK_SECONDS", 0.0)
    run("often", on_progress=seen.append, pretrain={"checkpoint_every": None})
    often = seen[rare:]
    assert rare < len(often) == 60
    assert [p.step for p in often] == list(range(1, 61))
    assert all(p.steps == 60 and p.loss > 0 for p in often)


def test_the_callers_generator_is_left_alone(run) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    run(pretrain={"steps": 2, "milestones": (2,)})
    assert torch.equal(torch.rand(3), expected)


def test_what_cannot_be_trained_is_refused(run, tmp_path: Path) -> None:
    options = fakes.arguments()
    options["algorithm"] = LookupTableConfig()
    with pytest.raises(ConfigError, match="'lookup_table' does no training"):
        pretrain(journal=fakes.FolderJournal(tmp_path), **options)


def test_load_model_gives_verified_weights(run) -> None:
    journal, config = run(), fakes.arguments()["model"]
    place = checkpoint_directory(journal.directory, 60)
    model = load_model(str(place), config, fakes.Walk())
    assert not model.training
    assert model.decoder.weight is model.token_embedding.weight
    stored = load_file(place / "model.safetensors")
    parameters = dict(model.named_parameters())
    assert stored.keys() == parameters.keys()
    assert all(torch.equal(stored[name], parameters[name]) for name in stored)
    with pytest.raises(CheckpointError, match="weights of another model"):
        load_model(place, config.model_copy(update={"shape": "8/2/1/16"}), fakes.Walk())
    flip(place / "model.safetensors")
    with pytest.raises(CheckpointError, match="sha256 differs"):
        load_model(place, config, fakes.Walk())
    with pytest.raises(CheckpointError, match="step-00000061: there is no such folder"):
        load_model(place.with_name("step-00000061"), config, fakes.Walk())


def test_going_on_in_another_precision_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = fakes.FolderJournal(tmp_path)
    options = fakes.arguments(pretrain={"steps": 4, "milestones": [2, 4]})
    config = options["pretrain"]
    shorter = {**options, "pretrain": config.model_copy(update={"steps": 2, "milestones": (2,)})}
    pretrain(journal=journal, **shorter)
    monkeypatch.setattr(Encoder, "precision", lambda model, device: torch.bfloat16)
    pretrain(journal=journal, **options)
    assert [r.message for r in caplog.records if r.levelname == "WARNING"] == [
        "trained in float32 up to step 2, it goes on in bfloat16, the faster on this machine; set "
        "pretrain.precision to hold a sweep to one of them"
    ]


def test_step_seconds_is_a_time() -> None:
    arguments = fakes.arguments()
    names = ("language", "model", "algorithm", "pretrain")
    assert 1e-5 < step_seconds(*(arguments[name] for name in names), steps=3) < 5.0


def test_few_sentences_are_drawn_to_time_a_step_where_that_is_dear(monkeypatch: pytest.MonkeyPatch) -> None:
    language = CausalLM.load(local_models.random_opt(), keep=4, length=3)
    monkeypatch.setattr(CausalLM, "drawn_at_once", 10)
    drawn, draw = [], CausalLM.sample_at
    monkeypatch.setattr(
        CausalLM, "sample_at", lambda self, n, *, seed: drawn.append(len(n)) or draw(self, n, seed=seed)
    )
    arguments = fakes.arguments(pretrain={"batch_size": 64})
    names = ("model", "algorithm", "pretrain")
    assert step_seconds(language, *(arguments[name] for name in names), steps=3) > 0
    assert drawn == [1, 1, 4, 10]


def test_more_workers_than_sentences_is_refused() -> None:
    arguments = fakes.arguments()
    with pytest.raises(
        ConfigError, match=r"pretrain\.batch_size: 13 sentences do not give each of 14 workers one;"
    ):
        next(
            batches(arguments["language"], arguments["pretrain"], seed=0, first=1, last=1, world=World(0, 14))
        )
