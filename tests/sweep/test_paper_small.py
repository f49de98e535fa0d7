"""The small sweeps of the paper's figures and tables: each asks what its figure asks, of enough runs.

Text and model that some of them read are made here, smaller, by the commands that their heads name.
"""

from __future__ import annotations

import functools
import math
import re
import shlex
import tempfile
from pathlib import Path

import pytest

from helpers import local_models
from helpers.paper_files import FOLDER, check_nothing_is_stated_twice, check_shared, plain
from raysweep.cli.app import run
from raysweep.sweep import Sweep, load_sweep, make_plan

FILES = sorted(path.stem for path in FOLDER.glob("*-small.yaml"))
#: Files with the runs of others, or with some of them, and these others.
SHARED = {
    "fig1-small": (),
    "fig3a-small": (
        "fig2a-small", "fig4-pcfg-small", "fig5-pcfg-small", "fig8-pcfg-small",
        "fig10-pcfg-small", "table1-pcfg-small", "table2-pcfg-small",
    ),
    "fig3b-small": ("fig4-hmm-small", "fig8-hmm-small", "fig10-hmm-small"),
    "fig3c-small": ("fig2b-small", "fig5-opt-small", "fig8-opt-small"),
    "fig2c-small": (),
    "tables-bookcorpus-small": (),
}  # fmt: skip
#: Runs in common where not all are: those of one size, those of AdamW at one size, and the look-up table.
PARTLY = {"fig2a-small": 5, "fig2b-small": 4, "table1-pcfg-small": 5, "table2-pcfg-small": 5}
#: Files whose models go on by SGD from runs of AdamW.
BY_SGD = ("fig4-pcfg-small", "fig10-pcfg-small", "fig4-hmm-small", "fig10-hmm-small")
PARTLY |= dict.fromkeys(BY_SGD, 2)
#: Files on text, and on text that a causal LM writes.
ON_TEXT = ("fig2c-small", "tables-bookcorpus-small")
ON_OPT = ("fig3c-small", "fig2b-small", "fig5-opt-small", "fig8-opt-small")
#: Tasks of the paper, and those that stand for them on text and in a shorter sentence.
TASKS = {"sst2": "A", "qnli": "B", "rte": "C", "6": "4", "10": "6"}


@functools.cache
def text() -> Path:
    """Return a folder with the text and the tables that the files on text read."""
    return made("text", "--sentences", "4000")


@functools.cache
def opt() -> Path:
    """Return a folder with the causal LM whose text others are on, hardly trained."""
    return made("model", "--sentences", "500")


def made(kind: str, *sizes: str) -> Path:
    """Return the folder that `raysweep language KIND` makes, as the heads say, but for its size."""
    named = {line for name in FILES for line in commands(name) if f" language {kind} " in line}
    [words] = [shlex.split(line) for line in named]
    assert words[:3] == ["raysweep", "language", kind]
    folder = Path(tempfile.mkdtemp(dir=local_models.folder())) / Path(words[words.index("-o") + 1]).name
    assert words[3:] == ["sweeps/paper/fig1-small.yaml", "-o", f"sweeps/paper/{folder.name}"]
    assert run(["language", kind, str(FOLDER / "fig1-small.yaml"), "-o", str(folder), *sizes]) == 0
    return folder


@functools.cache
def loaded(name: str) -> Sweep:
    overrides = []
    if name in ON_TEXT + ON_OPT:
        written = plain("fig3c-small" if name in ON_OPT else name)["language"]
        assert {task["source"] for task in written["tasks"]} <= {f"./text-small/{task}" for task in "ABC"}
        tasks = [
            f"{{name: {task['name']}, source: {text() / task['name']}, text: sentence}}"
            for task in written["tasks"]
        ]
        overrides = [f"language.tasks=[{', '.join(tasks)}]"]
        if name in ON_OPT:
            assert written["model"] == "./opt-small"
            overrides.append(f"language.model={opt()}")
        else:
            assert written.get("source", "./text-small/text.txt") == "./text-small/text.txt"
            overrides.append(f"language.source={text() / 'text.txt'}")
    return load_sweep(FOLDER / f"{name}.yaml", overrides, storage=local_models.folder() / "results")


def comment(name: str) -> str:
    """Return the comments of a file, without the line that names its schema to an editor."""
    _, *lines = (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines(keepends=True)
    return "".join(line for line in lines if line.startswith("#"))


def commands(name: str) -> list[str]:
    """Return the commands in the head of a file."""
    return re.findall(r"^#   (raysweep .+)$", comment(name), re.MULTILINE)


def test_every_figure_has_a_small_sweep() -> None:
    figures = {path.stem for path in FOLDER.glob("*.yaml") if not path.stem.endswith("-small")}
    assert {f"{figure}-small" for figure in figures} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_each_is_a_plan_of_enough_runs(name: str) -> None:
    sweep = loaded(name)
    plan = make_plan(sweep)
    assert len(plan.to_do) == len(sweep.runs)
    assert sweep.notes == ()
    trained = [spec for spec in sweep.runs if spec.trains]
    configurations = {(spec.model.label, spec.algorithm.label, spec.pretrain.sentences) for spec in trained}
    seeds = {spec.seed for spec in trained}
    assert len(seeds) >= 2
    # A correlation has as many independent pieces as there are configurations.
    if name == "fig1-small":
        # Each has a seed of its own at its size, and all together give an interval of ±0.3.
        assert len(configurations) == len(trained) == len({(s.model.label, s.seed) for s in trained})
        assert independent(0.3) <= len(trained) <= 48
    else:
        assert 12 <= len(trained) <= 24
        asked = [claim.flatter for claim in sweep.questions.claims or () if claim.flatter is not None]
        correlated = any(flatter.level != "steps" for flatter in asked)
        assert len(configurations) >= (6 if correlated else 2)
    # Three are the least for an interval.
    assert len(configurations) >= 3 or name != "fig2c-small"
    assert all(len(spec.milestones) >= 4 for spec in trained)


def independent(margin: float) -> int:
    """Return how many independent pairs give a correlation near 0 a 95 % interval of ± `margin`."""
    return math.ceil((1.96 / math.atanh(margin)) ** 2 + 3)


@pytest.mark.parametrize("name", FILES)
def test_each_asks_what_its_figure_asks(name: str) -> None:
    """Tolerances may differ, because losses do."""
    asked = [
        {kind: {key: value for key, value in about.items() if key not in ("tolerance", "than")}}
        for claim in plain(name.removesuffix("-small"))["claims"]
        for kind, about in claim.items()
    ]
    own = [
        {kind: {key: value for key, value in about.items() if key not in ("tolerance", "than")}}
        for claim in plain(name)["claims"]
        for kind, about in claim.items()
    ]
    for claim in asked:
        for about in claim.values():
            about["task"] = TASKS.get(about["task"], about["task"])
    assert own == asked


@pytest.mark.parametrize("name", FILES)
def test_each_says_what_the_paper_found_how_it_was_chosen_and_how_to_launch_it(name: str) -> None:
    said = re.sub(r"\n# ?", " ", comment(name))
    assert re.match(r"# (Figures?|Tables?) .*, small: ", said)
    assert "The paper finds" in said.replace("  ", " ")
    assert f"raysweep launch sweeps/paper/{name}.yaml" in commands(name)
    parent = plain(name)["extends"].removesuffix(".yaml") if "extends" in plain(name) else None
    if "language" in plain(name):
        assert "Headroom" in said
        assert "Saturation" in said
        assert re.search(r"takes about \d+ minutes on two cores", said)
    else:
        assert f"{parent}.yaml" in said


@pytest.mark.parametrize("name", BY_SGD)
def test_saturated_models_go_on_by_sgd(name: str) -> None:
    """From the last checkpoint of AdamW of the same model and seed; weights are averaged in both."""
    sweep = loaded(name)
    trained = {spec.run_id: spec for spec in sweep.runs}
    going_on = [spec for spec in sweep.runs if spec.source is not None]
    assert len(going_on) == len(sweep.runs) // 2
    for spec in going_on:
        assert spec.source is not None
        source = trained[str(spec.source.own)]
        assert (source.model, source.seed, source.algorithm.kind) == (spec.model, spec.seed, "adamw")
        assert (spec.source.step, spec.source.optimizer) == (source.milestones[-1], "fresh")
        algorithm = spec.algorithm.encode()
        assert (algorithm["kind"], algorithm["warmup"], algorithm["momentum"]) == ("sgd", 0.12, 0)
        assert algorithm["ema"] == source.algorithm.encode()["ema"]
        assert spec.milestones[0] == 0
        assert spec.evaluations == source.evaluations


def test_files_of_one_name_share_their_trainings_and_measurements() -> None:
    check_shared(loaded, SHARED, PARTLY)
    assert set(FILES) == {*SHARED, *(part for parts in SHARED.values() for part in parts)}
    assert all(loaded(whole).name.endswith("-small") for whole in SHARED)
    # The tables share all runs with each other.
    assert {s.run_id for s in loaded("table1-pcfg-small").runs} == {
        s.run_id for s in loaded("table2-pcfg-small").runs
    }


def test_nothing_is_stated_twice() -> None:
    check_nothing_is_stated_twice(FILES)
