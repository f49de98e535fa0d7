"""The kinds of each family, and the fields of one: type, default and meaning, with an example."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import asdict, dataclass, replace
from importlib import import_module
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ruamel.yaml import YAML

from raysweep import registry
from raysweep.errors import ConfigError
from raysweep.registry import Config, KindConfig, suggest
from raysweep.sweep.fields import SECTIONS, first_sentence, read_class

FAMILIES = {
    family.family: family
    for family in (registry.languages, registry.models, registry.algorithms, registry.evaluations)
}
#: Examples of sections, which have no `example` of their own.
_EXAMPLES = {
    "pretrain": "{steps: 2000, batch_size: 256, milestones: [500, 2000]}",
    "init_from": "{run: scaling/64-4-2-*-s0-*@2000}",
    "seeds": "{data: 0}",
    "resources": "{workers: 1, per_worker: {CPU: 1}}",
    "search": "{metric: excess_loss, samples: 8, space: {algorithm.lr: {loguniform: [1e-4, 1e-2]}}}",
    "claims": "[{flatter: {task: A}}, {beats: lookup_table}]",
}
_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true or false",
    "null": "null",
    "object": "mapping",
    "array": "list",
}


@dataclass(frozen=True)
class FieldFacts:
    """A field: its type in words, its default, and its meaning; `needed` where it has no default."""

    name: str
    type: str
    needed: bool
    default: Any
    meaning: str


@dataclass(frozen=True)
class KindFacts:
    """A kind of a family, or a section of one class.

    `parts` are the fields of mappings inside it, by the name of the field that holds them.  `example` is a
    part of a sweep file, "" where the kind gives none.
    """

    family: str
    kind: str
    meaning: str
    fields: tuple[FieldFacts, ...]
    parts: Mapping[str, tuple[FieldFacts, ...]]
    example: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def overview() -> dict[str, dict[str, str]]:
    """Return the first sentence about each kind, by family, and about each section."""
    kinds = {
        name: {kind: first_sentence(read_class(family.path(kind)).meaning) for kind in family.kinds()}
        for name, family in FAMILIES.items()
    }
    sections = {name: first_sentence(read_class(place).meaning) for name, place in SECTIONS.items()}
    return kinds | {"section": sections}


def names() -> dict[str, list[tuple[str, str]]]:
    """Return the family and the kind that each name means; `FAMILY.KIND` means one where two share a name."""
    found: dict[str, list[tuple[str, str]]] = {}
    for family, kinds in {**{f: r.kinds() for f, r in FAMILIES.items()}, "section": list(SECTIONS)}.items():
        for kind in kinds:
            found.setdefault(kind, []).append((family, kind))
    several = [meant for meant in found.values() if len(meant) > 1]
    return found | {f"{family}.{kind}": [(family, kind)] for meant in several for family, kind in meant}


def kind_facts(name: str) -> list[KindFacts]:
    """Return the facts about the kinds or the section that a name means.

    Raises `ConfigError` with the nearest name for an unknown one.
    """
    known = names()
    if name not in known:
        raise ConfigError(f"KIND: unknown kind '{name}'{suggest(name, known)}; `raysweep kinds` lists them")
    return [_facts(family, kind) for family, kind in known[name]]


def _facts(family: str, kind: str) -> KindFacts:
    from raysweep.sweep.schema import class_schema
    from raysweep.training.seeds import Seeds

    cls: type[Config]
    if family == "section":
        module, _, name = SECTIONS[kind].partition(":")
        cls = getattr(import_module(module), name)
    else:
        cls = FAMILIES[family].get(kind)
    schema = class_schema(cls)
    inner = schema.get("$defs", {})
    fields = _fields(schema, inner)
    if cls is Seeds:
        # In a file, `seed` stands for those that are left out.
        fields = tuple(replace(one, needed=False) for one in fields)
    parts = {
        name: _fields(inner[part], inner)
        for name, found in schema["properties"].items()
        for part in _references(found)
    }
    meaning = read_class(f"{cls.__module__}:{cls.__qualname__}").meaning
    return KindFacts(family, kind, meaning, fields, parts, _example(family, kind, cls))


def _fields(schema: Mapping[str, Any], inner: Mapping[str, Any]) -> tuple[FieldFacts, ...]:
    needed = schema.get("required", ())
    return tuple(
        FieldFacts(
            name, type_words(found), name in needed, found.get("default"), found.get("description", "")
        )
        for name, found in schema["properties"].items()
        # The key of an evaluation in its file is its name.
        if name != "kind" and not (name == "name" and "kind" in schema["properties"])
    )


def _references(schema: Any) -> list[str]:
    """Return the names of the definitions that a schema refers to."""
    if isinstance(schema, Mapping):
        own = [schema["$ref"].rpartition("/")[2]] if "$ref" in schema else []
        return own + [name for value in schema.values() for name in _references(value)]
    return [name for value in schema for name in _references(value)] if isinstance(schema, list) else []


def type_words(schema: Mapping[str, Any]) -> str:
    """Return the type that a JSON Schema asks for, in words.

    >>> type_words({"anyOf": [{"type": "integer", "minimum": 1}, {"type": "null"}]})
    'whole number ≥ 1 or null'
    >>> type_words({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1})
    'number > 0 and < 1'
    >>> type_words({"type": "array", "items": {"enum": ["a", "b"]}})
    'list of a | b'
    """
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(type_words, schema["anyOf"])))
    if "allOf" in schema:
        return type_words(schema["allOf"][0])
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "object")
    if kind == "array":
        items = schema.get("items", {})
        if isinstance(items, Sequence):
            return f"list of {len(items)}: {', '.join(map(type_words, items))}"
        return f"list of {type_words(items)}"
    bounds = [f"{sign} {schema[key]}" for key, sign in _BOUNDS.items() if key in schema]
    return f"{_TYPES[kind]} {' and '.join(bounds)}".rstrip()


def _example(family: str, kind: str, cls: type[Config]) -> str:
    if family == "section":
        return f"{kind}: {_EXAMPLES[kind]}"
    data: dict[str, Any] = {}
    # A kind of a plug-in may have no example, and then its fields speak for themselves.
    # Libraries tell the progress of what they write.
    with suppress(TypeError), TemporaryDirectory() as folder, redirect_stderr(StringIO()):
        data = _small(cls, Path(folder))
    if family == "evaluation":
        return _yaml({"evaluate": {kind: data}})
    return _yaml({family: {"kind": kind, **data}})


def _small(cls: Any, folder: Path) -> dict[str, Any]:
    """Return the example of a class without its defaults; files are named without their folder."""
    config: KindConfig = cls.example(folder)
    given = config.model_dump(mode="json", exclude_unset=True, exclude_defaults=True)
    return {
        name: str(value).removeprefix(f"{folder}/").replace(str(folder), name)
        if isinstance(value, str)
        else value
        for name, value in given.items()
        if name != "kind"
    }


def _yaml(data: Mapping[str, Any]) -> str:
    """Return data as YAML, each section a line."""
    yaml, out = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style, yaml.width = True, 10_000
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    ((section, value),) = data.items()
    yaml.dump(value, out)
    return f"{section}: {out.getvalue().strip()}"
