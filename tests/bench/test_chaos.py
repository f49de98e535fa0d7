"""Faults are drawn by a seed, hit their own targets, and every end of a launch gets a verdict."""

from __future__ import annotations

import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from raysweep.bench import chaos
from raysweep.bench.chaos import faults, volume
from raysweep.bench.chaos.faults import (
    BETWEEN,
    RUNNING,
    Deck,
    DriverSignal,
    FileLimit,
    FullDisk,
    Kill,
    LostFile,
    Pause,
    Scene,
    TornFile,
)
from raysweep.bench.chaos.monkey import TARGET_PATIENCE, Ambush, Monkey
from raysweep.bench.chaos.summary import summary, work_of
from raysweep.bench.chaos.verdict import trouble
from raysweep.bench.environment import environment
from raysweep.bench.launching import points, unlike
from raysweep.bench.process import call
from raysweep.bench.record import Applied, Launch, Pass, Record, load, save
from raysweep.bench.table import markdown
from raysweep.cli.app import run
from raysweep.errors import RunFailedError
from raysweep.processes import Process, below, snapshot


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process that calls itself a train worker."""
    code = "import sys, time; print(flush=True); time.sleep(600)"
    process = subprocess.Popen(
        ["ray::RayTrainWorker.work", "-c", code], executable=sys.executable, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def scene_of(process: subprocess.Popen[bytes], directory: Path) -> Scene:
    def processes() -> list[Process]:
        return below([process.pid], snapshot())

    return Scene(directory=directory, random=random.Random(0), driver=process, processes=processes)


def test_a_seed_decides_the_order_of_kinds() -> None:
    first, second, other = (Deck(RUNNING, random.Random(seed)) for seed in (1, 1, 2))
    count = 3 * len(RUNNING)
    drawn = [first.draw().name for _ in range(count)]
    assert drawn == [second.draw().name for _ in range(count)]
    assert drawn != [other.draw().name for _ in range(count)]
    # Each kind comes once before any comes again.
    assert {name: drawn.count(name) for name in drawn} == {kind.name: 3 for kind in RUNNING}
    assert sorted(drawn[: len(RUNNING)]) == sorted(kind.name for kind in RUNNING)


def test_a_kind_without_a_target_comes_again() -> None:
    deck = Deck(BETWEEN, random.Random(0))
    first = deck.draw()
    deck.put_back(first)
    assert [deck.draw() for _ in BETWEEN][-1] is first
    # The last one of a deck must not keep the others away.
    deck.put_back(first)
    assert [deck.draw() for _ in BETWEEN][-1] is first


def test_names_of_kinds_are_unique() -> None:
    names = [kind.name for kind in (*RUNNING, *BETWEEN)]
    assert len(names) == len(set(names)) == 19


def test_an_ambush_waits_for_its_target_and_then_for_a_moment(tmp_path: Path) -> None:
    kind = TornFile(name="torn", pattern="*.json", within=10.0)
    scene = Scene(directory=tmp_path, random=random.Random(0))
    ambush = Ambush(kind, 100.0, random.Random(3))
    moment = 110.0 + random.Random(3).uniform(0.0, 10.0)
    assert not ambush.due(scene, 105.0)
    assert not ambush.hopeless(105.0)
    assert ambush.hopeless(100.1 + TARGET_PATIENCE)
    (tmp_path / "record.json").write_text("{}")
    assert not ambush.due(scene, 110.0)
    assert not ambush.due(scene, moment - 0.01)
    assert ambush.due(scene, moment)
    # A target that was gone at that moment is hit as soon as it is there again.
    ambush.missed()
    assert ambush.due(scene, moment + 1)


@pytest.mark.parametrize(("seconds", "left"), [(3600.0, 4), (0.0, 0)])
def test_no_fault_comes_after_the_time(seconds: float, left: int) -> None:
    draws = random.Random(0)
    monkey = Monkey(
        4,
        seconds=seconds,
        running=Deck(RUNNING, draws),
        between=Deck(BETWEEN, draws),
        draws=draws,
        volume=None,
        log=Path("unused"),
        say=lambda line: None,
    )
    assert monkey.left == left


def test_signals_hit_the_driver(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    kind = DriverSignal(name="SIGTERM", signal=signal.SIGTERM)
    scene = scene_of(sleeper, tmp_path)
    assert kind.ready(scene)
    assert kind.hit(scene) == "driver"
    assert sleeper.wait(30) == -signal.SIGTERM
    assert kind.hit(scene) is None


def test_a_kill_hits_a_process_with_the_title(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    scene = scene_of(sleeper, tmp_path)
    other = Kill(name="other", title=faults.CONTROLLER, within=0.0)
    assert not other.ready(scene)
    assert other.hit(scene) is None
    kind = Kill(name="worker", title=faults.TRAIN_WORKER, within=0.0)
    assert kind.ready(scene)
    assert kind.hit(scene) == "ray::RayTrainWorker.work"
    assert sleeper.wait(30) == -signal.SIGKILL


def test_a_pause_ends(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    kind = Pause(name="pause", title=faults.TRAIN_WORKER, seconds=(0.3, 0.3))
    # The launch is another process: it does not end meanwhile.
    scene = scene_of(sleeper, tmp_path)
    states = []

    def processes() -> list[Process]:
        found = below([sleeper.pid], snapshot())
        states.append(found[0].state)
        return found

    scene = Scene(directory=tmp_path, random=random.Random(0), driver=sleeper, processes=processes)
    assert kind.hit(scene) == "ray::RayTrainWorker.work, 0 s"
    # Before the pause, and after it, it may not have fallen asleep yet.
    assert states[0] in ("R", "S")
    assert states[1:] == ["T"]
    deadline = time.monotonic() + 30
    while (state := snapshot()[sleeper.pid].state) == "T" and time.monotonic() < deadline:
        time.sleep(0.01)
    assert state in ("R", "S")


def test_a_file_size_limit_is_lifted(sleeper: subprocess.Popen[bytes], tmp_path: Path) -> None:
    before = resource.prlimit(sleeper.pid, resource.RLIMIT_FSIZE)
    found = []

    def processes() -> list[Process]:
        found.append(resource.prlimit(sleeper.pid, resource.RLIMIT_FSIZE))
        return below([sleeper.pid], snapshot())

    scene = Scene(directory=tmp_path, random=random.Random(0), driver=sleeper, processes=processes)
    assert FileLimit(seconds=(0.1, 0.1)).hit(scene) == "ray::RayTrainWorker.work, 0 s"
    assert found == [before, (512, before[1])]
    assert resource.prlimit(sleeper.pid, resource.RLIMIT_FSIZE) == before


def test_files_are_torn_and_lost(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "a" / "records" / "one.json"
    path.parent.mkdir(parents=True)
    (path.parent / "empty.json").touch()
    scene = Scene(directory=tmp_path, random=random.Random(0))
    kind = TornFile(name="torn", pattern="runs/*/records/*.json")
    assert not kind.ready(scene)
    assert kind.hit(scene) is None
    path.write_bytes(b"x" * 100)
    assert kind.ready(scene)
    hit = kind.hit(scene)
    kept = path.stat().st_size
    assert hit == f"runs/a/records/one.json, {kept} of 100 bytes kept"
    assert kept < 100
    path.write_bytes(b"x")
    assert LostFile(name="lost", pattern="runs/*/records/*.json").hit(scene) == "runs/a/records/one.json"
    assert not path.exists()


FILLING = """
import sys
from pathlib import Path
from raysweep.bench.chaos import volume

with volume.folder(small_volume=True) as folder:
    volume.fill(folder)
    try:
        (folder / "more").write_bytes(b"x" * 8192)
        sys.exit("there was room")
    except OSError as error:
        print(error.strerror)
    volume.empty(folder)
    (folder / "more").write_bytes(b"x" * 8192)
    size = sum(path.stat().st_size for path in folder.iterdir())
print(size, folder.exists())
"""


@pytest.mark.skipif(not volume.possible(), reason="this system mounts nothing in a namespace")
def test_a_small_file_system_is_full_and_has_room_again() -> None:
    command = [*volume.WRAPPER, sys.executable, "-c", FILLING]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["No space left on device", "8192 False"]


def test_without_a_small_file_system_no_disk_is_filled(tmp_path: Path) -> None:
    scene = Scene(directory=tmp_path, random=random.Random(0))
    assert not FullDisk().ready(scene)
    assert FullDisk().hit(scene) is None
    with volume.folder(small_volume=False) as folder:
        assert folder.is_dir()
    assert not folder.exists()


@pytest.mark.parametrize(
    ("code", "text", "kinds", "found"),
    [
        (0, "", [], ()),
        (-9, "", ["SIGKILL of the driver"], ()),
        (-9, "", ["full disk"], ("exit code -9", "no sentence about the end")),
        (130, "interrupted; everything is there\n", ["SIGINT to the driver"], ()),
        (130, "raysweep: interrupted\n", ["SIGKILL of the raylet"], ("exit code 130",)),
        (4, "not finished: a: launch again\n", ["full disk"], ()),
        (4, "", ["full disk"], ("no sentence about the end",)),
        (3, "failed: a: ValueError\n", ["full disk"], ("exit code 3",)),
        (1, "", ["SIGKILL of the GCS"], ("exit code 1", "no sentence about the end")),
        (1, "Traceback (most recent call last)\nraysweep: internal error\n", [], ("exit code 1", "a trace")),
        (-6, "*** SIGTERM received at\n", ["SIGTERM to the driver"],
         ("exit code -6", "a trace", "no sentence about the end")),
    ],
)  # fmt: skip
def test_the_verdict_on_an_end(code: int, text: str, kinds: list[str], found: tuple[str, ...]) -> None:
    assert trouble(code, text, kinds) == found


def test_points_of_deleted_runs_and_speeds_do_not_count(tmp_path: Path) -> None:
    store = tmp_path / "mlflow.db"
    with sqlite3.connect(store) as connection:
        connection.executescript(
            "create table runs (run_uuid, lifecycle_stage);"
            "create table tags (run_uuid, key, value);"
            "create table metrics (run_uuid, key, step, value);"
            "insert into runs values ('a', 'active'), ('b', 'deleted'), ('c', 'active');"
            "insert into tags values ('a', 'raysweep.run_id', 'one'), ('b', 'raysweep.run_id', 'one');"
            "insert into metrics values ('a', 'loss', 5, 0.5), ('a', 'train/mfu', 5, 0.1),"
            " ('b', 'loss', 5, 0.6), ('c', 'loss', 5, 0.7);"
        )
    connection.close()
    assert points(store) == [("one", "loss", 5, 0.5)]


def test_points_are_compared_one_by_one() -> None:
    wanted = [("one", "loss", 5, 0.5), ("one", "loss", 6, 0.4)]
    assert unlike(list(reversed(wanted)), wanted) == 0
    assert unlike([*wanted, wanted[0]], wanted) == 1
    assert unlike(wanted[:1], wanted) == 1
    assert unlike([wanted[0], ("one", "loss", 6, 0.3)], wanted) == 2


def launch(code: int, kinds: list[str], *bad: str) -> Launch:
    applied = tuple(Applied(kind=kind, hit="driver", after=1.0) for kind in kinds)
    return Launch(code=code, seconds=10.0, leaving=1.5, faults=applied, words="end", trouble=bad)


@pytest.fixture
def passes() -> list[Pass]:
    first = [launch(130, ["SIGINT to the driver"]), launch(1, ["full disk", "full disk"], "a trace")]
    return [
        Pass(engine="nested", launches=(*first, launch(0, [])), equal=True, points_unlike=0),
        Pass(engine="lanes", launches=(launch(0, ["torn shard"]),), equal=False, points_unlike=3),
    ]


@pytest.fixture
def campaign(record: Record, passes: list[Pass]) -> Record:
    cases = (summary(passes, work=work_of(passes, 7)),)
    return record.model_copy(update={"suite": "chaos", "cases": cases, "passes": tuple(passes)})


def test_the_summary_counts_kinds_codes_and_ends(campaign: Record) -> None:
    [case] = campaign.cases
    found = {figure.name: figure.value for figure in case.figures}
    assert found["launches"] == 4
    assert found["launches with faults"] == 3
    assert found["faults"] == 4
    assert found["full disk"] == 2
    assert found["exit code 0"] == 2
    assert found["launches that ended badly"] == 1
    assert found["sweeps with another table than an undisturbed one"] == 1
    assert found["points of MLflow unlike an undisturbed sweep's"] == 3
    assert found["time of all launches"] == pytest.approx(46.0)
    text = markdown(campaign)
    assert "engines lanes, nested, seed 7" in text
    assert "| launches with faults | 3 |" in text
    assert "Ratios" not in text


def test_a_campaign_is_judged_and_kept(
    campaign: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "chaos.json"
    monkeypatch.setattr(chaos, "measure", lambda **given: campaign)
    assert run(["bench", "chaos", "--kills", "4", "--output", str(file)]) == 3
    assert load(file) == campaign
    said = "raysweep: bench chaos: 1 of 2 tidy tables and 3 points of MLflow are unlike those of an undis"
    assert said in capsys.readouterr().err
    good = campaign.model_copy(update={"passes": campaign.passes[:1]})
    monkeypatch.setattr(chaos, "measure", lambda **given: good)
    assert run(["bench", "chaos", "--kills", "4"]) == 0


def test_a_campaign_is_added_to_a_record_of_the_machine(
    campaign: Record, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, both = tmp_path / "first.json", tmp_path / "both.json"
    here = environment(1).model_copy(update={"commit": "aaa"})
    good = campaign.model_copy(update={"passes": campaign.passes[:1], "environment": here})
    save(good, first)
    later = good.model_copy(update={"environment": here.model_copy(update={"commit": "bbb"})})
    monkeypatch.setattr(chaos, "measure", lambda **given: later)
    assert run(["bench", "chaos", "--onto", str(first), "--output", str(both)]) == 0
    found = load(both)
    assert found.passes == good.passes * 2
    figures = {figure.name: figure.value for figure in found.cases[0].figures}
    assert (figures["sweeps"], figures["launches"], figures["faults"]) == (2, 6, 6)
    assert found.cases[0].work.count("seed 7") == 2
    assert "(commit aaa), then" in found.cases[0].work
    assert found.environment.commit == "bbb"
    # Of another machine, or of another suite, before anything is started.
    monkeypatch.setattr(chaos, "measure", lambda **given: pytest.fail("started"))
    other = here.model_copy(update={"cpu": "another"})
    for wrong in (good.model_copy(update={"environment": other}), good.model_copy(update={"suite": "exact"})):
        save(wrong, first)
        assert run(["bench", "chaos", "--onto", str(first)]) == 2
        assert "--onto: this is a record of" in capsys.readouterr().err


def test_the_process_of_a_campaign_that_fails_is_told() -> None:
    with pytest.raises(RunFailedError, match=r"the process of raysweep\.bench\.chaos ended with code 1"):
        call("raysweep.bench.chaos", {"unknown": 1}, threads=1)
