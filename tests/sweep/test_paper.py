"""The sweeps of the paper's figures and tables: whole plans at the paper's scale, and none trains twice.

What comes from the Hugging Face hub is replaced by its like on this machine.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from helpers import local_glue, local_models, local_texts
from helpers.paper_files import FOLDER, check_nothing_is_stated_twice, check_shared, plain
from raysweep.errors import ConfigError
from raysweep.evaluation.trace import TraceConfig
from raysweep.sweep import Sweep, load_sweep, make_plan

FILES = sorted(path.stem for path in FOLDER.glob("*.yaml") if not path.stem.endswith("-small"))
#: Files by what they need from the hub, with their tasks of GLUE.
ON_TEXT = {"fig2c": ("sst2",), "tables-bookcorpus": ("qnli", "sst2", "rte")}
ON_OPT = dict.fromkeys(("fig2b", "fig3c", "fig5-opt", "fig8-opt"), ("qnli", "sst2"))
#: Files with the runs of others, and these others.
SHARED = {
    "fig1": (
        *("fig2a", "fig3a", "fig4-pcfg", "fig5-pcfg", "fig8-pcfg", "fig10-pcfg"),
        *("table1-pcfg", "table2-pcfg"),
    ),
    "fig3b": ("fig4-hmm", "fig8-hmm", "fig10-hmm"),
    "fig3c": ("fig2b", "fig5-opt", "fig8-opt"),
    "fig2c": (),
    "tables-bookcorpus": (),
}
#: Runs in common where not all are: two sizes of Table 4; AdamW and the look-up table; AdamW of three seeds.
PARTLY = {"fig5-pcfg": 6, "fig5-opt": 6, "table1-pcfg": 4, "table2-pcfg": 4}
#: Files whose models go on by SGD, and that with the runs of AdamW that they start from.
BY_SGD = {"fig4-pcfg": "fig1", "fig10-pcfg": "fig1", "fig4-hmm": "fig3b", "fig10-hmm": "fig3b"}
PARTLY |= dict.fromkeys(BY_SGD, 3)


@functools.cache
def local() -> Path:
    """Return a folder with GLUE's tasks and a tokenizer of as many words as BERT's."""
    folder = Path(tempfile.mkdtemp(dir=local_models.folder()))
    for task in ("qnli", "sst2", "rte"):
        local_glue.write(folder / task, task)
    words = json.dumps({"[UNK]": 0, "[SEP]": 1, **{f"w{k}": k + 2 for k in range(30520)}})
    model = tokenizers.models.WordPiece(json.loads(words), unk_token="[UNK]")
    (folder / "tokenizer").mkdir()
    tokenizers.Tokenizer(model).save(str(folder / "tokenizer" / "tokenizer.json"))
    return folder


@functools.cache
def loaded(name: str) -> Sweep:
    """Return a sweep of the folder, its text, model and tasks taken from this machine."""
    overrides = []
    if name in ON_TEXT:
        source = f"language.source={local_texts.files()['jsonl']}"
        tokenizer = f"language.tokenizer={local() / 'tokenizer'}"
        overrides = [source, "language.revision=null", "language.rows_per_document=1", tokenizer]
    elif name in ON_OPT:
        overrides = [f"language.model={local_models.trained_opt()}", "language.keep=100"]
    tasks = (ON_TEXT | ON_OPT).get(name, ())
    if tasks:
        sources = ", ".join(f"{{glue: {task}, source: {local() / task}}}" for task in tasks)
        overrides.append(f"language.tasks=[{sources}]")
    return load_sweep(FOLDER / f"{name}.yaml", overrides, storage=local() / "results")


@pytest.mark.parametrize("name", FILES)
def test_each_is_a_plan_at_the_papers_scale(name: str) -> None:
    sweep = loaded(name)
    assert len(make_plan(sweep).to_do) == len(sweep.runs)
    trained = [run for run in sweep.runs if run.trains]
    assert {run.seed for run in trained} == {0, 1, 2}
    for run in trained:
        assert run.pretrain.batch_size == 4096
        assert run.pretrain.steps >= 30_000
        assert len(run.milestones) >= 4
        if run.source is not None:
            continue  # see test_saturated_models_go_on_by_sgd
        algorithm = run.algorithm.encode()
        assert (algorithm["lr"], algorithm["betas"], algorithm["schedule"]) == (1e-3, [0.9, 0.98], "constant")
        assert algorithm["warmup_steps"] == (5000 if name in ON_TEXT else 1000)
        regularised = algorithm["weight_decay"] == 0.01
        assert run.model.encode()["dropout"] == (0.1 if regularised else 0.0)
        assert regularised or name == "tables-bookcorpus"
        language = sweep.language(run)
        # On text, BERT's vocabulary is the language's own.
        assert language.vocabulary_size == 30522 or run.model.encode()["vocabulary"] == "faithful"
        ours, papers = run.evaluations["trace"], run.evaluations["trace_paper"]
        assert isinstance(papers, TraceConfig)
        assert (papers.inputs, papers.vectors, papers.draws, papers.repeats) == (10_000, "label", 50, 5)
        # The trace is that of the loss that is trained.
        assert {ours.encode()["mask"], papers.mask} == {run.pretrain.mask}
        if name in ON_TEXT:
            assert run.evaluations["held_out_loss"].encode()["mask"] == 0.15
            assert run.evaluations["finetune"].encode()["seeds"] == 5
        else:
            assert run.evaluations["excess_loss"].encode()["sentences"] == 1_000_000
            probe = run.evaluations["probe"].encode()
            assert (probe["solver"], probe["projection"], probe["epochs"]) == ("adamw", None, 100)
            assert (probe["seeds"], probe["train"]) == (5, None if name in ON_OPT else 100_000)


@pytest.mark.parametrize("name", FILES)
def test_each_claims_something_about_what_it_measures(name: str) -> None:
    sweep = loaded(name)
    claims = sweep.questions.claims
    assert claims
    language = sweep.language(sweep.runs[0])
    labels = {run.algorithm.label for run in sweep.runs}
    for claim in claims:
        assert claim.about.task in {*language.tasks, *language.data_tasks}
        assert (claim.about.accuracy or "probe") in sweep.runs[0].evaluations
        if claim.algorithm is not None:
            for asked in (claim.algorithm.better, claim.algorithm.than):
                assert any(f"{label}-".startswith(f"{asked}-") for label in labels), asked
        if claim.beats is not None:
            assert "lookup_table" in labels


@pytest.mark.parametrize("name", FILES)
def test_each_says_what_the_paper_found_and_how_to_launch_it(name: str) -> None:
    comment = "".join(line for line in (FOLDER / f"{name}.yaml").open() if line.startswith("#"))
    assert re.search(r"# (Figure|Table)", comment)
    assert "The paper finds" in re.sub(r"\n# ?", " ", comment)
    assert f"raysweep launch sweeps/paper/{name}.yaml" in comment
    # A file that extends another one says for itself what the paper found.
    assert set(plain(name)["paper"]) == {"place", "question", "finding"}


def test_files_of_one_name_share_their_trainings_and_measurements() -> None:
    """A sweep finds in the ledger of its name all that it needs, or a part, once another one is done."""
    check_shared(loaded, SHARED, PARTLY)
    assert set(FILES) == {*SHARED, *(part for parts in SHARED.values() for part in parts)}


@pytest.mark.parametrize(("name", "first"), BY_SGD.items())
def test_saturated_models_go_on_by_sgd(name: str, first: str) -> None:
    """From the last checkpoint of the run of AdamW of the same model and seed, with the settings of B.2."""
    sweep = loaded(name)
    trained = {run.run_id: run for run in loaded(first).runs}
    going_on = [run for run in sweep.runs if run.source is not None]
    assert {run.seed for run in going_on} == {0, 1, 2}
    for run in going_on:
        assert run.source is not None
        source = trained[str(run.source.own)]
        assert (source.model, source.seed, source.algorithm.kind) == (run.model, run.seed, "adamw")
        assert (run.source.step, run.source.optimizer) == (source.milestones[-1], "fresh")
        algorithm = run.algorithm.encode()
        assert (algorithm["kind"], algorithm["lr"], algorithm["warmup"]) == ("sgd", 1e-3, 0.12)
        assert (algorithm["schedule"], algorithm["momentum"], algorithm["weight_decay"]) == ("constant", 0, 0)
        assert run.milestones == (0, *source.milestones)
        assert run.evaluations == sweep.run(source.run_id).evaluations
    plan = make_plan(sweep)
    assert [plan.counts[state] for state in ("new", "blocked")] == [3, 3]
    # Both figures of a language show the same runs.
    other = name.replace("fig4", "fig10") if "fig4" in name else name.replace("fig10", "fig4")
    assert [run.run_id for run in loaded(other).runs] == [run.run_id for run in sweep.runs]


def test_sizes_are_seen_in_the_papers_shape() -> None:
    """The smallest shape that holds Table 4, since the printed one holds no smaller model of the table."""
    for name in ("fig5-pcfg", "fig5-opt"):
        for run in loaded(name).runs:
            for key in ("trace", "trace_paper"):
                assert run.evaluations[key].encode()["enlarged_to"] == "1920/30/20/10240"
        assert loaded(name).notes == ()
    assert loaded("fig3b").notes == ()


def test_nothing_is_stated_twice() -> None:
    check_nothing_is_stated_twice(FILES)


def test_without_the_hub_the_error_says_where_else_to_take_it_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.getaddrinfo", _no_network)
    for name, message in (
        (
            "fig3c",
            r"fig3c.yaml:\d+:\d+: language.model: 'facebook/opt-125m' is no local folder.*give its folder",
        ),
        (
            "fig2c",
            r"openwebtext.yaml:\d+:\d+: language.source: .* is no local file.*name its files as source",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            load_sweep(FOLDER / f"{name}.yaml", storage=local() / "results")


def _no_network(*args: Any, **options: Any) -> Any:
    raise OSError("there is no network")
