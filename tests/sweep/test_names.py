"""One name for a run everywhere: as tables show it, ids and their parts, patterns, and sweep and step."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from raysweep.errors import ConfigError
from raysweep.sweep import Sweep, load_sweep
from raysweep.sweep.checkpoints import find_checkpoint
from raysweep.sweep.names import Named, UnknownRunError, named
from raysweep.sweep.run_state import run_states
from raysweep.sweep.stored import save_sweep, select
from raysweep.training import pretrain

FILE = """\
name: small
language: {kind: hmm, states: 4, vocabulary: 8, length: 4, blocks: 2, tasks: [1]}
model: {kind: encoder, shape: 8/2/1/16, dropout: 0.0}
algorithm: {kind: adamw, warmup_steps: 1}
pretrain: {steps: 4, batch_size: 8, milestones: [2, 4]}
evaluate: {excess_loss: {sentences: 8}}
axes: {model.shape: [8/2/1/16, 16/2/1/32], algorithm.lr: [1e-3, 3e-3], seed: [0, 1, 10]}
include: [{algorithm: {kind: lookup_table}}]
"""


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    """Thirteen runs that are not trained."""
    folder = tmp_path_factory.mktemp("names")
    (folder / "small.yaml").write_text(FILE, encoding="utf-8")
    return load_sweep(folder / "small.yaml", storage=folder / "results")


def ids(sweep: Sweep, *only: str) -> list[str]:
    return [run.run_id for run in select(sweep, only).runs]


def test_every_run_is_found_by_each_of_its_names_alone(sweep: Sweep) -> None:
    for run, state in zip(sweep.runs, run_states(sweep), strict=True):
        head, _, tail = run.run_id.rpartition("-")
        # The name that `status` shows, the id, the id without its end, and its end.
        for name in (state.label, run.run_id, head, tail, tail[:6]):
            for text in (name, f"small/{name}", f"{name}@4", f"small/{name}@4"):
                assert ids(sweep, text) == [run.run_id], text


def test_included_runs_are_told_apart_by_what_they_change(tmp_path: Path) -> None:
    entries = (
        "{seed: 1, algorithm: {warmup_steps: 2}}",
        "{seed: 1, pretrain: {batch_size: 16, steps: 5, milestones: [5]}, model.shape: 16/2/1/32}",
        "{seed: 1, algorithm: {kind: sam, lr: 1e-3, rho: 0.1}}",
        "{seed: 1, model.dropout: 0.5}",
        "{seed: 1, algorithm: {kind: adamw, warmup_steps: 1}}",
    )
    text = (
        FILE.replace("[1e-3, 3e-3]", "[2e-3]").partition("include:")[0] + f"include: [{', '.join(entries)}]"
    )
    (tmp_path / "small.yaml").write_text(text, encoding="utf-8")
    sweep = load_sweep(tmp_path / "small.yaml", storage=tmp_path)
    told = [state.label for state in run_states(sweep)]
    assert told[:2] == ["8/2/1/16 lr 0.002 seed 0", "8/2/1/16 lr 0.002 seed 1"]
    # How long a run trains is no other run, and what is as in the base tells nothing.
    assert told[6:] == [
        "8/2/1/16 seed 1 warmup_steps 2",
        "16/2/1/32 seed 1 batch_size 16",
        "8/2/1/16 lr 0.001 seed 1 sam rho 0.1",
        "8/2/1/16 seed 1 dropout 0.5",
        "8/2/1/16 seed 1",
    ]
    assert len(set(told)) == len(sweep.runs)
    for run, name in zip(sweep.runs, told, strict=True):
        assert ids(sweep, name) == [run.run_id]


def test_a_run_without_axes_has_its_model_and_seed_where_these_tell_it(tmp_path: Path) -> None:
    def loaded(include: str) -> Sweep:
        text = FILE.partition("axes:")[0] + f"seed: 3\ninclude: {include}\n"
        (tmp_path / "small.yaml").write_text(text, encoding="utf-8")
        return load_sweep(tmp_path / "small.yaml", storage=tmp_path)

    one = loaded("[]")
    [state] = run_states(one)
    assert state.label == "8/2/1/16-dropout0 seed 3"
    assert ids(one, state.label) == ids(one, "seed 3") == [state.run_id]
    two = loaded("[{seed: 4}]")
    assert [state.label for state in run_states(two)] == [f"8/2/1/16-dropout0 seed {k}" for k in (3, 4)]
    assert ids(two, "seed 4") == [two.runs[1].run_id]
    same = loaded("[{algorithm: {lr: 0.5}}, {seed: 4}]")
    rates = [spec.run_id for spec in same.runs[:2]]
    assert [state.label for state in run_states(same)] == [*rates, "8/2/1/16-dropout0 seed 4"]


def test_a_name_in_tables_is_told_in_any_order_and_spelling(sweep: Sweep) -> None:
    wanted = ids(sweep, "16/2/1/32 lr 0.003 seed 1")
    parts = ("16/2/1/32", "lr 0.003", "seed 1")
    for order in itertools.permutations(parts):
        assert ids(sweep, " ".join(order)) == wanted
    for text in (
        "16/2/1/32 · lr 0.003 · seed 1",
        "seed=1, lr=3e-3, 16/2/1/32",
        "16/2/1/32 adamw lr 3e-3 seed 1",
    ):
        assert ids(sweep, text) == wanted


def test_patterns_mean_several_runs_by_id_or_by_name(sweep: Sweep) -> None:
    by_seed = [run.run_id for run in sweep.runs if run.trains and run.seed == 0]
    assert len(by_seed) == 4
    assert ids(sweep, "*-s0-*") == ids(sweep, "* seed 0") == by_seed
    assert ids(sweep, "16/2/1/32 *0") == [
        run.run_id for run in sweep.runs if run.axes.get("model.shape") == "16/2/1/32" and run.seed in (0, 10)
    ]
    assert len(ids(sweep, "lookup*", "8/2/1/16 lr 0.001 seed 10", "*-s1-*")) == 6


def test_an_ambiguous_name_lists_candidates(sweep: Sweep) -> None:
    with pytest.raises(ConfigError) as caught:
        select(sweep, ["16/2/1/32 lr 0.003"])
    message = str(caught.value)
    candidates = [
        run
        for run in sweep.runs
        if run.axes.get("model.shape") == "16/2/1/32" and run.axes["algorithm.lr"] == 3e-3
    ]
    assert "matches 3 runs: " in message
    for run in candidates:
        assert f"{run.run_id} (16/2/1/32 lr 0.003 seed {run.seed})" in message
    assert "write '16/2/1/32 lr 0.003*' for all of them" in message
    assert ids(sweep, "16/2/1/32 lr 0.003*") == [run.run_id for run in candidates]
    with pytest.raises(ConfigError, match=r"matches 12 runs: .* and 7 more; name one"):
        select(sweep, ["adamw"])
    # The beginning of an id ends where one of its parts does, if it can.
    [first] = ids(sweep, "8/2/1/16 lr 0.001 seed 1")
    assert ids(sweep, first.rpartition("-")[0]) == [first]


def test_each_name_must_mean_something(sweep: Sweep) -> None:
    with pytest.raises(UnknownRunError, match="seed 7: matches none of the 13 runs"):
        select(sweep, ["seed 7", "*-s1-*"])
    with pytest.raises(UnknownRunError, match="did you mean '8/2/1/16 lr"):
        select(sweep, ["8/2/1/61 lr 0.001 seed 0"])
    with pytest.raises(UnknownRunError, match="matches none"):
        select(sweep, ["other/8/2/1/16 lr 0.001 seed 0"])
    with pytest.raises(ConfigError, match="'end' is not a step"):
        select(sweep, ["*-s1-*@end"])
    for text in ("", "/", "small/", "@4"):
        with pytest.raises(UnknownRunError):
            select(sweep, [text])


def test_a_sweep_that_is_named_like_a_size_hides_no_run() -> None:
    runs = [Named("a-1", "8/x", ("8/x",), "8"), Named("b-1", "x", ("x",), "8")]
    # Both ways to read it stand: run `x` of the sweep `8`, and the run that tables call `8/x`.
    assert {run.run_id for run in named("8/x", runs)} == {"a-1", "b-1"}
    assert [run.run_id for run in named("8/8/x", runs)] == ["a-1"]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage of two sweeps, with checkpoints of steps 2 and 4 of one run in each."""
    folder = tmp_path_factory.mktemp("trained")
    for name, shape in (("first", "8/2/1/16"), ("second", "16/2/1/32")):
        file = folder / f"{name}.yaml"
        text = FILE.replace("name: small", f"name: {name}").replace("8/2/1/16, 16/2/1/32", shape)
        file.write_text(text.replace("[1e-3, 3e-3]", "[1e-3]"), encoding="utf-8")
        sweep = load_sweep(file, storage=folder / "results")
        save_sweep(sweep)
        spec = sweep.runs[0]
        pretrain(
            language=sweep.language(spec), model=spec.model, algorithm=spec.algorithm, pretrain=spec.pretrain,
            seed=0, journal=sweep.ledger().run(spec),
        )  # fmt: skip
    return folder / "results"


def test_a_checkpoint_is_found_by_every_name(trained: Path) -> None:
    for text, step in (
        ("8/2/1/16 lr 0.001 seed 0@2", 2),
        ("first/8/2/1/16 lr 0.001 seed 0@4", 4),
        ("first/seed 0", 4),
        ("first/*-s0-*@2", 2),
        ("8/2/1/16*seed 0", 4),
    ):
        found = find_checkpoint(trained, text)
        assert (found.sweep.name, found.run.seed, found.step) == ("first", 0, step)
        assert find_checkpoint(trained, found.name).directory == found.directory


def test_a_checkpoint_that_several_sweeps_could_mean(trained: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        find_checkpoint(trained, "seed 0@2")
    for text in ("matches 2 runs: first/8-2-1-16", "second/16-2-1-32", "(8/2/1/16 lr 0.001 seed 0)"):
        assert text in str(caught.value)
    assert find_checkpoint(trained, "second/seed 0@2").sweep.name == "second"
    with pytest.raises(ConfigError, match="no such run"):
        find_checkpoint(trained, "third/seed 0@2")


def test_a_run_that_the_file_has_no_longer(trained: Path, tmp_path: Path) -> None:
    storage = tmp_path / "results"
    shutil.copytree(trained, storage)
    file = trained.parent / "first.yaml"
    sweep = load_sweep(file, overrides=["axes.seed=[1]"], storage=storage)
    gone = load_sweep(file, storage=storage).runs[0]
    save_sweep(sweep)
    with pytest.raises(ConfigError, match="no longer in the file") as caught:
        find_checkpoint(storage, f"{gone.run_id}@2")
    assert str(sweep.ledger().open(gone.run_id).directory) in str(caught.value)
