"""Sweep files: what they mean, and what is said of one that means nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_sweeps as tiny
from raysweep.errors import ConfigError
from raysweep.sweep import RunSpec, evaluation_identity, load_sweep, missing_now
from raysweep.sweep.document import Mark, Problems
from raysweep.sweep.missing import metrics_at
from raysweep.sweep.reading import parse
from raysweep.sweep.tidy import tidy


def plain(text: str) -> Any:
    problems = Problems()
    node = parse(text, Mark("f", 1, 1), problems)
    problems.raise_any()
    return node.plain


def errors(load: Any, text: str, *overrides: str, **options: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load(text, *overrides, **options)
    return str(caught.value).splitlines()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1.0e-3", 0.001),
        (".5", 0.5),
        ("-3", -3),
        ("0x1F", 31),
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("true", True),
        ("'1'", "1"),
        ('"true"', "true"),
        ("2024-01-02", "2024-01-02"),
        ("1_000", "1_000"),
        ("010", 10),
        ("64/1/2/256", "64/1/2/256"),
        ("[a, {b: ~}]", ["a", {"b": None}]),
        ("", None),
    ],
)
def test_values_mean_what_yaml_1_2_says(text: str, value: Any) -> None:
    found = plain(text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.filterwarnings("error")
def test_an_anchor_may_be_used_again() -> None:
    assert plain("a: &x 1\nb: &x 2\nc: *x") == {"a": 1, "b": 2, "c": 2}


def test_aliases_share_and_may_not_nest_without_end() -> None:
    assert plain("a: &x [1, 2]\nb: *x") == {"a": [1, 2], "b": [1, 2]}
    with pytest.raises(ConfigError, match="contains itself"):
        plain("a: &x [1, *x]")
    levels = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    levels += [f"a{k}: &a{k} [{', '.join([f'*a{k - 1}'] * 9)}]" for k in range(1, 9)]
    with pytest.raises(ConfigError, match="values"):
        plain("\n".join(levels))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [1, 2", "f:1:9: not valid YAML"),
        ("a: 1\nb: \x07", "f:2:4: not valid YAML"),
        ("a: 1\n--- \nb: 2\n", "f:2:1: not valid YAML"),
        (
            "a: !!python/object:os.system x",
            "f:1:4: a: tag '!!?.*' is not supported|f:1:4: a: tag 'tag:yaml.org",
        ),
        ("a: .nan", "f:1:4: a: .nan is not a finite number"),
        ("<<: {a: 1}", "merge keys"),
        ("? [a]\n: 1", "a key must be a plain word"),
    ],
)
def test_text_that_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plain(text)


def test_a_good_file(load: Any) -> None:
    sweep = load()
    assert sweep.name == "tiny"
    assert len(sweep.runs) == 4
    assert sweep.axes == ("model.shape", "seed")
    first = sweep.runs[0]
    assert first.axes == {"model.shape": "16/1/1/32", "seed": 0}
    assert first.milestones == (50, 100)
    assert first.run_id.startswith("16-1-1-32-adamw-s0-")
    assert [run.seed for run in sweep.runs] == [0, 1, 0, 1]


MALFORMED = [
    (
        "unknown field",
        "steps: 100,",
        "stepz: 100, steps: 100,",
        "5:12: pretrain.stepz: unknown field — did you mean 'steps'?",
    ),
    (
        "unknown top field",
        "name: tiny",
        "name: tiny\nlangage: 1",
        "2:1: langage: unknown field — did you mean 'language'?",
    ),
    (
        "wrong type",
        "batch_size: 8",
        "batch_size: eight",
        "5:36: pretrain.batch_size: 'eight' is not valid; it must be a whole number",
    ),
    (
        "fraction",
        "steps: 100",
        "steps: 100.5",
        "5:19: pretrain.steps: 100.5 is not valid; it must be a whole number",
    ),
    (
        "out of range",
        "batch_size: 8",
        "batch_size: 0",
        "5:36: pretrain.batch_size: 0 is not valid; it must be greater than 0",
    ),
    ("missing field", "batch_size: 8, ", "", "5:1: pretrain.batch_size: missing — add 'batch_size: ...'"),
    (
        "missing section",
        "algorithm: {kind: adamw, lr: 1e-3}\n",
        "",
        "1:1: algorithm: missing — add 'algorithm: {kind: adamw}'",
    ),
    ("section no mapping", "{kind: adamw, lr: 1e-3}", "adamw", "4:12: algorithm: 'adamw' is not a mapping"),
    ("missing kind", "kind: adamw, ", "", "4:1: algorithm.kind: missing — choose one of adamw"),
    (
        "unknown kind",
        "kind: adamw",
        "kind: adam",
        "4:19: algorithm.kind: unknown algorithm kind 'adam' — did you mean 'adamw'?",
    ),
    (
        "unknown evaluation",
        "counted:",
        "countd:",
        "6:12: evaluate.countd: unknown evaluation — did you mean 'counted'?",
    ),
    (
        "unknown evaluation kind",
        "{n: 3}",
        "{n: 3, kind: weighted}",
        "6:28: evaluate.counted.kind: remove it; the key above is the kind",
    ),
    (
        "named evaluation",
        "counted: {n: 3}",
        "more: {n: 3, kind: countd}",
        "6:31: evaluate.more.kind: unknown evaluation — did you mean 'counted'?",
    ),
    (
        "evaluation's name",
        "counted: {n: 3}",
        "more/than: {n: 3, kind: counted}",
        "6:12: evaluate.more/than: 'more/than' is not a name; use a letter, then letters, digits and '_'",
    ),
    (
        "evaluation named twice",
        "{n: 3}",
        "{n: 3, name: more}",
        "6:28: evaluate.counted.name: remove it; the key above is the name",
    ),
    ("evaluation field", "{n: 3}", "{m: 3}", "6:22: evaluate.counted.m: unknown field"),
    (
        "evaluation misfit",
        "{n: 3}",
        "{tasks: ['2', X]}",
        "6:35: evaluate.counted.tasks[1]: 'X' is no task of the language; it has 2",
    ),
    (
        "duplicate key",
        "steps: 100,",
        "steps: 100, steps: 200,",
        "5:24: pretrain.steps: key written twice (first at line 5)",
    ),
    ("heads", "16/1/1/32", "16/3/1/32", "3:31: model.shape: '16/3/1/32': 3 heads do not divide the width 16"),
    ("milestone", "[50, 100]", "[50, 200]", "5:51: pretrain.milestones: 200 lies past the last step, 100"),
    ("bad name", "name: tiny", "name: ../up", "1:7: name: '../up' is not a folder name"),
    ("no name", "name: tiny\n", "", "1:1: name: missing"),
    (
        "missing base",
        "name: tiny",
        "name: tiny\nextends: nothing.yaml",
        "2:10: extends: no such file: nothing.yaml",
    ),
    (
        "language",
        "blocks: 2",
        "blocks: 9",
        "2:68: language.blocks: 9 blocks need at least as many states, not 4",
    ),
    ("seed", "name: tiny", "name: tiny\nseed: -1", "2:7: seed: -1 is not a whole number of at least 0"),
    (
        "seed bool",
        "name: tiny",
        "name: tiny\nseed: true",
        "2:7: seed: true is not a whole number of at least 0",
    ),
    (
        "resources",
        "name: tiny",
        "name: tiny\nresources: {worker: 2}",
        "2:13: resources.worker: unknown field — did you mean 'workers'?",
    ),
    (
        "resources value",
        "name: tiny",
        "name: tiny\nresources: {max_concurrent: some}",
        "2:29: resources.max_concurrent: 'some' is not valid; it must be 'auto' or a whole number",
    ),
    (
        "sharding alone",
        "name: tiny",
        "name: tiny\nresources: {sharding: full}",
        "2:23: resources.sharding: 'full' shares weights out over workers; use workers: 2 or more",
    ),
    (
        "sharding in uneven groups",
        "name: tiny",
        "name: tiny\nresources: {workers: 4, sharding: 3}",
        "2:35: resources.sharding: 4 workers make no groups of 3; use 'full', or a number that divides the "
        "workers",
    ),
    (
        "more workers at least than at most",
        "name: tiny",
        "name: tiny\nresources: {workers: 2, min_workers: 3}",
        "2:38: resources.min_workers: 3 is more than the 2 workers",
    ),
    (
        "more workers than sentences",
        "name: tiny",
        "name: tiny\nresources: {workers: 9}",
        "6:36: pretrain.batch_size: 8 sentences do not give each of 9 workers one; use at least 9, or fewer "
        "workers",
    ),
    (
        "workers without a half",
        "{kind: adamw, lr: 1e-3}",
        "{kind: sam, rho: 0.05}\nresources: {workers: 5}",
        "6:36: pretrain.batch_size: 8 sentences do not give each of 5 workers one of either half, as the "
        "algorithm needs; use at least 10, or fewer workers",
    ),
    (
        "parts that some workers have no sentences for",
        "batch_size: 8, milestones: [50, 100]}",
        "batch_size: 8, micro_batch: 1}\nresources: {workers: 4, min_workers: 3, sharding: full}",
        "5:52: pretrain.micro_batch: 1 makes more parts than some of the 3 workers have sentences; use at "
        "least 2, or a batch_size that 3 divides",
    ),
    (
        "groups of workers that come and go",
        "name: tiny",
        "name: tiny\nresources: {workers: 4, min_workers: 2, sharding: 2}",
        "2:38: resources.min_workers: workers that come and go make no groups of one size; use sharding: "
        "full or none",
    ),
    (
        "lanes of workers that come and go",
        "name: tiny",
        "name: tiny\nresources: {workers: 4, min_workers: 2, engine: lanes}",
        "2:38: resources.min_workers: lanes keep all of their workers; use engine: nested",
    ),
    (
        "a look for workers that are always there",
        "name: tiny",
        "name: tiny\nresources: {workers: 4, resize_every: 60}",
        "2:39: resources.resize_every: a run without min_workers keeps all of its workers; add min_workers: "
        "1, or leave this out",
    ),
    (
        "resource that no node has",
        "name: tiny",
        "name: tiny\nresources: {per_worker: {gpus: 1}}",
        "2:32: resources.per_worker.gpus: no resource of Ray has the name 'gpus'; did you mean 'GPU'?",
    ),
    (
        "part of a GPU beside a whole one",
        "name: tiny",
        "name: tiny\nresources: {per_worker: {GPU: 1.5}}",
        "2:25: resources.per_worker: GPU: 1.5: Ray gives whole GPUs, or a part of one; write 2 or 0.5",
    ),
    (
        "kind in capitals",
        "kind: hmm",
        "kind: HMM",
        "2:18: language.kind: unknown language kind 'HMM' — did you mean 'hmm'?",
    ),
    (
        "list too short",
        "lr: 1e-3",
        "betas: [0.9]",
        "4:33: algorithm.betas: [0.9] is not valid; it must be at least 2 long",
    ),
    (
        "field like no other",
        "lr: 1e-3",
        "learning_rate: 1e-3",
        "4:26: algorithm.learning_rate: unknown field — known: betas, clip_norm, ema, eps, lr,",
    ),
    (
        "field a little like another",
        "{kind: adamw, lr: 1e-3}",
        "{kind: sgd, betas: 1e-3}",
        "4:24: algorithm.betas: unknown field — known: clip_norm, ema, lr, momentum,",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), [m[1:] for m in MALFORMED], ids=[m[0] for m in MALFORMED])
def test_one_mistake_is_named_where_it_stands(load: Any, old: str, new: str, message: str) -> None:
    assert old in tiny.BASE
    found = errors(load, tiny.BASE.replace(old, new, 1))
    assert len(found) == 1, found
    assert found[0].startswith("s.yaml:" + message)


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        ("axes: {seed: []}", "7:14: axes.seed: an axis without values makes no runs"),
        ("axes: {seed: 3}", "7:14: axes.seed: 3 is not a list of values"),
        ("axes: {sed: [1]}", "7:8: axes.sed: unknown field — did you mean 'seed'?"),
        ("axes: {seed.x: [1]}", "7:8: axes.seed.x: 'seed.x' is not a path"),
        (
            "axes: {evaluate.counted.n: [1]}",
            "7:8: axes.evaluate.counted.n: 'evaluate' is the same for all runs",
        ),
        ("axes: {model.shap: [a]}", "7:8: model.shap: unknown field — did you mean 'shape'?"),
        ("axes: {model.shape: [16/1/1/32, 16/5/1/32]}", "7:33: model.shape: '16/5/1/32': 5 heads"),
        ("axes: {pretrain.steps: [100, 80]}", "5:51: pretrain.milestones: 100 lies past the last step, 80"),
        ("axes: {seed: [0, 99999999999999999999]}", "7:18: axes.seed[1]: 20 digits are too many"),
        ("axes: {algorithm.lr: [1e-3, 0.001]}", "7:29: axes.algorithm.lr: 0.001 is listed twice"),
        ("axes: {algorithm: [{lr: 1}, {kind: sdg}]}", "7:36: algorithm.kind: unknown algorithm kind 'sdg'"),
        ("axes: [1]", "7:7: axes: must be a mapping"),
        ("axes: {seed: [1]}\nzip: [{seed: [2]}]", "8:8: zip[0].seed: already an axis at s.yaml:7:8"),
        (
            "zip: [{seed: [1, 2], model.dropout: [0.0]}]",
            "7:7: zip[0]: axes that walk together need equally many",
        ),
        ("zip: {seed: [1]}", "7:6: zip: must be a list of mappings"),
        ("exclude: [{seed: 5}]", "7:11: exclude[0]: matches no run"),
        ("exclude: [{sede: 5}]", "7:12: exclude[0].sede: unknown field — did you mean 'seed'?"),
        ("seed: 5\nexclude: [{seed: 5}]", "8:1: exclude: drops every run"),
        ("include: [{modl: {}}]", "7:12: include[0].modl: unknown field — did you mean 'model'?"),
        ("include: [{model: {dropout: 2}}]", "7:29: model.dropout: 2 is not valid; it must be less than 1"),
    ],
)
def test_a_mistake_in_the_grid(load: Any, axes: str, message: str) -> None:
    found = errors(load, tiny.BASE + axes)
    assert len(found) == 1, found
    assert found[0].startswith("s.yaml:" + message)


def test_a_grid_too_large_is_refused_without_being_built(load: Any) -> None:
    seeds = ", ".join(map(str, range(400)))
    text = tiny.BASE + f"axes:\n  seed: [{seeds}]\n  algorithm.warmup_steps: [{seeds}]\n"
    assert "160,000 grid points are more than 100,000" in errors(load, text)[0]


def test_all_mistakes_are_said_at_once(load: Any) -> None:
    text = (
        tiny.BASE.replace("16/1/1/32", "16/3/1/32").replace("steps: 100", "step: 100, steps: 100")
        + "axes: {seed: [], algorithm.lr: [fast]}\nfoo: 1\nfoo: 2\n"
    )
    found = errors(load, text, "pretrain.batch_siz=3")
    assert [line.split(": ")[0] for line in found] == [
        "--set pretrain.batch_siz=3",
        "s.yaml:3:31",
        "s.yaml:5:12",
        "s.yaml:7:14",
        "s.yaml:7:33",
        "s.yaml:8:1",
        "s.yaml:9:1",
    ]


def test_a_faulty_axis_does_not_make_its_field_missing(load: Any) -> None:
    text = tiny.BASE.replace(", shape: 16/1/1/32", "") + "axes: {model.shape: []}"
    assert len(errors(load, text)) == 1


def test_missing_file_and_file_without_mapping(load: Any, tmp_path: Path) -> None:
    (tmp_path / "scaling.yaml").write_text("- 1\n")
    with pytest.raises(ConfigError, match=r"scalin.yaml: no such file — did you mean 'scaling.yaml'\?"):
        load_sweep("scalin.yaml")
    with pytest.raises(ConfigError, match=r"other.yaml: no such file$"):
        load_sweep("other.yaml")
    with pytest.raises(ConfigError, match=r": is a folder; name a sweep file"):
        load_sweep(tmp_path)
    with pytest.raises(ConfigError, match=r"scaling.yaml:1:1: a sweep file is a mapping"):
        load_sweep("scaling.yaml")
    (tmp_path / "empty.yaml").write_text("")
    with pytest.raises(ConfigError, match="a sweep file is a mapping"):
        load_sweep("empty.yaml")
    for content in (b"name: \xff", b"\x7fELF\x02\0\0\0", bytes(range(256))):
        (tmp_path / "binary.yaml").write_bytes(content)
        with pytest.raises(ConfigError) as caught:
            load_sweep("binary.yaml")
        assert str(caught.value) == "binary.yaml: is not a text file in UTF-8; name a sweep file (YAML)"


GRAMMAR = "S -> A A [0.6]\nS -> A S [{p}]\nA -> 'x' [0.5]\nA -> 'y' [0.5]\n"


def grammar_file(path: str) -> str:
    language = f"language: {{kind: pcfg, structure: file, path: {path}, max_length: 4}}"
    lines = tiny.BASE.splitlines()
    return "\n".join([lines[0], language, *lines[2:5]]) + "\n"


def test_a_grammar_whose_rules_do_not_sum_to_one_is_named_at_its_language(load: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text(GRAMMAR.format(p=0.5))
    found = errors(load, grammar_file("rules.txt"))
    assert len(found) == 1, found
    assert found[0].startswith("s.yaml:2:1: language: ")
    assert "sum" in found[0]


def test_a_missing_grammar_is_named_at_its_path(load: Any) -> None:
    [found] = errors(load, grammar_file("rules.txt"))
    assert found.startswith("s.yaml:2:47: language.path: no such file: rules.txt")


def test_the_place_of_a_grammar_is_no_part_of_the_identity(load: Any, tmp_path: Path) -> None:
    (tmp_path / "rules.txt").write_text(GRAMMAR.format(p=0.4))
    here = load(grammar_file("rules.txt")).runs[0]
    (tmp_path / "sub").mkdir()
    (tmp_path / "rules.txt").rename(tmp_path / "sub" / "moved.txt")
    there = load(grammar_file("moved.txt"), name="sub/s.yaml").runs[0]
    assert there.run_id == here.run_id
    (tmp_path / "sub" / "moved.txt").write_text(
        GRAMMAR.replace("0.5", "0.25", 1).replace("0.5", "0.75").format(p=0.4)
    )
    assert load(grammar_file("moved.txt"), name="sub/s.yaml").runs[0].run_id != here.run_id


def test_extends_lays_a_file_on_another(load: Any, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(tiny.BASE + tiny.AXES)
    text = "extends: base.yaml\nname: child\nmodel: {dropout: 0.0}\nalgorithm: {kind: lookup_table}\n"
    sweep = load(text + "axes: {seed: [7, 8]}\n")
    assert sweep.name == "child"
    assert sweep.axes == ("model.shape", "seed")
    assert not sweep.runs[0].trains
    sweep = load(text.replace("algorithm: {kind: lookup_table}\n", ""))
    assert {run.model.dropout for run in sweep.runs} == {0.0}
    assert {run.algorithm.lr for run in sweep.runs} == {1e-3}
    (tmp_path / "base.yaml").write_text(tiny.BASE.replace("batch_size: 8", "batch: 8"))
    assert errors(load, text)[0].startswith("base.yaml:5:24: pretrain.batch: unknown field")


def test_files_that_extend_one_another_are_refused(load: Any, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("extends: s.yaml\n")
    found = errors(load, "extends: a.yaml\n")
    assert "in a circle: s.yaml -> a.yaml -> s.yaml" in found[0]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("modl.shape=1", "modl.shape: unknown field — did you mean 'model'?"),
        ("pretrain.step=1", "pretrain.step: unknown field — did you mean 'steps'?"),
        ("seed=3", "seed: is an axis of this sweep; write --set axes.seed=[3]"),
        ("axes.sed=[3]", "axes.sed: unknown field — did you mean 'seed'?"),
        ("extends=x.yaml", "extends: cannot be overridden"),
        ("steps", "not of the form a.b=c"),
        ("pretrain..steps=3", "not of the form a.b=c"),
        ("pretrain.steps=", "pretrain.steps: no value"),
        ("pretrain.steps=[1", "pretrain.steps: not valid YAML"),
        ("pretrain.batch_size=many", "pretrain.batch_size: 'many' is not valid"),
        (
            "pretrain.batch_size=1e+18",
            "1e+18 is not valid; it must be a whole number, e.g. 100, and with an exponent at most 9e+15; "
            "write larger ones in digits",
        ),
        (
            "axes.model.shape=[[64, 4, 2, 256]]",
            "model.shape: [64, 4, 2, 256] is not valid; it must be text, e.g. 64/4/2/256",
        ),
        ("pretrain.steps=80", "pretrain.milestones: 100 lies past the last step, 80"),
    ],
)
def test_overrides_that_are_wrong(load: Any, override: str, message: str) -> None:
    found = errors(load, tiny.BASE + tiny.AXES, override)
    assert len(found) == 1
    assert message in found[0]
    assert found[0].startswith((f"--set {override}: ", "s.yaml:5:51"))


def test_overrides_are_yaml_and_the_last_one_wins(load: Any) -> None:
    text = tiny.BASE + tiny.AXES
    overrides = [
        "algorithm={kind: adamw, lr: 1e-2}",
        "algorithm.warmup_steps=5",
        "axes.seed=[4]",
        "name=other",
    ]
    sweep = load(text, *overrides, "axes.model.shape=[8/1/1/8]", "algorithm.warmup_steps=6")
    assert [run.seed for run in sweep.runs] == [4]
    assert sweep.runs[0].algorithm.lr == 0.01
    assert sweep.runs[0].algorithm.warmup_steps == 6
    assert sweep.name == "other"
    assert sweep.runs[0].axes["model.shape"] == "8/1/1/8"


def test_an_override_takes_the_place_of_what_was_there(load: Any) -> None:
    text = tiny.BASE.replace("{counted: {n: 3}}", "{counted: {n: 3}, weighted: {n: 2}}")
    (run,) = load(text, "evaluate={counted: {}}", "language.tasks=[1, 2]").runs
    assert list(run.evaluations) == ["counted"]
    assert run.evaluations["counted"].n == 1
    assert run.language.tasks == (1, 2)
    assert run.language.states == 4


def test_storage(load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert load().directory == tmp_path / "results" / "tiny"
    monkeypatch.setenv("RAYSWEEP_STORAGE", str(tmp_path / "elsewhere"))
    assert load().directory == tmp_path / "elsewhere" / "tiny"
    assert load(storage="there").storage == tmp_path / "there"
    assert str(load(storage="s3://bucket/results").directory) == "s3://bucket/results/tiny"
    with pytest.raises(ConfigError, match="results need a folder, or an object store that creates"):
        load(storage="ftp://host/results")


def test_sweeps_need_neither_ray_nor_mlflow() -> None:
    code = "import sys, raysweep.sweep; sys.exit('ray' in sys.modules or 'mlflow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_two_evaluations_of_one_kind(load: Any) -> None:
    """The second has a name; each has records, arrays and metrics of its own, whatever its settings."""
    text = tiny.BASE.replace("{counted: {n: 3}}", "{counted: {n: 3}, twice: {kind: counted, n: 3}}")
    sweep = load(text)
    (spec,) = sweep.runs
    assert list(spec.evaluations) == ["counted", "twice"]
    plain, named = spec.evaluations.values()
    assert (plain.key, named.key, named.kind) == ("counted", "twice", "counted")
    # A name is no part of what is measured, and an evaluation without one is what it was.
    assert evaluation_identity(plain) == evaluation_identity(named)
    assert "name" not in {**plain.encode(), **named.content()}
    assert RunSpec.decode(spec.encode()) == spec
    run = sweep.ledger().run(spec)
    for step in spec.milestones:
        tiny.checkpoint(run, step)
    run.record_evaluation(50, plain, plain.metrics([]), seconds=1.0)
    assert missing_now(run, spec).evaluations == ((50, "twice"), (100, "counted"), (100, "twice"))
    run.record_evaluation(50, named, named.metrics([]), seconds=1.0)
    assert [metric.name for metric in metrics_at(run, spec, 50)] == ["count", "twice/count"]
    assert sorted(tidy(sweep.ledger(), sweep)["metric"]) == ["count", "twice/count"]
    assert [record.kind for record in run.evaluations()] == ["counted", "twice"]
