"""The checkpoints that a sweep keeps, and those that may go; `raysweep clean` and `keep:`."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from helpers.processes import forked
from helpers.tiny_sweeps import AXES, BASE, checkpoint, measured
from raysweep.cli.app import run
from raysweep.errors import ConfigError
from raysweep.sweep import Sweep, SweepLock, make_plan, missing_now, unfinished
from raysweep.sweep.keeping import Needs, keep_of, standing, tidy_up
from raysweep.sweep.run_state import run_states
from raysweep.sweep.stored import load_stored, save_sweep
from raysweep.training import checkpoint as disk

MILESTONES = "pretrain.milestones=[25, 50, 100]"


def steps(sweep: Sweep, k: int = 0) -> list[int]:
    """Return the steps of a run's checkpoints on the disk."""
    return sorted(sweep.ledger().open(sweep.runs[k].run_id).steps_on_disk())


def finish(sweep: Sweep, k: int = 0) -> None:
    tiny.finish(sweep.ledger().run(sweep.runs[k]), sweep.runs[k])


def measure(sweep: Sweep, step: int, k: int = 0) -> None:
    spec = sweep.runs[k]
    for evaluation in spec.evaluations.values():
        sweep.ledger().run(spec).record_evaluation(step, evaluation, measured(), seconds=1.0)


@pytest.mark.parametrize(("keep", "left"), [("milestones", [25, 50, 100]), ("last", [100]), ("none", [])])
def test_a_finished_run_keeps_what_its_file_says(load: Any, keep: str, left: list[int]) -> None:
    sweep = load(BASE, MILESTONES, f"keep={keep}")
    finish(sweep)
    assert keep_of(sweep) == keep
    assert tidy_up(sweep, sweep.runs) == 3 - len(left)
    assert steps(sweep) == left
    # Nothing is missing for it, and everything is as it was in a plan.
    assert unfinished(sweep) == ()
    assert [len(item.spec.milestones) for item in make_plan(sweep).runs if item.state == "done"] == [3]
    assert len(sweep.ledger().open(sweep.runs[0].run_id).curve()) == 3
    # 50 seconds of training, and three evaluations of 2 seconds each.
    [row] = run_states(sweep)
    assert (row.state, row.step, row.seconds) == ("done", 100, 56.0)
    assert tidy_up(sweep, sweep.runs) == 0


def test_keep_is_no_part_of_a_run_and_is_found_again_by_name(load: Any) -> None:
    plain, kept = load(BASE, MILESTONES), load(BASE, MILESTONES, "keep=none")
    assert [run.run_id for run in plain.runs] == [run.run_id for run in kept.runs]
    assert keep_of(plain) == "milestones"
    save_sweep(kept)
    assert keep_of(load_stored(kept.directory)) == "none"


@pytest.mark.parametrize("value", ["all", "[last]", "3", "true"])
def test_a_keep_that_is_none(load: Any, value: str) -> None:
    with pytest.raises(ConfigError, match=r"keep: .* is none of milestones, last, none"):
        load(BASE, f"keep={value}")


@pytest.mark.parametrize("keep", ["last", "none"])
def test_what_is_not_measured_yet_stays(load: Any, keep: str) -> None:
    sweep = load(BASE, MILESTONES, f"keep={keep}")
    ledger = sweep.ledger().run(sweep.runs[0])
    for step in (25, 50, 100):
        checkpoint(ledger, step)
    measure(sweep, 50)
    measure(sweep, 100)
    tidy_up(sweep, sweep.runs)
    assert steps(sweep) == [25, 100]
    measure(sweep, 25)
    tidy_up(sweep, sweep.runs)
    assert steps(sweep) == ([100] if keep == "last" else [])


@pytest.mark.parametrize("keep", ["last", "none"])
def test_what_training_resumes_from_stays(load: Any, keep: str) -> None:
    """An unfinished run goes on from its newest state, a milestone or not."""
    sweep = load(BASE, MILESTONES, f"keep={keep}")
    ledger = sweep.ledger().run(sweep.runs[0])
    for step in (25, 50):
        checkpoint(ledger, step)
        measure(sweep, step)
    tidy_up(sweep, sweep.runs)
    assert steps(sweep) == [50]
    checkpoint(ledger, 70, milestone=False)
    tidy_up(sweep, sweep.runs)
    assert steps(sweep) == [70]
    assert missing_now(ledger, sweep.runs[0]).resume_step == 70
    # So it is for a run that has failed: a retry goes on from there.
    ledger.record_failure("nan", error="RunFailedError")
    tidy_up(sweep, sweep.runs)
    assert steps(sweep) == [70]


def test_a_lost_milestone_is_trained_again_from_an_older_one(load: Any) -> None:
    """Milestone 50 has gone before it was measured: it needs that of 25, and that of 100 is the newest."""
    sweep = load(BASE, MILESTONES, "keep=last")
    ledger = sweep.ledger().run(sweep.runs[0])
    for step in (25, 50, 100):
        checkpoint(ledger, step)
    for step in (25, 100):
        measure(sweep, step)
    shutil.rmtree(ledger.checkpoint_directory(50))
    tidy_up(sweep, sweep.runs)
    assert steps(sweep) == [25, 100]


def test_a_new_evaluation_of_a_tidied_run_trains_it_again(load: Any) -> None:
    sweep = load(BASE, MILESTONES, "keep=last")
    finish(sweep)
    tidy_up(sweep, sweep.runs)
    again = load(BASE, MILESTONES, "keep=last", "evaluate.counted.n=4")
    lacks = missing_now(again.ledger().open(again.runs[0].run_id), again.runs[0])
    assert (lacks.checkpoints, lacks.resume_step) == ((25, 50), 0)
    longer = load(BASE, "pretrain.milestones=[25, 50, 100, 200]", "pretrain.steps=200", "keep=last")
    lacks = missing_now(longer.ledger().open(longer.runs[0].run_id), longer.runs[0])
    assert (lacks.checkpoints, lacks.resume_step) == ((200,), 100)


def test_by_default_nothing_goes_not_even_what_was_a_milestone_once(load: Any) -> None:
    finish(load(BASE, MILESTONES))
    sweep = load(BASE, "pretrain.milestones=[100]")
    run_ = sweep.ledger().open(sweep.runs[0].run_id)
    assert [kept.why for kept in standing(run_, sweep.runs[0], "milestones", {})] == ["a milestone"] * 3
    assert [bool(kept.why) for kept in standing(run_, sweep.runs[0], "last", {})] == [False, False, True]


CHAIN = BASE + "axes: {seed: [0]}\ninclude: [{init_from: {run: '16-1-1-32-adamw-s0-*@50'}, seed: 1}]\n"


def test_what_a_run_of_the_sweep_starts_from_stays_until_that_is_finished(load: Any) -> None:
    sweep = load(CHAIN, "keep=none")
    source = next(k for k, spec in enumerate(sweep.runs) if spec.source is None)
    finish(sweep, source)
    tidy_up(sweep, sweep.runs)
    assert steps(sweep, source) == [50]
    # It stays for a selection, too, which leaves that run out.
    chosen = sweep.runs[source]
    assert Needs(sweep).of(chosen.run_id) == {50: f"{sweep.runs[1 - source].run_id} starts from it"}
    finish(sweep, 1 - source)
    tidy_up(sweep, sweep.runs)
    assert steps(sweep, source) == []
    assert unfinished(sweep) == ()


@pytest.mark.parametrize("way", ["name", "folder"])
def test_what_another_sweep_starts_from_stays_for_good(load: Any, tmp_path: Path, way: str) -> None:
    sweep = load(BASE, MILESTONES, "keep=none")
    save_sweep(sweep)
    finish(sweep)
    run_id = sweep.runs[0].run_id
    place = sweep.ledger().open(run_id).checkpoint_directory(50)
    (place / "state.json").write_text("{}")
    source = {"sweep": "tiny", "run": run_id, "step": 50}
    if way == "folder":
        source = {"folder": str(place)}
    (sweep.storage / "other").mkdir()
    told = {"runs": [{"source": {"sweep": "tiny"}}, {}, {"source": None}, 3, {"source": source}]}
    (sweep.storage / "other" / "sweep.json").write_text(json.dumps(told))
    (sweep.storage / "broken").mkdir()
    (sweep.storage / "broken" / "sweep.json").write_text("[1")
    tidy_up(sweep, sweep.runs)
    assert steps(sweep) == [50]
    [kept] = standing(sweep.ledger().open(run_id), sweep.runs[0], "none", Needs(sweep).of(run_id))
    assert kept.why == "a run of 'other' starts from it"


def test_a_kill_while_a_checkpoint_is_removed_leaves_it_whole_or_not_at_all(
    load: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep = load(BASE, MILESTONES, "keep=last")
    finish(sweep)
    ledger = sweep.ledger().open(sweep.runs[0].run_id)

    def work(ready: Any) -> None:
        disk.shutil.rmtree = lambda *_, **__: os._exit(1)  # type: ignore[assignment]
        try:
            tidy_up(sweep, sweep.runs)
        finally:
            ready()

    with forked(work):
        pass
    # The first one has gone as a whole; what is left of it is no checkpoint, and goes with the next launch.
    left = ledger.checkpoint_directory(0).parent
    assert steps(sweep) == [50, 100]
    assert [p.name[:19] for p in left.glob("unfinished-*")] == ["unfinished-removed-"]
    tidy_up(sweep, sweep.runs)
    assert [p.name for p in left.iterdir()] == ["step-00000100"]


def test_clean_shows_and_deletes_only_on_demand(load: Any, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = load(BASE + AXES, MILESTONES)
    save_sweep(sweep)
    finish(sweep, 0)
    finish(sweep, 1)
    ledger = sweep.ledger().run(sweep.runs[2])
    checkpoint(ledger, 25)
    first = sweep.runs[0].run_id

    assert run(["clean", "tiny"]) == 0
    said = capsys.readouterr().out
    assert "tiny: 7 checkpoints, 49 B; may go: 4, 28 B\n" in said
    assert f"  {first}  14 B: steps 25, 50\n" in said
    assert "  stay: 2, the newest of its run\n" in said
    assert "  stays: 1, not measured yet\n" in said
    assert "--yes" in said
    assert [steps(sweep, k) for k in range(3)] == [[25, 50, 100], [25, 50, 100], [25]]

    assert run(["clean", "tiny", "--keep", "all"]) == 2
    assert "Invalid value for '--keep': 'all' is not one of 'last', 'none'." in capsys.readouterr().err
    assert run(["clean", "tiny", "--keep", "none", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["deleted"], answer["bytes"], len(answer["checkpoints"])) == (False, 42, 7)
    assert answer["checkpoints"][-1] == {
        "run_id": sweep.runs[2].run_id,
        "step": 25,
        "bytes": 7,
        "kept": "not measured yet",
    }

    with SweepLock(sweep.directory):
        assert run(["clean", "tiny", "--yes"]) == 2
    assert "is in use by process" in capsys.readouterr().err
    assert steps(sweep) == [25, 50, 100]

    assert run(["clean", "tiny", "--yes"]) == 0
    assert "deleted: 4, 28 B" in capsys.readouterr().out
    assert [steps(sweep, k) for k in range(3)] == [[100], [100], [25]]
    assert run(["clean", "tiny", "--yes"]) == 0
    assert "deleted: 0, 0 B" in capsys.readouterr().out
