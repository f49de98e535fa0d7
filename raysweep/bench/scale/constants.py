"""Measures what a run costs the parts of a launch that it has once."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from raysweep.bench.engine.bare import run_all
from raysweep.bench.engine.cases import sweep_of
from raysweep.bench.engine.launches import moments
from raysweep.bench.harness import Say
from raysweep.bench.launching import last_words, start_launch, with_engine, write_sweep
from raysweep.bench.scale.model import BOARD, OWN, RAYLET, STORE, Costs, Use
from raysweep.engine.board import pause
from raysweep.errors import RunFailedError
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.processes import Process, Watch, title
from raysweep.sweep import RunLedger, RunSpec, Sweep, load_sweep, make_plan
from raysweep.sweep.missing import missing_now
from raysweep.sweep.run_state import LaunchState

#: The launches whose parts are measured: runs at once, runs, and steps of each.  The first has many short
#: runs, the others few long ones.
LAUNCHES = ((2, 40, 50), (1, 6, 1000), (4, 20, 1000))
QUICK_LAUNCHES = ((2, 8, 50), (1, 3, 200), (4, 8, 200))
#: Steps of the run whose operations on files are counted.
STEPS = 50
#: Runs of the sweep whose view is measured, and those of them that have news in a look.
ROWS, NEWS = 10_000, 1000
#: Calls at a notice board, runs and points in MLflow.
CALLS, TRACKED, POINTS = 5000, 20, 1000

#: Beginnings of the titles of processes, by part.
_TITLES = {"gcs_server": STORE, "raylet": RAYLET, "ray::_Board": BOARD}
#: Events of Python that are operations on files (`sys.addaudithook`).
_OPERATIONS = frozenset(("open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "os.link"))


class Parts(Watch):
    """Samples the processor seconds of the parts of a launch, beside those of all."""

    def __init__(self, pid: int, *, period: float = 0.25) -> None:
        super().__init__(pid, period=period)
        self._launch = pid
        self._names: dict[tuple[int, int], str] = {}
        self._seconds: dict[tuple[int, int], float] = {}
        #: Moments in unix seconds with the seconds of each part up to there.
        self.found: list[tuple[float, dict[str, float]]] = []

    def look(self) -> list[Process]:
        """Take a sample and return the processes that are alive."""
        alive = super().look()
        for process in alive:
            # A process gets its title after it has begun.
            if self._names.get(process.key, "") in ("", "rest"):
                self._names[process.key] = self._part(process)
            self._seconds[process.key] = process.seconds
        sums: dict[str, float] = {}
        for key, name in self._names.items():
            sums[name] = sums.get(name, 0.0) + self._seconds[key]
        self.found.append((self.samples[-1].time, sums))
        return alive

    def _part(self, process: Process) -> str:
        text = title(process.pid)
        for head, part in _TITLES.items():
            if text.startswith(head):
                return part
        # The program guards its own child, which does the work.
        own = self._launch in (process.pid, process.parent)
        return OWN if own and "raysweep.cli" in text else "rest"

    def between(self, first: float, last: float, part: str) -> float:
        """Return the seconds of a part between the samples that are nearest to two moments."""
        at = [min(self.found, key=lambda sample: abs(sample[0] - moment))[1] for moment in (first, last)]
        return at[1].get(part, 0.0) - at[0].get(part, 0.0)


def measured(*, quick: bool = False, say: Say = lambda line: None) -> Costs:
    """Return the costs; it takes some five minutes, or two where it is `quick`."""
    with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as place:
        folder = Path(place)
        found = []
        for k, (slots, runs, steps) in enumerate(QUICK_LAUNCHES if quick else LAUNCHES):
            found.append(_launch(folder / str(k), slots, runs, steps))
            each = ", ".join(f"{part}: {seconds:.2f} s" for part, seconds in found[-1].used.items())
            say(f"{runs} runs of {steps} steps, {slots} at once, in {found[-1].seconds:.1f} s: {each}")
        call = _call(CALLS // 10 if quick else CALLS)
        say(f"a call at the notice board: {1e3 * call:.3f} ms")
        row, news = _view(folder)
        say(f"a look of the view: {1e3 * row:.4f} ms for each run, and {1e3 * news:.4f} ms for one with news")
        run, point = _tracked(folder, TRACKED)
        say(f"MLflow: {1e3 * run:.1f} ms for a run, and {1e3 * point:.4f} ms for a point")
        operations, look = _operations(folder)
        say(f"operations on files: {operations:.0f} of a run, and {look:.0f} of a look at it")
    return Costs(
        parts={
            **{name: fitted(found, name) for name in (OWN, STORE, RAYLET)},
            BOARD: fitted([without_calls(each, call) for each in found], BOARD, at_work=False),
        },
        call=call,
        row=row,
        news=news,
        tracked_run=run,
        tracked_point=point,
        operations=operations,
        look=look,
    )


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A launch after the first run of each lane: its runs, its seconds, and those that each part used."""

    slots: int
    runs: int
    seconds: float
    used: dict[str, float]


def fitted(launches: Sequence[Launched], part: str, *, at_work: bool = True) -> Use:
    """Return what a part uses, by non-negative least squares over launches; without `at_work` that is 0."""
    work = np.array([[each.runs, each.seconds, at_work * each.slots * each.seconds] for each in launches])
    used = np.array([each.used[part] for each in launches])
    run, second, more = nnls(work, used)[0]
    return Use(run=float(run), second=float(second), at_work=float(more))


def without_calls(launched: Launched, call: float) -> Launched:
    """Return a launch with what its board used beside the calls of runs at work."""
    calls = launched.seconds * launched.slots / pause(launched.slots)
    return replace(launched, used={BOARD: max(0.0, launched.used[BOARD] - calls * call)})


def _launch(place: Path, slots: int, runs: int, steps: int) -> Launched:
    """Launch runs on lanes, and return what the parts used after the first run of each lane."""
    place.mkdir()
    log, storage = place / "log", place / "results"
    file = write_sweep(place, with_engine(_sweep(slots, runs, steps), "lanes"))
    process = start_launch(file, storage, log)
    watch = Parts(process.pid)
    watch.start()
    try:
        code = process.wait()
    finally:
        process.kill()
        watch.close()
    if code != 0:
        raise RunFailedError(f"bench scale: a launch ended with code {code}: {last_words(log)}")
    _, done = moments(load_sweep(file, storage=storage))
    first, last = done[slots - 1], done[-1]
    used = {part: watch.between(first, last, part) for part in (OWN, STORE, RAYLET, BOARD)}
    return Launched(slots=slots, runs=len(done) - slots, seconds=last - first, used=used)


def _sweep(slots: int, runs: int, steps: int) -> dict[str, Any]:
    """Return a sweep with so many runs at once on two processors."""
    half = {"per_worker": {"CPU": 0.5}, "evaluate": {"CPU": 0.5}}
    return {**sweep_of(runs, steps), "resources": {**half, "max_concurrent": slots}}


def _look(run: RunLedger, spec: RunSpec) -> None:
    """Look at a run as its trial does while it is trained (`raysweep.engine.trial`)."""
    run.failures()
    missing_now(run, spec)


def _operations(place: Path) -> tuple[float, float]:
    """Return the operations on files of a run from its start to its end, and of a look of its trial.

    The run is trained and evaluated in this process.
    """
    file = write_sweep(place, {**sweep_of(1, STEPS), "name": "files"})
    sweep = load_sweep(file, storage=place / "results")
    [spec] = sweep.runs
    whole = _counted(sweep.storage, lambda: run_all(sweep))
    run = sweep.ledger().run(spec)
    return float(whole), float(_counted(sweep.storage, lambda: _look(run, spec)))


def _counted(folder: Path, work: Callable[[], None]) -> int:
    """Return how often a call opens, lists, makes, renames or removes a file or a folder below a folder."""
    counted, counting = 0, True

    def hook(event: str, given: tuple[Any, ...]) -> None:
        nonlocal counted
        if counting and event in _OPERATIONS and str(given[0]).startswith(str(folder)):
            counted += 1

    # A hook cannot be taken back, so it ends by doing nothing.
    sys.addaudithook(hook)
    work()
    counting = False
    return counted


def _call(calls: int) -> float:
    """Return the processor seconds that a call costs the notice board, in a Ray of this machine."""
    from raysweep.engine.board import Board, News
    from raysweep.engine.cluster import connected

    with connected():
        board = Board()
        board.begin("run")
        watch = Parts(os.getpid())
        watch.look()
        for k in range(calls):
            board.answer(board.send("run", News(state="training", step=k, tokens_per_second=1e4, mfu=0.3)))
        watch.look()
        (_, before), (_, after) = watch.found
        board.close()
    return (after[BOARD] - before[BOARD]) / calls


class _Told:
    """Stands for the notice board: it has news of the first runs in each look."""

    def __init__(self, news: Mapping[str, Any]) -> None:
        self.packed = news

    def read(self, since: int) -> tuple[int, dict[str, Any]]:
        from raysweep.engine.board import News

        return since, {run_id: News.unpacked(packed) for run_id, packed in self.packed.items()}


def _view(place: Path) -> tuple[float, float]:
    """Return the seconds of a look for each run of a sweep, and for each run with news."""
    from raysweep.engine.board import News
    from raysweep.engine.monitor import Monitor
    from raysweep.sweep.told import Told

    sweep = _many(place)
    told, board = Told(), _Told({})

    def observe(state: LaunchState) -> None:
        for _ in told.changes(state.runs):
            pass

    stand_in: Any = board
    monitor = Monitor(sweep, make_plan(sweep), stand_in, observe, slots=NEWS)
    news = News(
        state="training",
        step=10,
        tokens_per_second=1e4,
        mfu=0.3,
        evaluated=5,
        metrics=[EXCESS_LOSS.number(0.5, n=64)],
        shards=(1, 2),
        evaluations={"excess_loss": (0.5, 1.0)},
    ).packed()

    def seconds() -> float:
        taken = []
        for _ in range(5):
            began = time.thread_time()
            monitor.look()
            taken.append(time.thread_time() - began)
        return min(taken)

    without = seconds()
    board.packed = {spec.run_id: news for spec in sweep.runs[:NEWS]}
    return without / ROWS, max(0.0, seconds() - without) / NEWS


def _many(place: Path) -> Sweep:
    """Return a sweep of many runs that have not begun."""
    file = write_sweep(place, {**sweep_of(2, STEPS), "name": "view"})
    sweep = load_sweep(file, storage=place / "results")
    first = sweep.runs[0]
    runs = (replace(first, seeds=first.seeds.of(k), axes={"seed": k}) for k in range(ROWS))
    return replace(sweep, runs=tuple(runs))


def _tracked(place: Path, runs: int) -> tuple[float, float]:
    """Return the processor seconds of a run in MLflow, in its own database, and of each of its points."""
    few, many = (_written(place / f"mlflow-{points}", runs, points) / runs for points in (1, POINTS))
    point = (many - few) / (POINTS - 1)
    return few - point, point


def _written(directory: Path, runs: int, points: int) -> float:
    """Return the processor seconds of writing runs, after one that makes the database."""
    from raysweep.tracking.view import Point, RunView, SweepView
    from raysweep.tracking.writer import MLflowWriter

    def view(k: int) -> RunView:
        return RunView(
            run_id=f"run-{k}",
            identity=str(k),
            name=f"64/4/2/256 seed {k}",
            params={"seed": str(k)},
            config={"seed": k},
            points=tuple(
                Point(key=("loss", "tokens")[n % 2], step=n // 2, time_ms=10**12 + n, value=1.0 / (n + 1))
                for n in range(points)
            ),
            shown={},
            status="FINISHED",
            start_ms=10**12,
            end_ms=10**12 + 10**6,
        )

    directory.mkdir()
    writer = MLflowWriter(SweepView(name="scale"), directory=directory)
    writer.open()
    writer.submit(view(0))
    writer.wait(60)
    time.sleep(1)
    began = time.process_time()
    for k in range(1, runs + 1):
        writer.submit(view(k))
    if not writer.close("FINISHED", timeout=300):
        raise RunFailedError("bench scale: MLflow has not taken the runs within five minutes")
    return time.process_time() - began
