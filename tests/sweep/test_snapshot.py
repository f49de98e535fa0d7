"""The snapshot of many runs: whatever the index holds, it says what the records say."""

from __future__ import annotations

import json
import pickle
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers import tiny_sweeps as tiny
from raysweep.evaluation.metric import Metric
from raysweep.sweep import RunLedger, Sweep, make_plan
from raysweep.sweep import snapshot as module
from raysweep.sweep.identity import evaluation_identity
from raysweep.sweep.index import INDEX
from raysweep.sweep.missing import missing
from raysweep.sweep.records import evaluation_name
from raysweep.sweep.run_state import run_states
from raysweep.sweep.snapshot import Metrics, Snapshot
from raysweep.sweep.stored import save_sweep
from raysweep.sweep.survey import survey, survey_run
from raysweep.sweep.tidy import cells, tidy, typed
from raysweep.training.checkpoint import CheckpointRecord, CurvePoint, FileDigest


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single record is worth an index, however young it is."""
    monkeypatch.setattr(module, "MANY", 1)
    monkeypatch.setattr(module, "SETTLED", -60.0)


@pytest.fixture
def sweep(load: Any) -> Sweep:
    found: Sweep = load()
    rng = random.Random(5)
    for spec in found.runs:
        if rng.random() < 0.8:
            fill(found.ledger().run(spec), spec, rng)
    return found


def fill(run: RunLedger, spec: Any, rng: random.Random) -> None:
    """Write some of the records of a run."""
    for step in spec.milestones:
        if rng.random() < 0.8:
            curve = tuple(CurvePoint(step=step - k, loss=rng.random(), time_ms=step - k) for k in (1, 0))
            files = {"model.safetensors": FileDigest(sha256="0" * 64, size=rng.randrange(100))}
            run.commit(
                CheckpointRecord(
                    step=step, milestone=True, files=files, curve=curve, time=9.5, train_seconds=rng.random()
                )
            )
            run.checkpoint_directory(step).mkdir(parents=True)
        for evaluation in spec.evaluations.values():
            if rng.random() < 0.8:
                odd = Metric(
                    name="odd/x", quantity="odd/{task}", of={"task": "x"}, unit="nats", value=float(step),
                    standard_error=rng.choice([None, 0.1]), n=3, reservations=rng.choice([(), ("a", "b")]),
                )  # fmt: skip
                run.record_evaluation(
                    step, evaluation, [*tiny.measured(rng.random()), odd], seconds=rng.random()
                )
    if rng.random() < 0.3:
        run.record_failure("it broke", error="RuntimeError", step=1)


def slow(sweep: Sweep) -> list[dict[str, Any]]:
    """Return the numbers of the tidy table by the ledger's own readers, one record after another."""
    rows: list[dict[str, Any]] = []
    for spec in sweep.runs:
        run = sweep.ledger().open(spec.run_id)
        for step in spec.milestones:
            for evaluation in spec.evaluations.values():
                record = run.evaluation(step, evaluation)
                for metric in () if record is None else record.metrics:
                    rows.append({"run_id": spec.run_id, "step": step, **cells(metric)})
    return sorted(rows, key=lambda row: (row["run_id"], row["step"], row["metric"]))


def told(sweep: Sweep) -> tuple[str, Any, Any]:
    """Return the table, the states and the plan of a sweep."""
    states = [vars(state) | {"metrics": list(state.metrics)} for state in run_states(sweep)]
    return tidy(sweep.ledger(), sweep).to_csv(), states, make_plan(sweep).to_dict()


def same_as_the_ledger(sweep: Sweep) -> None:
    found = tidy(sweep.ledger(), sweep)
    wanted = pd.DataFrame(slow(sweep)).drop(columns=["live", "name"], errors="ignore")
    pd.testing.assert_frame_equal(found[list(wanted)], typed(wanted))
    snapshot = Snapshot.of(sweep)
    for spec in sweep.runs:
        run = sweep.ledger().open(spec.run_id)
        records = run.checkpoint_records()
        rows = snapshot.checkpoints(spec.run_id)
        assert [snapshot.head(row)["train_seconds"] for row in rows] == [r.train_seconds for r in records]
        points = [CurvePoint(**point) for row in rows for point in snapshot.curve(row)]
        assert points == [point for record in records for point in record.curve]
        sizes = [sum(file.size for file in record.files.values()) for record in records]
        assert [snapshot.head(row)["bytes"] for row in rows] == sizes


def test_the_index_changes_nothing(sweep: Sweep) -> None:
    index = sweep.directory / INDEX
    without = told(sweep)
    assert index.is_file()
    assert told(sweep) == without
    same_as_the_ledger(sweep)
    index.unlink()
    assert told(sweep) == without


def test_with_an_index_no_record_is_read(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = tidy(sweep.ledger(), sweep)
    monkeypatch.setattr(RunLedger, "read", lambda *_: pytest.fail("a record was read"))
    pd.testing.assert_frame_equal(tidy(sweep.ledger(), sweep), wanted)


def test_a_record_under_the_name_of_another_one_counts_for_nothing(sweep: Sweep) -> None:
    for spec in sweep.runs:
        tiny.finish(sweep.ledger().run(spec), spec)
    spec = sweep.runs[0]
    run = sweep.ledger().run(spec)
    snapshot = Snapshot.of(sweep)
    assert all(snapshot.sound(other.run_id) for other in sweep.runs)
    first, last = spec.milestones
    [evaluation] = spec.evaluations.values()
    names = [evaluation_name(k, evaluation.key, evaluation_identity(evaluation)) for k in (first, last)]
    shutil.copy(run.record_path(names[0]), run.record_path(names[1]))
    for _ in ("read anew", "from the index"):
        snapshot = Snapshot.of(sweep)
        assert [snapshot.sound(other.run_id) for other in sweep.runs] == [False] + [True] * (
            len(sweep.runs) - 1
        )
        held = survey(sweep.ledger(), sweep.runs, verify=True, snapshot=snapshot)
        assert held[spec.run_id] == survey_run(run)
        assert missing(spec, held[spec.run_id]).evaluations == ((last, evaluation.key),)
        others = [missing(other, held[other.run_id]) for other in sweep.runs[1:]]
        assert all(lacks.finished for lacks in others)


@pytest.mark.parametrize("seed", range(8))
def test_records_that_come_change_and_go(sweep: Sweep, seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(4):
        told(sweep)
        for spec in rng.sample(sweep.runs, 2):
            run = sweep.ledger().run(spec)
            paths = [run.record_path(name) for name, _ in run.record_names()]
            match rng.randrange(4):
                case 0 if paths:
                    rng.choice(paths).unlink()
                case 1 if paths:
                    text = rng.choice(paths)
                    changed = text.read_text().replace('"time": 9.5', '"time": 8.5').replace("0.1", "0.2")
                    text.write_text(changed)
                case 2:
                    shutil.rmtree(run.directory)
                case _:
                    run.retry()
        same_as_the_ledger(sweep)


def of_evaluation(sweep: Sweep) -> Path:
    return next(sweep.directory.glob("runs/*/records/evaluation-*"))


def test_a_record_of_the_same_size_that_has_changed_is_read(sweep: Sweep) -> None:
    told(sweep)
    path = of_evaluation(sweep)
    record = json.loads(path.read_bytes())
    before = record["metrics"][-1]["n"]
    path.write_text(path.read_text().replace(f'"n": {before}', f'"n": {before + 1}'))
    assert told(sweep)[0].count(f",{before + 1},") > 0
    same_as_the_ledger(sweep)


def test_a_damaged_record_is_quarantined(sweep: Sweep) -> None:
    told(sweep)
    path = of_evaluation(sweep)
    path.write_bytes(path.read_bytes()[:-20])
    same_as_the_ledger(sweep)
    assert not path.exists()
    assert list(path.parent.parent.glob("quarantine/*"))


@pytest.mark.parametrize(
    "how", [lambda c: c[:-9], lambda c: c[:50], lambda c: c[:99] + b"x" + c[100:], lambda c: b""]
)
def test_a_torn_index_counts_as_absent(sweep: Sweep, how: Callable[[bytes], bytes]) -> None:
    wanted = told(sweep)
    index = sweep.directory / INDEX
    whole = index.read_bytes()
    index.write_bytes(how(whole))
    assert told(sweep) == wanted
    assert len(index.read_bytes()) == len(whole)


def test_the_index_of_another_sweep_counts_for_nothing(sweep: Sweep, tmp_path: Path) -> None:
    told(sweep)
    other = tmp_path / "other"
    shutil.copytree(sweep.directory, other / sweep.name)
    path = of_evaluation(sweep)
    path.write_text(path.read_text().replace('"n": 3', '"n": 7'))
    wanted = told(sweep)
    shutil.copy(other / sweep.name / INDEX, sweep.directory / INDEX)
    assert told(sweep) == wanted


def test_an_index_of_another_version_is_made_anew(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = told(sweep)
    before = (sweep.directory / INDEX).read_bytes()
    monkeypatch.setattr("raysweep.sweep.index._VERSION", "later")
    assert told(sweep) == wanted
    assert (sweep.directory / INDEX).read_bytes() != before


def test_young_records_and_few_are_not_indexed(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SETTLED", 3600.0)
    told(sweep)
    assert not (sweep.directory / INDEX).exists()
    monkeypatch.setattr(module, "SETTLED", -60.0)
    monkeypatch.setattr(module, "MANY", 100_000)
    told(sweep)
    assert not (sweep.directory / INDEX).exists()


def test_the_index_keeps_runs_that_were_not_asked_for(sweep: Sweep, monkeypatch: pytest.MonkeyPatch) -> None:
    told(sweep)
    held = [spec.run_id for spec in sweep.runs if spec.run_id in Snapshot.of(sweep)]
    of_first = next((sweep.directory / "runs" / held[0] / "records").glob("*.json"))
    of_first.write_text(of_first.read_text() + "\n")
    Snapshot(sweep.ledger(), held[:1])
    monkeypatch.setattr(RunLedger, "read", lambda *_: pytest.fail("a record was read"))
    Snapshot.of(sweep)


def test_readers_of_an_index_import_neither_pandas_nor_numba(sweep: Sweep) -> None:
    save_sweep(sweep)
    told(sweep)
    assert (sweep.directory / INDEX).is_file()
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from raysweep import registry\n"
        "from raysweep.sweep.planner import make_plan\n"
        "from raysweep.sweep.run_state import run_states\n"
        "from raysweep.sweep.stored import load_stored\n"
        "sys.path.insert(0, sys.argv[2])\n"
        "from helpers.tiny_sweeps import CountedConfig\n"
        "registry.evaluations.register('counted', CountedConfig)\n"
        "sweep = load_stored(Path(sys.argv[1]))\n"
        "for _ in range(2):\n"
        "    assert any(state.metrics for state in run_states(sweep))\n"
        "make_plan(sweep)\n"
        "print({'pandas', 'numba', 'matplotlib'} & set(sys.modules))\n"
    )
    line = [sys.executable, "-c", program, str(sweep.directory), str(Path(__file__).parents[1])]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "set()\n"), done.stderr


def test_the_speed_of_a_run_is_that_of_all_its_points(sweep: Sweep) -> None:
    run = sweep.ledger().run(sweep.runs[0])
    points = [
        CurvePoint(step=k, loss=1.0, time_ms=k, tokens_per_second=speed, mfu=None)
        for k, speed in enumerate([None, 7.0, 1e300 / 3])
    ]
    for step, curve in ((8001, ()), (8002, points[:1]), (8003, points[:2]), (8004, points[:3])):
        record = CheckpointRecord(
            step=step, milestone=True, files={}, curve=tuple(curve), time=9.5, train_seconds=1.0
        )
        run.commit(record)
    for _ in range(2):
        snapshot = Snapshot.of(sweep)
        rows = snapshot.checkpoints(run.run_id)[-4:]
        speeds = [snapshot.speed([row]) for row in rows]
        # A thousand words at 7 a second and a thousand in no time: two thousand at 14.
        fast = (pytest.approx(14.0), None)
        assert speeds == [(None, None), (None, None), (7.0, None), fast]
        assert snapshot.speed(rows) == (pytest.approx(3 / (2 / 7)), None)
        assert snapshot.speed([]) == (None, None)


def test_metrics_go_to_another_process_alone(sweep: Sweep) -> None:
    snapshot = Snapshot.of(sweep)
    rows = [
        row
        for spec in sweep.runs
        for step in spec.milestones
        for evaluation in spec.evaluations.values()
        if (row := snapshot.evaluation(spec.run_id, step, evaluation)) is not None
    ]
    metrics = Metrics(snapshot, rows[:2])
    assert pickle.loads(pickle.dumps(metrics)) == list(metrics)  # noqa: S301
    assert len(metrics) == 2 * len(snapshot.metrics(rows[0]))
