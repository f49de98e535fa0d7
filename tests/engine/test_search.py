"""A search as it goes on from what the ledger holds, without Ray: samples, stops, and what a kill leaves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from helpers.json_output import check, documented
from helpers.real_sweeps import changed, write
from raysweep import load_sweep
from raysweep.engine.search import Halving, Samples, Searching
from raysweep.errors import ConfigError
from raysweep.evaluation.metric import Metric
from raysweep.sweep import RunSpec, Sweep, make_plan
from raysweep.sweep.run_state import run_states
from raysweep.sweep.samples import trials
from raysweep.sweep.starts import unfinished
from raysweep.sweep.stored import load_stored


class FakeBoard:
    """A board on which nobody reads."""

    def post(self, run_id: str, news: Any) -> None:
        pass


BOARD: Any = FakeBoard()


@pytest.fixture
def load(tmp_path: Path) -> Callable[..., Sweep]:
    """Return a function that loads a search of learning rates as a new launch would."""

    def load_search(*overrides: str, **search: Any) -> Sweep:
        space = {"algorithm.lr": {"loguniform": [1e-4, 1e-2]}}
        data = changed(search={"metric": "excess_loss", "samples": 4, "space": space} | search)
        del data["axes"]
        data["evaluate"] = {"excess_loss": {"sentences": 8}}
        file = write(tmp_path / "tiny.yaml", data)
        return load_sweep(file, overrides, storage=tmp_path / "results")

    return load_search


def measure(sweep: Sweep, spec: RunSpec, step: int, value: float) -> None:
    """Record what training to a step and measuring there leaves."""
    run = sweep.ledger().run(spec)
    tiny.checkpoint(run, step)
    metric = Metric(name="excess_loss", value=value, standard_error=0.1, n=3, unit="nats")
    for evaluation in spec.evaluations.values():
        run.record_evaluation(step, evaluation, [metric], seconds=1.0)


def loss(spec: RunSpec) -> float:
    """Return the loss of a run: the nearer its rate is to 3e-3, the less."""
    return abs(spec.algorithm.lr - 3e-3)


def finish(sweep: Sweep, run_id: str) -> None:
    spec = sweep.run(run_id)
    for step in spec.milestones:
        measure(sweep, spec, step, loss(spec))


class KilledError(Exception):
    """The launch ends here."""


def go_on(sweep: Sweep, most: int = 1000) -> Sweep:
    """Work on a sweep as a launch with one slot does, and return it; after `most` runs it is killed."""
    searching = Searching(sweep, sweep)
    suggester = Samples(searching, unfinished(sweep), BOARD)
    worked = 0
    while isinstance(found := suggester.suggest(f"t{worked}"), dict):
        if worked == most:
            raise KilledError
        finish(searching.sweep, found["run"])
        suggester.on_trial_complete(f"t{worked}")
        worked += 1
    if searching.error is not None:
        raise searching.error
    return searching.sweep


def ids(sweep: Sweep) -> list[str]:
    return [spec.run_id for spec in sweep.runs]


@pytest.mark.parametrize("algorithm", ["random", "optuna"])
def test_a_search_that_is_killed_often_is_the_one_that_was_not(
    load: Callable[..., Sweep], tmp_path: Path, algorithm: str
) -> None:
    undisturbed = go_on(load(samples=14, algorithm=algorithm))
    assert len(undisturbed.samples) == 14
    (tmp_path / "results").rename(tmp_path / "undisturbed")
    for most in (3, 8, 0, 1, 1):
        with pytest.raises(KilledError):
            go_on(load(samples=14, algorithm=algorithm), most)
    again = go_on(load(samples=14, algorithm=algorithm))
    assert again.samples == undisturbed.samples
    assert [trial.to_dict() for trial in trials(again)] == [t.to_dict() for t in trials(undisturbed)]
    # Nothing is left to do, and more samples add to these.
    assert make_plan(load(samples=14, algorithm=algorithm)).finished
    more = load(samples=17, algorithm=algorithm)
    assert ids(more)[:14] == ids(again)
    assert len(go_on(more).samples) == 17
    if algorithm == "optuna":
        assert len(load_stored(more.directory).samples) == 17


def test_another_question_begins_anew_and_finds_its_samples_again(load: Callable[..., Sweep]) -> None:
    first = go_on(load(samples=12, algorithm="optuna"))
    for other in ("search.seed=1", "pretrain.batch_size=8", "search.mode=max"):
        sweep = load(other, samples=12, algorithm="optuna")
        assert (len(sweep.samples), sweep.to_choose) == (10, 2), other
    # Later milestones and more samples do not change the question.
    longer = load("pretrain.steps=90", "pretrain.milestones=[20, 60, 90]", samples=13, algorithm="optuna")
    assert longer.samples == first.samples
    assert load(samples=12, algorithm="optuna").samples == first.samples


def test_a_search_that_learns_is_better_than_chance(load: Callable[..., Sweep]) -> None:
    found = [trial.value for trial in trials(go_on(load(samples=30, algorithm="optuna")))]
    drawn, chosen = found[:10], found[10:]
    assert sorted(chosen)[10] < sorted(drawn)[5]
    assert min(found) < 2e-4


def test_samples_that_fail_are_left_alone(load: Callable[..., Sweep]) -> None:
    sweep = load(samples=12, algorithm="optuna")
    sweep.ledger().run(sweep.runs[3]).record_failure("loss is nan", error="RunFailedError")
    done = go_on(load(samples=12, algorithm="optuna"))
    states = [trial.state for trial in trials(done)]
    assert states == ["done"] * 3 + ["failed"] + ["done"] * 8
    told = {
        field.removeprefix("samples") for field in documented()["status NAME"] if field.startswith("samples")
    }
    check([trial.to_dict() for trial in trials(done)], told)


def test_a_space_without_a_sample_that_makes_sense_is_an_error(load: Callable[..., Sweep]) -> None:
    space = {"algorithm.lr": {"loguniform": [1e-4, 1e-2]}}
    sweep = go_on(load(samples=10, algorithm="optuna", space=space))
    sweep = load(samples=11, algorithm="optuna", space=space)

    def none(samples: Any) -> Any:
        raise ConfigError("no such thing")

    with pytest.raises(ConfigError, match=r"search.space: 20 samples in a row make no sense.*no such thing"):
        go_on(replace(sweep, make_runs=none))


def asha(load: Callable[..., Sweep], **more: Any) -> Sweep:
    scheduler = {"kind": "asha", "grace_period": 20, "reduction_factor": 2}
    return load(**{"samples": 6, "scheduler": scheduler} | more)


def expected_stops(order: list[RunSpec]) -> set[str]:
    """Return the runs that are stopped at one rung with a factor of 2: those above the median so far."""
    seen: list[float] = []
    stopped = set()
    for spec in order:
        middle = sorted(seen)
        if seen:
            half = len(middle) // 2
            median = middle[half] if len(middle) % 2 else (middle[half - 1] + middle[half]) / 2
            if loss(spec) > median:
                stopped.add(spec.run_id)
        seen.append(loss(spec))
    return stopped


def report(halving: Halving, sweep: Sweep, spec: RunSpec, step: int) -> str:
    measure(sweep, spec, step, loss(spec))
    result = {"run_id": spec.run_id, "step": step, "excess_loss": loss(spec)}
    return halving.on_trial_result(None, None, result)


def test_asha_stops_the_worse_half_and_says_so(load: Callable[..., Sweep]) -> None:
    sweep = asha(load)
    searching = Searching(sweep, sweep)
    halving = searching.halving(BOARD)
    assert halving is not None
    said = {spec.run_id: report(halving, sweep, spec, 20) for spec in sweep.runs}
    stopped = expected_stops(list(sweep.runs))
    assert {run_id for run_id, action in said.items() if action == "STOP"} == stopped
    assert 1 <= len(stopped) <= 4
    # At the end nobody is stopped, and what was stopped asks for nothing more, in any later launch.
    for spec in sweep.runs:
        if spec.run_id not in stopped:
            assert report(halving, sweep, spec, 60) == "CONTINUE"
    for known in (searching.sweep, asha(load), load_stored(sweep.directory)):
        plan = make_plan(known)
        assert plan.finished
        told = {run.run_id: run.reason for run in plan.runs}
        assert told == {r: "stopped by asha at step 20" if r in stopped else "" for r in ids(sweep)}
        assert {state.run_id: state.state for state in run_states(known)} == {
            r: "stopped" if r in stopped else "done" for r in ids(sweep)
        }
        assert [trial.state for trial in trials(known)] == [
            "stopped" if r in stopped else "done" for r in ids(sweep)
        ]
    # Another rule asks again; without one, all are trained to the end.
    assert len(unfinished(asha(load, scheduler="none"))) == len(stopped)


def test_a_run_that_is_measured_further_on_is_not_stopped_by_a_late_report(
    load: Callable[..., Sweep],
) -> None:
    sweep = asha(load)
    worse = sorted(sweep.runs, key=loss)[-1]
    searching = Searching(sweep, sweep)
    halving = searching.halving(BOARD)
    assert halving is not None
    for spec in sweep.runs:
        if spec is not worse:
            report(halving, sweep, spec, 20)
    measure(sweep, worse, 60, loss(worse))
    assert report(halving, sweep, worse, 20) == "CONTINUE"
    assert searching.sweep.run(worse.run_id).stopped is None
    # A later launch does as this one did.
    assert asha(load).run(worse.run_id).stopped is None
    [trial] = [trial for trial in trials(asha(load)) if trial.runs[0].run_id == worse.run_id]
    assert (trial.state, trial.step, trial.value) == ("done", 60, loss(worse))


def test_a_killed_asha_goes_on_with_its_rungs(load: Callable[..., Sweep]) -> None:
    """Half of the samples are measured by one launch, the others by the next."""
    sweep = asha(load)
    first = Searching(sweep, sweep).halving(BOARD)
    assert first is not None
    for spec in sweep.runs[:3]:
        report(first, sweep, spec, 20)
    again = asha(load)
    second = Searching(again, again).halving(BOARD)
    assert second is not None
    assert not second.stopped
    # A run that is taken up reports what it has again: it is not asked twice.
    survivor = next(spec for spec in again.runs[:3] if spec.stopped is None)
    result = {"run_id": survivor.run_id, "step": 20, "excess_loss": 1e9}
    assert second.on_trial_result(None, None, result) == "CONTINUE"
    for spec in again.runs[3:]:
        report(second, again, spec, 20)
    ended = {spec.run_id for spec in asha(load).runs if spec.stopped is not None}
    assert ended == expected_stops(list(sweep.runs))


def test_what_was_measured_but_not_decided_is_decided_by_the_next_launch(load: Callable[..., Sweep]) -> None:
    sweep = asha(load)
    for spec in sweep.runs:
        measure(sweep, spec, 20, loss(spec))
    again = asha(load)
    searching = Searching(again, again)
    halving = searching.halving(BOARD)
    assert halving is not None
    assert halving.stopped == expected_stops(list(sweep.runs))
    assert {s.run_id for s in searching.sweep.runs if s.stopped is not None} == halving.stopped


def test_asha_leaves_runs_beside_the_search_alone(load: Callable[..., Sweep], tmp_path: Path) -> None:
    sweep = load("include=[{model.shape: 8/1/1/8}]", samples=2, scheduler="asha")
    beside = sweep.runs[-1]
    assert beside.axes == {"algorithm.lr": 1e-3, "model.shape": "8/1/1/8"}
    searching = Searching(sweep, sweep)
    halving = searching.halving(BOARD)
    assert halving is not None
    for spec in sweep.runs[:-1]:
        report(halving, sweep, spec, 20)
    measure(sweep, beside, 20, 100.0)
    worst = {"run_id": beside.run_id, "step": 20, "excess_loss": 100.0}
    assert halving.on_trial_result(None, None, worst) == "CONTINUE"
