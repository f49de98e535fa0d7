"""The time that a sweep took: sums over records and launches against numbers that are put in."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.sweep import Ledger, Sweep, load_sweep
from raysweep.sweep.provenance import add_phases, all_launches, save_launch
from raysweep.sweep.spent import phase, spent


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    (tmp_path / "tiny.yaml").write_text(
        tiny.HEAD + "evaluate: {excess_loss: {sentences: 64}}\naxes: {seed: [0, 1]}\n"
    )
    return load_sweep(tmp_path / "tiny.yaml", storage=tmp_path / "results")


def work(sweep: Sweep, *, counted: bool = True) -> None:
    """Record 10 s of training and 2 × 3 s of measuring of each run, four fifths of it on a processor."""
    for spec in sweep.runs:
        run = sweep.ledger().run(spec)
        for step, seconds in ((50, 4.0), (100, 10.0)):
            record = tiny.checkpoint(run, step, seconds=seconds)
            if counted:
                path = run.record_path(f"checkpoint-{step:08d}.json")
                path.write_text(
                    record.model_copy(update={"train_cpu_seconds": 0.8 * seconds}).model_dump_json()
                )
            [evaluation] = spec.evaluations.values()
            used = 2.4 if counted else None
            run.record_evaluation(step, evaluation, tiny.measured(), seconds=3.0, cpu_seconds=used)


def launched(sweep: Sweep, time: float, phases: list[dict[str, Any]] | None) -> None:
    facts = {"time": time, "pid": os.getpid(), "host": socket.gethostname(), "cpus": 2}
    save_launch(sweep.directory, facts if phases is None else {**facts, "phases": phases})


PHASES = [
    phase("start", 5.0, 7.0),
    phase("work", 20.0, 30.0),
    phase("end", 1.0, 2.0),
    phase("report", 4.0, 4.0),
]


def test_the_parts_add_up_to_the_whole(sweep: Sweep) -> None:
    work(sweep)
    launched(sweep, 1e9, PHASES)
    found = spent(sweep.directory)
    rows = [(part.name, part.number, part.seconds, part.cpu_seconds) for part in found.parts]
    assert rows == [
        ("training", 2, 20.0, pytest.approx(16.0)),
        ("excess_loss", 4, 12.0, pytest.approx(9.6)),
        # The work's processor time, 30 s, less the 25.6 s of training and measuring.
        ("Ray, loading and the rest", 1, None, pytest.approx(4.4)),
        ("start: plan, languages, Ray", 1, 5.0, 7.0),
        ("end: Ray, MLflow", 1, 1.0, 2.0),
        ("verdicts and report", 1, 4.0, 4.0),
    ]
    assert (found.seconds, found.cpu_seconds, found.launches) == (30.0, 43.0, (1, 1))
    assert found.busy == pytest.approx(43 / 60)
    assert sum(part.cpu_seconds or 0.0 for part in found.parts) == pytest.approx(found.cpu_seconds)


def test_what_is_not_known_is_not_made_up(sweep: Sweep) -> None:
    work(sweep, counted=False)
    launched(sweep, 1e9, None)
    launched(sweep, 2e9, PHASES)
    found = spent(sweep.directory)
    assert [(part.name, part.cpu_seconds) for part in found.parts[:2]] == [
        ("training", None),
        ("excess_loss", None),
    ]
    assert "Ray, loading and the rest" not in [part.name for part in found.parts]
    assert found.launches == (1, 2)


def test_a_run_that_is_no_longer_in_the_file_counts(sweep: Sweep) -> None:
    work(sweep)
    other = sweep.ledger().open("gone-0123456789")
    other.record_path("").mkdir(parents=True)
    tiny.checkpoint(other, 10, seconds=7.0)
    [training] = [part for part in spent(sweep.directory).parts if part.name == "training"]
    assert (training.number, training.seconds, training.cpu_seconds) == (3, 27.0, None)


def test_nothing_was_done(tmp_path: Path) -> None:
    found = spent(Ledger(tmp_path / "none").directory)
    assert (found.parts, found.cpu_seconds, found.busy, found.launches) == ((), None, None, (0, 0))


def test_phases_are_added_to_the_own_launch_alone(sweep: Sweep) -> None:
    sweep.directory.mkdir(parents=True)
    launched(sweep, 1e9, PHASES[:1])
    add_phases(sweep.directory, PHASES[1:])
    assert [facts["phases"] for facts in all_launches(sweep.directory)] == [PHASES]
    save_launch(sweep.directory, {"time": 2e9, "pid": os.getpid() + 1, "host": socket.gethostname()})
    add_phases(sweep.directory, PHASES)
    assert "phases" not in all_launches(sweep.directory)[-1]
