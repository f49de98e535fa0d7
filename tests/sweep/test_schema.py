"""The JSON Schema of sweep files: what the loader accepts, and no wrong type or name that it refuses."""

from __future__ import annotations

import json
import re
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

import pytest
from jsonschema import Draft7Validator
from pydantic import ValidationError

from helpers.mutations import changed, file_of, good_files
from helpers.my_kinds.dice import DiceConfig
from helpers.reading import outcome
from raysweep import registry
from raysweep.sweep.document import Mark, Problems
from raysweep.sweep.fields import read_class
from raysweep.sweep.load import FIELDS
from raysweep.sweep.reading import parse, read_file
from raysweep.sweep.schema import as_text, sweep_schema
from raysweep.training import PretrainConfig

ROOT = Path(__file__).parents[2]
SCHEMA = sweep_schema()
VALIDATOR = Draft7Validator(SCHEMA)
#: A language alone is no sweep.
LANGUAGES = {ROOT / "sweeps" / "transfer" / "grammar.yaml"}
SWEEPS = sorted(
    {*(ROOT / "sweeps").rglob("*.yaml")} - LANGUAGES - {*(ROOT / "sweeps" / "clusters").iterdir()}
)

FAMILIES = (registry.languages, registry.models, registry.algorithms, registry.evaluations)
KINDS = {f"{family.family}-{kind}": family.get(kind) for family in FAMILIES for kind in family.kinds()}

SHAPES: list[Any] = [
    *(None, True, 0, -1, 0.5, "", "x", [], [None], [[]], [{}], ["x"], [0.5], {}, {"x": 1}, {"x": [None]}),
]


def plain(text: str) -> Any:
    """Return the data of a sweep file as it stands, without what it extends."""
    problems = Problems()
    found = parse(text, Mark("sweep", 1, 1), problems)
    assert not list(problems)
    return found.plain


def complaints(data: Any, schema: dict[str, Any] | None = None) -> list[str]:
    """Return what the schema says against data."""
    validator = VALIDATOR if schema is None else VALIDATOR.evolve(schema=schema | {"$defs": SCHEMA["$defs"]})
    return [f"{list(error.absolute_path)}: {error.message}" for error in validator.iter_errors(data)]


def unread(data: dict[str, Any], complaint: str) -> bool:
    """Return whether a complaint is about a value that no run has, because an axis stands in its place."""
    axes = data.get("axes") or {}
    return any(complaint.startswith(str(path.split("."))[:-1]) for path in axes)


def test_it_is_a_schema_and_has_all_fields_of_a_file() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(FIELDS)
    assert json.loads(as_text(SCHEMA)) == SCHEMA
    references = set(re.findall(r'"#/\$defs/([^"]+)"', json.dumps(SCHEMA)))
    assert references == set(SCHEMA["$defs"])


def test_the_committed_file_is_what_the_command_prints() -> None:
    # `raysweep schema > sweeps/raysweep.schema.json` renews it.
    assert (ROOT / "sweeps" / "raysweep.schema.json").read_text(encoding="utf-8") == as_text(SCHEMA) + "\n"


@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_our_sweeps_name_the_schema_and_keep_to_it(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert complaints(plain(text)) == []
    whole = read_file(path, Problems()).plain
    assert complaints(whole) == []
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named is not None
    assert (path.parent / named[1]).resolve() == ROOT / "sweeps" / "raysweep.schema.json"


def test_other_files_keep_to_it() -> None:
    for path in LANGUAGES:
        assert complaints(plain(path.read_text(encoding="utf-8")), {"$ref": "#/$defs/language"}) == []
    blocks = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    assert blocks
    for text in blocks:
        assert complaints(plain(text)) == []


@pytest.fixture(scope="module")
def sweeps(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return good_files(tmp_path_factory.mktemp("examples"))


def test_every_kind_keeps_to_it(sweeps: list[dict[str, Any]]) -> None:
    for sweep in sweeps:
        assert complaints(plain(file_of(sweep))) == [], file_of(sweep)


@pytest.mark.parametrize(
    "text",
    [
        "extends: base.yaml",
        "{extends: base.yaml, algorithm: {lr: 1e-3}, evaluate: {trace: null, mine: {inputs: 8}}}",
        "{extends: base.yaml, axes: {seed: 0..4, algorithm.lr: null}, language: {layers: 3}}",
        "{extends: base.yaml, axes: {seed: [0..2, 7], model: [{kind: lstm, shape: 8/1}]}}",
        "{extends: base.yaml, axes: {language.tokenizer.vocabulary: [100]}}",
        "{extends: base.yaml, zip: [{seeds.init: [0, 1], seeds: [{data: null}, {}]}], seeds: {init: null}}",
        "{extends: base.yaml, include: [{algorithm: {kind: lookup_table}}, {init_from: null, seed: 4}]}",
        "{extends: base.yaml, exclude: [{algorithm: {kind: sgd}, pretrain.steps: 10}], description: null}",
        "{extends: base.yaml, claims: [{beats: lookup_table}, {flatter: {task: A}}], evaluate: }",
        "{extends: base.yaml, pretrain: {milestones: null}, evaluate: {probe: {tasks: [6]}, trace: }}",
    ],
)
def test_files_of_every_form_keep_to_it(text: str) -> None:
    assert complaints(plain(text)) == []


def test_what_the_loader_accepts_it_accepts(sweeps: list[dict[str, Any]], tmp_path: Path) -> None:
    random, accepted = Random(16), 0
    for _ in range(150):
        data = changed(random.choice(sweeps), random)
        text = file_of(data)
        kind, _ = outcome(text, [], tmp_path)
        if kind == "accepted":
            accepted += 1
            found = [line for line in complaints(plain(text)) if not unread(plain(text), line)]
            assert found == [], text
    assert accepted > 15


WHOLE: dict[str, Any] = {
    "name": "whole",
    "description": "a sweep",
    "language": {"kind": "hmm", "states": 4, "vocabulary": 8, "length": 4, "blocks": 2, "tasks": [1]},
    "model": {"kind": "encoder", "shape": "8/1/1/16"},
    "algorithm": {"kind": "adamw", "lr": 0.001, "betas": [0.9, 0.99]},
    "pretrain": {"steps": 8, "batch_size": 4, "milestones": [4, 8]},
    "evaluate": {"trace": {"inputs": 64}, "mine": {"kind": "probe", "tasks": ["1"]}},
    "axes": {"algorithm.lr": [0.001, 0.002], "seed": [0, 1]},
    "zip": [{"pretrain.batch_size": [4, 8], "model.dropout": [0.0, 0.1]}],
    "exclude": [{"seed": 1}],
    "include": [{"algorithm": {"kind": "sgd"}}, {"seeds.init": 3}, {"algorithm": {"kind": "lookup_table"}}],
    "seeds": {"dropout": 3},
    "resources": {"workers": 1, "per_worker": {"CPU": 1}},
    "tolerance": 0.02,
    "claims": [{"flatter": {"task": "1"}}, {"beats": "lookup_table"}],
    "paper": {"place": "Figure 1", "question": "?", "finding": "!"},
}


def places(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value."""
    children = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, child in children for found in places(child, (*path, key)))]


def at(data: Any, path: tuple[Any, ...]) -> Any:
    """Return the value at a path."""
    for key in path:
        data = data[key]
    return data


UNKNOWN = [
    path for path in places(WHOLE) if isinstance(at(WHOLE, path), dict) and path[-1:] != ("per_worker",)
]
TYPED = [path for path in places(WHOLE) if path]


def refused_by_both(data: dict[str, Any], folder: Path) -> None:
    kind, said = outcome(file_of(data), [], folder)
    assert kind == "refused", said
    assert complaints(data), said


def test_the_file_that_is_spoilt_is_good(tmp_path: Path) -> None:
    kind, said = outcome(file_of(WHOLE), [], tmp_path)
    assert kind == "accepted", said
    assert complaints(WHOLE) == []


@pytest.mark.parametrize("path", UNKNOWN, ids=lambda path: ".".join(map(str, path)) or "top")
def test_an_unknown_field_is_refused_as_by_the_loader(path: tuple[Any, ...], tmp_path: Path) -> None:
    data = deepcopy(WHOLE)
    at(data, path)["misspelt"] = [1] if path[:1] in (("axes",), ("zip",)) else 1
    refused_by_both(data, tmp_path)


@pytest.mark.parametrize("path", TYPED, ids=lambda path: ".".join(map(str, path)))
def test_a_wrong_type_is_refused_as_by_the_loader(path: tuple[Any, ...], tmp_path: Path) -> None:
    data = deepcopy(WHOLE)
    old = at(data, path)
    wrong = 7 if isinstance(old, dict | list | str) else {"a": [True]}
    if path in {("evaluate", "mine", "tasks", 0), ("language", "tasks")}:
        wrong = 0.5
    at(data, path[:-1])[path[-1]] = wrong
    refused_by_both(data, tmp_path)


@pytest.mark.parametrize("section", ["name", "language", "model", "algorithm", "pretrain"])
def test_a_section_that_is_missing_is_refused_as_by_the_loader(section: str, tmp_path: Path) -> None:
    data = {
        key: WHOLE[key] for key in ("name", "language", "model", "algorithm", "pretrain") if key != section
    }
    refused_by_both(data, tmp_path)


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ("language", "kind"),
        ("model", "kind"),
        ("model", "shape"),
        ("pretrain", "steps"),
        ("algorithm", "kind"),
    ],
)
def test_a_field_that_is_missing_is_refused_as_by_the_loader(
    section: str, field: str, tmp_path: Path
) -> None:
    data = {key: deepcopy(WHOLE[key]) for key in ("name", "language", "model", "algorithm", "pretrain")}
    del data[section][field]
    refused_by_both(data, tmp_path)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"evaluate": {"tracee": {}}},
        {"evaluate": {"trace": {"kind": "trace"}}},
        {"evaluate": {"mine": {"kind": "trace", "name": "other"}}},
        {"evaluate": {"mine": {"kind": "tracee"}}},
        {"language": {"kind": "pcgf"}},
        {"axes": {"seed": 3}},
        {"axes": {"seed": "0-4"}},
        {"axes": {"seeds": [0]}},
        {"axes": {"evaluate.trace.inputs": [64]}},
        {"axes": {"algorithm.lr": [0.001, "quick"]}},
        {"seed": [0, 1]},
        {"claims": [{"beats": "guessing"}]},
        {"name": "a/b"},
        {"resources": {"max_concurrent": "all"}},
        {"exclude": [{}]},
    ],
    ids=json.dumps,
)
def test_a_wrong_name_is_refused_as_by_the_loader(spoilt: dict[str, Any], tmp_path: Path) -> None:
    refused_by_both(WHOLE | spoilt, tmp_path)


#: Errors of types, bounds and choices, which the schema knows.
PLAIN = {
    "extra_forbidden",
    "literal_error",
    "too_short",
    "too_long",
    "string_too_short",
    "string_pattern_mismatch",
}


@pytest.mark.parametrize("name", KINDS)
def test_fields_take_what_their_class_takes(name: str, tmp_path: Path) -> None:
    cls = KINDS[name]
    good = cls.example(tmp_path).encode()
    family = name.partition("-")[0]
    validator = VALIDATOR.evolve(schema={"$ref": f"#/$defs/{family}", "$defs": SCHEMA["$defs"]})
    assert list(validator.iter_errors(good)) == []
    for field in cls.model_fields.keys() - {"kind", "name"}:
        for value in SHAPES:
            data = good | {field: value}
            found = [error.message for error in validator.iter_errors(data)]
            kinds = faults(cls, data, field)
            if not kinds:
                assert found == [], f"{field}: {value!r}"
            elif all(kind in PLAIN or kind.endswith(("_type", "_than", "_equal")) for kind in kinds):
                assert found, f"{field}: {value!r}: {kinds}"


def faults(cls: Any, data: dict[str, Any], field: str) -> set[str]:
    """Return the types of the errors that a class finds; "another" where they are not in this field."""
    try:
        cls.decode(data)
    except ValidationError as error:
        mine = {details["type"] for details in error.errors() if details["loc"][:1] == (field,)}
        return mine or {"another"}
    return set()


def test_every_field_is_described() -> None:
    named = dict(SCHEMA["properties"])
    named |= {
        f"{name}.{field}": found
        for name, definition in SCHEMA["$defs"].items()
        for field, found in definition.get("properties", {}).items()
        if "$ref" not in found and field != "kind" and name not in ("axes", "point")
    }
    named |= {name: found for name, found in SCHEMA["$defs"].items() if "." in name}
    assert [name for name, found in named.items() if not found.get("description")] == []


def test_a_description_is_the_comment_or_the_sentence() -> None:
    fields = SCHEMA["$defs"]["PCFGConfig"]["properties"]
    assert fields["words"]["description"] == "Words of each symbol of the last layer."
    assert fields["words"]["default"] == 100
    seen = SCHEMA["$defs"]["pretrain"]["properties"]["replace"]["$ref"].rpartition("/")[2]
    assert SCHEMA["$defs"][seen]["description"].startswith("`replace` says what the model sees")


def test_a_kind_that_is_registered_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.languages, "_classes", dict(registry.languages._classes))
    registry.languages.register("dice", DiceConfig)
    made = sweep_schema()
    assert "dice" in made["$defs"]["language"]["properties"]["kind"]["enum"]
    validator = Draft7Validator(made)
    sweep = WHOLE | {"language": {"kind": "dice"}, "evaluate": {}, "axes": {"seed": [0]}}
    assert list(validator.iter_errors(sweep)) == []
    assert list(validator.iter_errors(sweep | {"language": {"kind": "dice", "sidez": 6}})) != []


def test_text_of_a_class_that_no_file_holds() -> None:
    for place in ("__main__:Config", "no_such_package.module:Config", "json:Missing", "sys:Config"):
        assert read_class(place).fields == {}
    assert list(read_class("raysweep.training.config:PretrainConfig").fields) == list(
        PretrainConfig.model_fields
    )
