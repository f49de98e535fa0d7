"""The training that a trial asks for, without Ray."""

from __future__ import annotations

import shutil
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import ray.train.torch
import torch

import raysweep as rs
from helpers import tiny_sweeps as tiny
from raysweep.engine import trainer, trial
from raysweep.engine.board import News
from raysweep.errors import RunFailedError
from raysweep.sweep.cancel import cancel_runs
from raysweep.sweep.keeping import Keep, discard, standing
from raysweep.sweep.records import RecordName, checkpoint_name, parsed_names
from raysweep.training import World
from raysweep.training.journal import survey

COSINE = tiny.HEAD.replace("lr: 1e-3", "lr: 1e-3, schedule: cosine") + (
    "evaluate: {excess_loss: {sentences: 64}}\n"
)


def test_a_lost_milestone_is_trained_again_with_the_rates_of_the_whole_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text("axes: {seed: [0]}\n" + COSINE)
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    for step in spec.milestones:
        tiny.checkpoint(run, step)
    shutil.rmtree(run.checkpoint_directory(50))
    found: list[Any] = []

    def training(self: Any, job: Any) -> Any:
        found.append(job)
        return SimpleNamespace(start=lambda: None)

    monkeypatch.setattr(trial._Trial, "_training_of", training)
    # What stands for weights here is none, and a look at the files would tell.
    monkeypatch.setattr(import_module("raysweep.sweep.missing"), "verify", lambda *_: None)
    services: Any = SimpleNamespace(shared=False, parts={})
    trial._Trial(spec, run, sweep, services, tells=False)._start_training()
    [job] = found
    assert job.spec.pretrain.milestones == (50,)
    assert job.spec.pretrain.steps == 100
    # The later checkpoint is no way to it.
    assert survey(job.run, job.spec.pretrain.milestones) == (None, False)


@pytest.mark.parametrize(
    ("resources", "micro_batch", "rows"),
    [
        ("{workers: 1}", None, 4),
        ("{workers: 2}", None, 2),
        ("{workers: 2}", 3, 1),
        ("{workers: 8}", 6, 1),
        # Of workers that share weights, none has fewer sentences than there are parts.
        ("{workers: 2, sharding: full}", 3, 2),
    ],
)
def test_a_memory_that_did_not_suffice_halves_what_a_worker_holds(
    resources: str, micro_batch: int | None, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(
        f"{tiny.HEAD}evaluate: {{excess_loss: {{sentences: 64}}}}\nresources: {resources}\n"
    )
    overrides = [] if micro_batch is None else [f"pretrain.micro_batch={micro_batch}"]
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", overrides, storage=tmp_path / "results")
    [spec] = sweep.runs
    found: list[Any] = []
    monkeypatch.setattr(
        trial._Trial,
        "_training_of",
        lambda self, job: found.append(job) or SimpleNamespace(start=lambda: None),
    )
    services: Any = SimpleNamespace(shared=False, parts={spec.run_id: 2})
    trial._Trial(spec, sweep.ledger().run(spec), sweep, services, tells=False)._start_training()
    assert found[0].spec.pretrain.micro_batch == rows


@pytest.mark.parametrize(("keep", "left"), [("milestones", [20, 50, 100]), ("last", [100])])
def test_training_goes_on_from_its_newest_state_after_a_milestone(
    keep: Keep, left: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The workers of a job that has passed milestones are started again, with the same job."""
    (tmp_path / "tiny.yaml").write_text(
        tiny.HEAD.replace("steps: 100", "checkpoint_every: 20, steps: 100").replace("[50,", "[20, 50,")
        + f"keep: {keep}\nevaluate: {{excess_loss: {{sentences: 64}}}}\n"
    )
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    found: list[Any] = []
    monkeypatch.setattr(
        trial._Trial,
        "_training_of",
        lambda self, job: found.append(job) or SimpleNamespace(start=lambda: None),
    )
    services: Any = SimpleNamespace(shared=False, parts={})
    trial._Trial(spec, run, sweep, services, tells=False)._start_training()
    [job] = found
    monkeypatch.setattr(ray.train.torch, "get_device", lambda: torch.device("cpu"))
    steps: list[int] = []

    class Line:
        """Asks a worker to stop after so many steps."""

        stop_after = 0

        def __init__(self, *_: Any) -> None: ...

        def __call__(self) -> bool:
            steps.append(1)
            return len(steps) == self.stop_after

        def say(self, news: News) -> None: ...

        def close(self) -> None: ...

    monkeypatch.setattr(trainer, "Line", Line)

    def work(stop_after: int) -> int:
        """Train on a worker, measure the milestones that it has reached, and return its steps."""
        steps.clear()
        Line.stop_after = stop_after
        trainer.train(job, World(), cast(Any, None), threads=1)
        trained = len(steps)
        for step in run.steps_on_disk() & set(spec.milestones):
            for evaluation in spec.evaluations.values():
                run.record_evaluation(step, evaluation, (), seconds=1.0)
        discard(run, standing(run, spec, keep, {}))
        return trained

    assert work(70) == 71  # the line is asked once more when training has ended
    assert max(run.steps_on_disk()) == 70
    assert work(0) == 31
    assert sorted(run.steps_on_disk()) == left
    assert work(0) == 1


def test_a_cancelled_run_is_left_with_its_training_and_evaluations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training goes on until somebody asks it to stop, and evaluations have no end."""
    (tmp_path / "tiny.yaml").write_text(
        "axes: {seed: [0]}\n" + tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n"
    )
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    said: list[str] = []
    alive = [True]

    def stop(run_id: str) -> None:
        said.append("stop")
        alive[0] = False

    board = SimpleNamespace(
        begin=lambda _: None,
        post=lambda _, news: said.append(news.state),
        leave=lambda _: None,
        request_stop=stop,
        at_work=lambda: 1,
    )
    training = SimpleNamespace(start=lambda: None, is_alive=lambda: alive[0], join=lambda _: None, error=None)

    class Evaluations:
        submitted = frozenset[int]()

        def __len__(self) -> int:
            return 1

        def submit(self, step: int) -> None:
            raise AssertionError

        def advance(self, timeout: float) -> None:
            cancel_runs(sweep, [spec])

        def complete(self, step: int) -> bool:
            return False

        def cancel(self) -> None:
            said.append("dropped")

    monkeypatch.setattr(trial, "Evaluations", lambda *_: Evaluations())
    monkeypatch.setattr(trial._Trial, "_training_of", lambda *_: training)
    services: Any = SimpleNamespace(shared=False, parts={}, board=board, scratch=tmp_path / "scratch")
    for _ in range(2):
        with pytest.raises(RunFailedError, match="cancelled from"):
            trial._Trial(spec, run, sweep, services, tells=False).run()
    # The second trial finds it cancelled, and begins nothing.
    assert said == ["dropped", "stop", "cancelled", "dropped", "cancelled"]
    assert [failure.cancelled for failure in run.failures()] == [True]


@pytest.mark.parametrize("there", [False, True], ids=["lost", "replaced"])
def test_a_checkpoint_that_counts_again_is_evaluated(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its record has stayed, and where it is replaced its folder, too, so no name changes."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    tiny.finish(run, spec)
    for record in run.record_names():
        if record[1].type == "evaluation":
            run.record_path(record[0]).unlink()
    last = spec.milestones[-1]
    aside = run.checkpoint_directory(last).rename(tmp_path / "aside")
    if there:
        run.checkpoint_directory(last).mkdir()
        monkeypatch.setattr(
            trial,
            "missing_now",
            lambda *_: SimpleNamespace(checkpoints=[last] if aside.exists() else []),
        )
    submitted: list[int] = []

    class Evaluations:
        def __init__(self) -> None:
            self.submitted = set[int]()

        def __len__(self) -> int:
            return 0

        def submit(self, step: int) -> None:
            self.submitted.add(step)
            submitted.append(step)

        def advance(self, timeout: float) -> None:
            pass

        def complete(self, step: int) -> bool:
            return False

    def join(seconds: float) -> None:
        # Training reaches the milestone some looks later.
        joined.append(list(submitted))
        if len(joined) == 8:
            aside.replace(run.checkpoint_directory(last))
        now[0] += seconds

    now, joined = [0.0], list[list[int]]()
    monkeypatch.setattr(trial.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(trial, "Evaluations", lambda *_: Evaluations())
    services: Any = SimpleNamespace(shared=False, parts={})
    watched = trial._Trial(spec, run, sweep, services, tells=False)
    watched._training = SimpleNamespace(is_alive=lambda: len(joined) < 16, join=join, error=None)  # type: ignore[assignment]
    watched._follow()
    assert joined[7] == list(spec.milestones[:-1])
    assert joined[-1] == list(spec.milestones), "before training has ended"


def test_a_long_training_is_looked_at_less_often_and_no_milestone_waits_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Milestones after 4 and 600 s; a training that goes on for 20 s more, and evaluations for an hour."""
    (tmp_path / "tiny.yaml").write_text(
        "axes: {seed: [0]}\n" + tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n"
    )
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    [spec] = sweep.runs
    run = sweep.ledger().run(spec)
    now, looks, reads, submitted = [0.0], list[float](), list[float](), dict[int, float]()
    ready = dict(zip(spec.milestones, (4.0, 600.0), strict=True))

    def names() -> list[tuple[str, RecordName]]:
        looks.append(now[0])
        return parsed_names(checkpoint_name(step) for step, moment in ready.items() if now[0] >= moment)

    def missing(*_: Any) -> Any:
        reads.append(now[0])
        return SimpleNamespace(checkpoints=[step for step, moment in ready.items() if now[0] < moment])

    class Evaluations:
        def __init__(self) -> None:
            self.submitted = submitted

        def __len__(self) -> int:
            return int(bool(submitted) and now[0] < 4000.0)

        def submit(self, step: int) -> None:
            submitted[step] = now[0]

        def advance(self, timeout: float) -> None:
            now[0] += timeout if len(self) else 0.0

        def complete(self, step: int) -> bool:
            return False

    def join(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(trial.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(trial, "missing_now", missing)
    monkeypatch.setattr(run, "record_names", names)
    monkeypatch.setattr(trial, "Evaluations", lambda *_: Evaluations())
    posted: list[News] = []
    board = SimpleNamespace(post=lambda _, news: posted.append(news))
    services: Any = SimpleNamespace(shared=False, parts={}, board=board)
    watched = trial._Trial(spec, run, sweep, services, tells=False)
    watched._training = SimpleNamespace(is_alive=lambda: now[0] < 620.0, join=join, error=None)  # type: ignore[assignment]
    watched._follow()
    first, last = submitted.values()
    assert 4.0 <= first <= 4.5
    assert 600.0 <= last <= 605.25
    # As soon as training has ended, all that it has left is known.
    assert any(620.0 <= moment <= 620.25 for moment in reads)
    # Records are read at first, with each new one, and at the end of training.
    assert len(reads) == 4
    # Four a second in the first seconds, and one each five seconds later: 16,000 would be four a second.
    assert len([moment for moment in looks if moment <= 4.0]) >= 16
    assert len(looks) < 1200
    assert 4000.0 <= now[0] <= 4000.5
    # All runs have one board, and it knows already.
    assert posted == [News(state="evaluating")]


@pytest.mark.parametrize("tells", [False, True])
def test_milestones_are_reported_where_someone_reads_them(
    tells: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tune keeps some kilobytes of every metric of every trial."""
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    tiny.finish(run, spec)
    told: list[dict[str, Any]] = []
    monkeypatch.setattr(trial.tune, "report", told.append)
    services: Any = SimpleNamespace(shared=False, parts={})
    one = trial._Trial(spec, run, sweep, services, tells=tells)
    one._evaluations = SimpleNamespace(complete=lambda step: True)  # type: ignore[assignment]
    one._report()
    assert one._reported == set(spec.milestones)
    assert [(each["run_id"], each["step"]) for each in told] == [
        (spec.run_id, step) for step in (spec.milestones if tells else ())
    ]
    assert all("count" in each for each in told)


@pytest.mark.parametrize(
    ("search", "strict", "tells"),
    [
        (None, False, False),
        (SimpleNamespace(scheduler=None), False, False),
        (None, True, True),
        (SimpleNamespace(scheduler="asha"), False, True),
    ],
    ids=["launch", "search", "Tuner", "scheduler"],
)
def test_a_launch_without_a_scheduler_reports_nothing(
    search: Any, strict: bool, tells: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tiny.yaml").write_text(tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\n")
    sweep = replace(rs.load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results"), search=search)
    [spec], found = sweep.runs, []

    def made(*_: object, tells: bool) -> Any:
        found.append(tells)
        return SimpleNamespace(run=lambda: None)

    monkeypatch.setattr(trial, "resolve", lambda *_: spec)
    monkeypatch.setattr(trial, "_Trial", made)
    services: Any = SimpleNamespace()
    trial.run_trial({"run": spec.run_id}, sweep=sweep, services=services, strict=strict)
    assert found == [tells]
