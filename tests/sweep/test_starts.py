"""Runs that start from others: their sources, identities, plan and errors."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.tiny_sweeps import BASE, HEAD, checkpoint, finish
from raysweep.errors import CheckpointError, ConfigError
from raysweep.sweep import RunSpec, Sweep, make_plan, missing_now, unfinished
from raysweep.sweep.run_state import run_states
from raysweep.sweep.starts import check_source, failures, needed_of
from raysweep.sweep.stored import load_stored, save_sweep, select

from .conftest import Load

SGD = "algorithm: {kind: sgd, warmup_steps: 5}"
#: AdamW of two seeds, and from each at step 50 a run of SGD.
TWO_PHASES = f"""{BASE}axes: {{seed: [0, 1]}}
include:
  - {{{SGD}, seed: 0, init_from: {{run: '*-adamw-s0-*@50'}}}}
  - {{{SGD}, seed: 1, init_from: {{run: '*-adamw-s1-*@50'}}}}
"""
THREE_PHASES = f"""{BASE}
include:
  - {{{SGD}, init_from: {{run: '*-sam-*@100'}}}}
  - {{algorithm: {{kind: sam}}, init_from: {{run: '*-adamw-*@50'}}}}
"""


def of(sweep: Sweep, algorithm: str, seed: int = 0) -> RunSpec:
    """Return the run of a kind of algorithm and a seed."""
    [run] = [run for run in sweep.runs if run.algorithm.kind == algorithm and run.seed == seed]
    return run


def states(sweep: Sweep) -> dict[str, str]:
    """Return the state of each run in the plan, by algorithm and seed."""
    return {f"{r.spec.algorithm.kind}{r.spec.seed}": r.state for r in make_plan(sweep).runs}


# Identity


def test_a_run_of_the_same_file_is_known_by_its_identity_and_step(load: Load) -> None:
    sweep = load(TWO_PHASES)
    for seed in (0, 1):
        run, source = of(sweep, "sgd", seed), of(sweep, "adamw", seed)
        assert run.source is not None
        assert run.source.own == source.run_id
        assert run.identity_content["source"] == {"run": source.training_identity, "step": 50}
        assert run.source.label == "adamw@50"


def test_replicates_share_a_label_and_other_configurations_do_not(load: Load) -> None:
    """The table knows a source by its label, so a batch size or an earlier phase must show in it."""
    base = f"{BASE}axes: {{pretrain.batch_size: [8, 16], seed: [0, 1]}}\n"
    first = {(run.pretrain.batch_size, run.seed): run.run_id for run in load(base).runs}
    starts = [
        f"  - {{{SGD}, seed: {seed}, init_from: {{run: {run}@50}}}}\n" for (_, seed), run in first.items()
    ]
    sweep = load(f"{base}include:\n{''.join(starts)}")
    labels = {run.source.run: run.source.label for run in sweep.runs if run.source is not None}
    assert labels[first[8, 0]] == labels[first[8, 1]] == "adamw@50"
    assert labels[first[16, 0]] == labels[first[16, 1]]
    assert re.fullmatch("adamw@50 [0-9a-f]{6}", labels[first[16, 0]])
    # Two configurations of AdamW, and SGD from each, of two seeds.
    assert len({run.configuration for run in sweep.runs}) == 4
    assert len(sweep.runs) == 8
    # The same by the records alone, and with one more phase between them.
    second = [run for run in sweep.runs if run.source is not None]
    for run in sweep.runs:
        finish(sweep.ledger().run(run), run)
    ids = [*first.values(), *(run.run_id for run in second)]
    chained = load(
        f"{BASE}algorithm: {{kind: sam}}\naxes: {{init_from.run: {[f'{i}@100' for i in ids]}}}\n".replace(
            "algorithm: {kind: adamw, lr: 1e-3}\n", ""
        )
    )
    told = {run.source.run: run.source.label for run in chained.runs if run.source is not None}
    assert len(told) == 8
    assert [len({told[i] for i in pair}) for pair in zip(ids[::2], ids[1::2], strict=True)] == [1, 1, 1, 1]
    assert len(set(told.values())) == 4


def test_a_run_without_a_source_keeps_its_identity(load: Load) -> None:
    assert "source" not in of(load(BASE), "adamw").identity_content
    assert of(load(BASE), "adamw").run_id == of(load(TWO_PHASES), "adamw").run_id
    assert of(load(BASE + "init_from: null\n"), "adamw").run_id == of(load(BASE), "adamw").run_id
    assert "source" not in of(load(BASE), "adamw").encode()


def test_the_identity_tells_source_step_and_optimizer(load: Load) -> None:
    def run_id(start: str, *overrides: str) -> str:
        sweep = load(f"{BASE}include:\n  - {{seed: 1, init_from: {{{start}}}}}\n", *overrides)
        [found] = [run.run_id for run in sweep.runs if run.source is not None]
        return found

    plain = run_id("run: '*-s0-*@50'")
    assert plain == run_id("run: '*-s0-*@50', optimizer: fresh") == run_id("run: 'tiny/*-s0-*@50'")
    others = {
        run_id("run: '*-s0-*@100'"),
        run_id("run: '*-s0-*@50', optimizer: keep"),
        run_id("run: '*-s0-*@50'", "pretrain.mask=0.5"),
    }
    assert len(others | {plain}) == 4


def test_the_identity_is_the_same_before_and_after_the_source_is_trained(load: Load) -> None:
    before = load(TWO_PHASES)
    for spec in before.runs:
        finish(before.ledger().run(spec), spec)
    assert [run.run_id for run in load(TWO_PHASES).runs] == [run.run_id for run in before.runs]


def test_a_run_of_the_same_ledger_that_the_file_does_not_name(load: Load) -> None:
    """Files of one name share their runs: the identity does not depend on which of them names the source."""
    whole = load(TWO_PHASES)
    source = of(whole, "adamw")
    finish(whole.ledger().run(source), source)
    alone = load(
        f"{HEAD}{SGD}\ninit_from: {{run: '*-adamw-s0-*@50'}}\n".replace(
            "algorithm: {kind: adamw, lr: 1e-3}\n", ""
        )
    )
    assert alone.runs[0].training_identity == of(whole, "sgd").training_identity
    assert states(alone) == {"sgd0": "new"}


def test_a_run_of_another_sweep_is_known_by_the_content_of_its_weights(load: Load) -> None:
    first = load(BASE)
    run = first.ledger().run(first.runs[0])
    record = checkpoint(run, 50)
    second = BASE.replace("name: tiny", "name: second") + SGD.replace("algorithm", "init_from").split(":")[0]
    second += f": {{run: tiny/{first.runs[0].run_id}@50}}\n"
    [spec] = load(second).runs
    assert spec.source is not None
    assert spec.source.sweep == "tiny"
    assert spec.identity_content["source"] == {"weights": record.files["model.safetensors"].sha256}
    assert spec.source.there(load(second).ledger().open(spec.run_id))
    # Without its files the plan says what is missing, and the run keeps its identity.
    (run.checkpoint_directory(50) / "model.safetensors").unlink()
    run.checkpoint_directory(50).rmdir()
    [again] = make_plan(load(second)).runs
    assert again.run_id == spec.run_id
    assert again.state == "failed"
    assert f"tiny/{first.runs[0].run_id}@50 is not there any more" in again.reason


def test_a_source_that_is_lost_and_no_run_of_the_file_fails_what_starts_from_it(load: Load) -> None:
    """It waited for ever."""
    whole = load(TWO_PHASES)
    source = of(whole, "adamw")
    run = whole.ledger().run(source)
    finish(run, source)
    text = f"{HEAD}{SGD}\ninit_from: {{run: '*-adamw-s0-*@50'}}\n"
    text = text.replace("algorithm: {kind: adamw, lr: 1e-3}\n", "")
    (run.checkpoint_directory(50) / "model.safetensors").unlink()
    run.checkpoint_directory(50).rmdir()
    alone = load(text)
    [found] = make_plan(alone).runs
    assert found.state == "failed"
    assert f"its source {source.run_id}@50 is not there any more, and no run of the file" in found.reason
    assert unfinished(alone) == ()
    assert list(failures(alone)) == [found.run_id]
    # With its run in the file, it is trained again.
    assert states(whole)["sgd0"] == "blocked"


def test_a_stored_sweep_keeps_its_sources(load: Load) -> None:
    sweep = load(TWO_PHASES)
    save_sweep(sweep)
    assert load_stored(sweep.directory).runs == sweep.runs


def test_points_that_share_a_start_are_one_training(load: Load) -> None:
    source = load(BASE)
    checkpoint(source.ledger().run(source.runs[0]), 50)
    text = f"{BASE}seed: 3\ninit_from: {{run: {source.runs[0].run_id}@50}}\n"
    text += "axes: {pretrain: [{steps: 50, milestones: [50]}, {steps: 100, milestones: [100]}]}\n"
    [run] = load(text).runs
    assert run.milestones == (50, 100)


def test_it_is_an_axis(load: Load) -> None:
    source = load(BASE + "axes: {seed: [0, 1]}\n")
    ids = [run.run_id for run in source.runs]
    for run in source.runs:
        finish(source.ledger().run(run), run)
    by_path = load(f"{BASE}axes: {{init_from.run: [{ids[0]}@50, {ids[0]}@100, {ids[1]}@50]}}\n")
    names = {run.source.name for run in by_path.runs if run.source is not None}
    assert names == {f"{ids[0]}@50", f"{ids[0]}@100", f"{ids[1]}@50"}
    whole = load(f"{BASE}axes: {{init_from: [null, {{run: {ids[0]}@50}}]}}\n")
    assert [run.source is None for run in whole.runs] == [True, False]
    assert whole.runs[0].run_id == ids[0]
    walk = "zip: [{seed: [0, 1], init_from.run: ['*-adamw-s0-*@50', '*-adamw-s1-*@50']}]"
    walking = load(f"{BASE}{walk}\n", "algorithm={kind: sgd}")
    assert [run.source.run for run in walking.runs if run.source] == ids


# Plan


def test_sources_come_before_what_starts_from_them(load: Load) -> None:
    sweep = load(THREE_PHASES)
    assert [run.algorithm.kind for run in sweep.runs] == ["adamw", "sam", "sgd"]
    plan = make_plan(sweep)
    assert [run.state for run in plan.runs] == ["new", "blocked", "blocked"]
    assert plan.counts["blocked"] == 2
    assert [run.spec for run in plan.to_do] == list(sweep.runs)
    assert plan.runs[1].reason == f"waits for {of(sweep, 'adamw').run_id}@50"
    assert any(re.match(r"\s+2 blocked ", line) for line in plan.lines())
    assert plan.to_dict()["counts"]["blocked"] == 2
    assert [row.state for row in run_states(sweep)] == ["queued", "blocked", "blocked"]


def test_a_launch_begins_with_the_longest_chain(load: Load) -> None:
    """A source has the work of those that wait for it behind it."""
    sweep = load(TWO_PHASES)
    adamw, other, sgd = of(sweep, "adamw"), of(sweep, "adamw", 1), of(sweep, "sgd")
    seconds = {spec.run_id: 0.1 for spec in sweep.runs} | {other.run_id: 0.15, sgd.run_id: 1.0}
    order = [run.spec for run in make_plan(sweep, step_seconds=seconds).order]
    assert order[:3] == [adamw, sgd, other]
    assert order.index(other) < order.index(of(sweep, "sgd", 1))


def test_a_run_is_free_as_soon_as_its_checkpoint_is_there(load: Load) -> None:
    sweep = load(TWO_PHASES)
    ledger = sweep.ledger()
    assert states(sweep) == {"adamw0": "new", "adamw1": "new", "sgd0": "blocked", "sgd1": "blocked"}
    checkpoint(ledger.run(of(sweep, "adamw")), 50)
    assert states(sweep) == {"adamw0": "resume", "adamw1": "new", "sgd0": "new", "sgd1": "blocked"}
    # With a checkpoint of its own, even of step 0, a run needs its source no more.
    checkpoint(ledger.run(of(sweep, "sgd", 1)), 0)
    assert states(sweep)["sgd1"] == "new"
    checkpoint(ledger.run(of(sweep, "sgd", 1)), 50)
    assert states(sweep)["sgd1"] == "resume"


def test_a_failed_source_leaves_nobody_waiting(load: Load) -> None:
    sweep = load(THREE_PHASES)
    adamw = of(sweep, "adamw")
    sweep.ledger().run(adamw).record_failure("step 3: the loss is nan", error="RunFailedError", step=3)
    plan = make_plan(sweep)
    assert [run.state for run in plan.runs] == ["failed"] * 3
    assert plan.runs[1].reason == f"its source {adamw.run_id}@50 failed: step 3: the loss is nan"
    assert plan.runs[2].reason.startswith(
        f"its source {of(sweep, 'sam').run_id}@100 cannot start: its source"
    )
    assert unfinished(sweep) == ()
    assert [row.state for row in run_states(sweep)] == ["failed"] * 3
    assert [record.error for record in failures(sweep).values()] == ["RunFailedError", *["SourceFailed"] * 2]
    # Nothing is recorded of the others, so another attempt at the source sets them free.
    assert [run.state for run in make_plan(sweep, retry_failed=True).runs] == ["new", "blocked", "blocked"]
    sweep.ledger().run(adamw).retry()
    assert len(unfinished(sweep)) == 3


def test_a_source_that_failed_after_the_step_serves(load: Load) -> None:
    sweep = load(TWO_PHASES)
    source = sweep.ledger().run(of(sweep, "adamw"))
    checkpoint(source, 50)
    source.record_failure("step 60: no", error="RunFailedError", step=60)
    assert states(sweep)["sgd0"] == "new"


def test_a_lost_checkpoint_is_trained_again_for_the_runs_that_start_from_it(load: Load) -> None:
    sweep = load(TWO_PHASES)
    source = of(sweep, "adamw")
    run = sweep.ledger().run(source)
    finish(run, source)
    for step in source.milestones:
        (run.checkpoint_directory(step) / "model.safetensors").unlink()
        run.checkpoint_directory(step).rmdir()
    assert set(needed_of(sweep, source)) == {50}
    assert missing_now(run, source).finished
    assert missing_now(run, source, needed={50}).checkpoints == (50,)
    [plan] = [each for each in make_plan(sweep).runs if each.spec == source]
    assert (plan.state, plan.reason) == ("new", "checkpoint missing")
    assert states(sweep)["sgd0"] == "blocked"
    # Once its run has begun, nobody needs it.
    checkpoint(sweep.ledger().run(of(sweep, "sgd")), 50)
    assert set(needed_of(sweep, source)) == set()
    assert states(sweep)["adamw0"] == "done"


def test_a_damaged_checkpoint_is_set_aside_before_it_is_started_from(load: Load) -> None:
    sweep = load(TWO_PHASES)
    source, spec = sweep.ledger().run(of(sweep, "adamw")), of(sweep, "sgd")
    checkpoint(source, 50)
    with pytest.raises(CheckpointError, match="sha256 differs"):  # the helper's record has another one
        check_source(sweep.ledger().run(spec), spec)
    assert not source.checkpoint_directory(50).exists()
    assert states(sweep)["sgd0"] == "blocked"
    check_source(sweep.ledger().run(of(sweep, "adamw")), of(sweep, "adamw"))  # has none to check


def test_only_a_run_whose_source_is_not_trained(load: Load) -> None:
    sweep = load(TWO_PHASES)
    source = of(sweep, "adamw")
    message = (
        rf"--only \*sgd-\*s0-\*: run .* starts from {source.run_id}@50, which is not trained yet; add --only"
    )
    with pytest.raises(ConfigError, match=message):
        select(sweep, ["*sgd-*s0-*"])
    assert len(select(sweep, ["*sgd-*s0-*", source.run_id]).runs) == 2
    checkpoint(sweep.ledger().run(source), 50)
    assert len(select(sweep, ["*sgd-*s0-*"]).runs) == 1


def test_only_a_run_whose_folder_has_gone(load: Load) -> None:
    """No other run of the sweep makes the folder, so the plan says that it is not there."""
    sweep = load(TWO_PHASES)
    run = of(sweep, "sgd")
    assert run.source is not None
    gone = run.source.model_copy(update={"run": None, "step": None, "folder": "/nowhere/model"})
    sweep = replace(sweep, runs=(replace(run, source=gone),))
    [found] = make_plan(select(sweep, ["*"])).runs
    assert found.state == "failed"
    assert "/nowhere/model is not there any more" in found.reason


# Errors


#: What a third entry beside AdamW of two seeds and the look-up table says; S0 stands for the run of seed 0.
WRONG = [
    ("{run: '*-adamw-s7-*@50'}", "run", r"s7-\*': no such run in this sweep \('tiny'\).*16-1-1-32-adamw-s0"),
    ("{run: 'other/*@50'}", "run", r"'\*': no such run in sweep 'other' of .*; nothing of it is stored"),
    ("{run: 'S0@70'}", "run", r"has no milestone 70, only 50, 100; name one of these, or add 70"),
    ("{run: 'S0@0'}", "run", r"has no milestone 0, only 50, 100"),
    ("{run: 'S0@last'}", "run", r"'last' is not a step; write RUN@STEP"),
    (
        "{run: '*-adamw-*@50'}",
        "run",
        r"matches 2 runs \(16-\S+-adamw-s0-\w+, 16-\S+-adamw-s1-\w+\); name one",
    ),
    ("{run: '16-1-1-32-adamw'}", "run", r"is neither RUN@STEP, SWEEP/RUN@STEP nor a folder"),
    (
        "{run: '16/1/1/32 seed 0@50'}",
        "run",
        r"RUN is the id of a run, .* or a pattern such as 64-1-2-\*-s0-\*",
    ),
    ("{run: /no/such/folder}", "run", r"'/no/such/folder' is neither"),
    ("{run: 'S0@50', optimizer: kept}", "optimizer", r"'kept' is not valid; it must be one of keep, fresh"),
    ("{optimizer: keep}", "run", r"missing — add 'run: ...'"),
    ("[1]", "", r"is not a mapping; write 'init_from: \{run: RUN@STEP\}'"),
    (
        "{run: 'S0@50'}, model.shape: 16/2/2/32",
        "run",
        r"its model.shape is '16/1/1/32', this run's '16/2/2/32'",
    ),
    (
        "{run: 'S0@50'}, model: {kind: lstm, shape: 16/1}",
        "run",
        r"model.kind is 'encoder', this run's 'lstm'",
    ),
    ("{run: 'S0@50'}, language.vocabulary: 8", "run", r"it has 6 words in 16 rows, this run 8 in 16"),
    ("{run: 'S0@50'}, language.length: 6", "run", r"it reads 4 positions, this run 6"),
    (
        "{run: 'S0@50', optimizer: keep}, algorithm: {kind: sgd}",
        "optimizer",
        r"by 'adamw' and this run is by",
    ),
    ("{run: 'S0@50'}, algorithm: {kind: lookup_table}", "", r"trains nothing, so it starts from no run"),
    ("{run: '*-adamw-s5-*@50'}, seed: 5", "run", r"is this run itself; name another run"),
    ("{run: 'lookup_table-*@0'}", "run", r"is not trained, so it has no weights"),
]


@pytest.mark.parametrize(("start", "field", "message"), WRONG)
def test_what_is_wrong_is_named_with_its_place(load: Load, start: str, field: str, message: str) -> None:
    entry = f"{{init_from: {start}}}".replace("S0", "*-adamw-s0-*")
    text = f"{BASE}axes: {{seed: [0, 1]}}\ninclude: [{{algorithm: {{kind: lookup_table}}}}, {entry}]\n"
    with pytest.raises(ConfigError) as caught:
        load(text)
    [line] = str(caught.value).splitlines()
    name = ".".join(filter(None, ("init_from", field)))
    assert re.match(rf"s.yaml:\d+:\d+: {name}: ", line), line
    assert re.search(message, line), line


def test_circles_are_named(load: Load) -> None:
    text = f"""{BASE}include:
  - {{{SGD}, init_from: {{run: '*-sam-*@50'}}}}
  - {{algorithm: {{kind: sam}}, init_from: {{run: '*-sgd-*@50'}}}}
"""
    with pytest.raises(ConfigError) as caught:
        load(text)
    lines = str(caught.value).splitlines()
    assert len(lines) == 2
    for line in lines:
        assert (
            "leads back to this run: 16-1-1-32-sgd-warmup5-s0, 16-1-1-32-sam-s0 start from one another"
            in line
        )


def test_a_pattern_that_matches_a_later_phase_too_is_ambiguous(load: Load) -> None:
    text = f"""{BASE}include:
  - {{{SGD}, init_from: {{run: '*-s0-*@50'}}}}
  - {{algorithm: {{kind: sam}}, init_from: {{run: '*-adamw-*@50'}}}}
"""
    with pytest.raises(ConfigError, match=r"'\*-s0-\*' matches 2 runs \(.*adamw.*sam"):
        load(text)


def test_a_problem_of_a_source_is_told_once(load: Load) -> None:
    with pytest.raises(ConfigError) as caught:
        load(THREE_PHASES.replace("adamw-*@50", "adamw-*@51"))
    assert len(str(caught.value).splitlines()) == 1


def test_a_checkpoint_that_is_not_there_yet(load: Load) -> None:
    first = load(BASE)
    checkpoint(first.ledger().run(first.runs[0]), 50)
    text = f"{BASE}init_from: {{run: tiny/{first.runs[0].run_id}@100}}\n".replace("name: tiny", "name: other")
    with pytest.raises(
        ConfigError, match=r"of sweep 'tiny' .* has no checkpoint of step 100 yet; it has steps 50"
    ):
        load(text)


def test_variants_start_from_runs_of_the_ledger(load: Load) -> None:
    sweep = load(BASE)
    checkpoint(sweep.ledger().run(sweep.runs[0]), 50)
    found = sweep.variant({"seed": 4, "init_from.run": f"{sweep.runs[0].run_id}@50"})
    assert found.source is not None
    assert found.source.own == sweep.runs[0].run_id


def test_milestone_zero(load: Load) -> None:
    sweep = load(BASE, "pretrain.milestones=[0, 50, 100]")
    assert sweep.runs[0].milestones == (0, 50, 100)
    assert sweep.runs[0].run_id == load(BASE).runs[0].run_id
    with pytest.raises(ConfigError, match=r"must be ascending from 0 or more.*write \[50, 100\]"):
        load(BASE, "pretrain.milestones=[-1, 50, 100]")
    checkpoint(sweep.ledger().run(sweep.runs[0]), 0)
    assert run_states(sweep)[0].state == "unfinished"


def test_relative_folders_start_from_their_file(load: Load, tmp_path: Path) -> None:
    (tmp_path / "models" / "empty").mkdir(parents=True)
    with pytest.raises(ConfigError, match=rf"init_from.run: {tmp_path}/models/empty: .*no config.json"):
        load(f"{BASE}init_from: {{run: ./models/empty}}\n")
