"""`raysweep schema` and `kinds`: what a sweep file may say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator

from helpers.my_kinds.dice import DiceConfig
from raysweep import registry
from raysweep.cli.app import run
from raysweep.languages.base import LanguageConfig
from raysweep.languages.pcfg.config import DENSE_SYMBOLS
from raysweep.sweep.document import Mark, Problems
from raysweep.sweep.kinds import FAMILIES, names
from raysweep.sweep.reading import parse
from raysweep.sweep.schema import sweep_schema

ALL = [f"{family}.{kind}" for family, kinds in FAMILIES.items() for kind in kinds.kinds()]


def test_schema_is_json_on_standard_output(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == sweep_schema()
    assert printed.err == ""


def test_all_kinds_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kinds", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [f"{family}.{kind}" for family in FAMILIES for kind in found[family]] == ALL
    assert all(meaning for kinds in found.values() for meaning in kinds.values())
    assert list(found["section"]) == ["pretrain", "init_from", "seeds", "resources", "search", "claims"]
    assert run(["kinds"]) == 0
    shown = capsys.readouterr().out
    assert "  pcfg  " in shown
    assert "  trace  " in shown


@pytest.fixture(scope="module")
def facts() -> dict[str, dict[str, Any]]:
    """The facts about all kinds and sections, by FAMILY.KIND."""
    from raysweep.sweep.kinds import kind_facts

    return {f"{one.family}.{one.kind}": one.to_dict() for name in names() for one in kind_facts(name)}


def test_a_kind_has_the_fields_of_its_class(facts: dict[str, dict[str, Any]]) -> None:
    for name in ALL:
        family, _, kind = name.partition(".")
        fields = FAMILIES[family].get(kind).model_fields
        shown = {field["name"]: field for field in facts[name]["fields"]}
        assert list(shown) == [field for field in fields if field not in ("kind", "name")], name
        for field, found in shown.items():
            assert found["meaning"], f"{name}.{field}"
            assert found["type"], f"{name}.{field}"
            assert found["needed"] == fields[field].is_required(), f"{name}.{field}"


def test_meanings_name_values_as_a_sweep_file_does(facts: dict[str, dict[str, Any]]) -> None:
    text = json.dumps([facts, sweep_schema()])
    assert "; null: all." in text
    assert re.findall(r".{0,40}\b(?:None|True|False)\b", text) == []


def test_examples_keep_to_the_schema(facts: dict[str, dict[str, Any]]) -> None:
    schema = sweep_schema()
    for name, one in facts.items():
        problems = Problems()
        data = parse(f"extends: base.yaml\n{one['example']}", Mark("example", 1, 1), problems).plain
        assert not list(problems), name
        assert [error.message for error in Draft7Validator(schema).iter_errors(data)] == [], one["example"]
        assert "/tmp" not in one["example"], name


def test_seeds_that_are_left_out_are_the_seed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kinds", "seeds", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert [field["needed"] for field in found["fields"]] == [False, False, False]


def test_a_kind_is_printed_with_defaults_and_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kinds", "hmm"]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[0] == "language hmm"
    [line] = [line for line in lines if line.startswith("states ")]
    assert line.split(maxsplit=1)[1].split() == [
        "whole",
        "number",
        "≥",
        "1",
        "100",
        "Number",
        "of",
        "hidden",
        "states.",
    ]
    assert "language: {kind: hmm, seed: 1, states: 4" in printed.out
    assert printed.err == ""


def test_parts_of_a_kind_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kinds", "corpus", "--json"]) == 0
    [corpus] = json.loads(capsys.readouterr().out)
    assert [field["name"] for field in corpus["parts"]["tokenizer"]] == ["train", "vocabulary", "documents"]
    assert {"glue", "source", "text"} <= {field["name"] for field in corpus["parts"]["tasks"]}


def test_a_name_of_two_kinds_means_both(capsys: pytest.CaptureFixture[str]) -> None:
    for name, families in (("dyck", ["language", "evaluation"]), ("evaluation.dyck", ["evaluation"])):
        assert run(["kinds", name, "--json"]) == 0
        assert [one["family"] for one in json.loads(capsys.readouterr().out)] == families


def test_an_unknown_kind_is_suggested(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kinds", "tracee"]) == 2
    said = capsys.readouterr().err
    assert (
        said == "raysweep: KIND: unknown kind 'tracee' — did you mean 'trace'?; `raysweep kinds` lists them\n"
    )


class Silent(LanguageConfig):
    """A kind without an example."""

    #: Number of sides.
    sides: int = 6


def test_kinds_of_plug_ins_are_printed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(registry.languages, "_classes", dict(registry.languages._classes))
    registry.languages.register("dice", DiceConfig)
    registry.languages.register("silent", Silent)
    assert run(["kinds", "dice"]) == 0
    assert "language: {kind: dice, sides: 4, length: 3}" in capsys.readouterr().out
    assert run(["kinds", "silent"]) == 0
    assert "language: {kind: silent}" in capsys.readouterr().out


def test_a_list_in_a_meaning_has_a_line_for_each_item(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["kinds", "spectrum"]) == 0
    lines = capsys.readouterr().out.splitlines()
    [first] = [k for k, line in enumerate(lines) if line.startswith("- `spectrum/<matrix>/1`")]
    assert lines[first - 1] == ""
    assert lines[first + 1].startswith("- `spectrum/hessian/smallest`")


def test_meanings_say_numbers_and_no_names_of_constants(facts: dict[str, dict[str, Any]]) -> None:
    assert re.findall(r"`[A-Z]+_[A-Z_]+`", json.dumps([facts, sweep_schema()])) == []
    [told] = [f["meaning"] for f in facts["language.pcfg"]["fields"] if f["name"] == "nonterminals"]
    assert told == f"Symbols of a dense grammar (null: {DENSE_SYMBOLS})."
