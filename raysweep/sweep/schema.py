"""The JSON Schema of sweep files, for editors and other programs.

It is made of the configuration classes in the registry, plug-ins included, and of their descriptions
(`raysweep.sweep.fields`).  It refuses what the loader refuses for its type, its bounds or an unknown name.
Checks of several fields, files and languages are the loader's alone.  It accepts all that the loader accepts,
but for a wrong value in a place that an axis sets for every run.

It is written in draft 7, which editors know.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue, models_json_schema
from pydantic_core.core_schema import ModelSchema

from raysweep import registry
from raysweep.registry import Config, Registry
from raysweep.sweep.claims import Questions
from raysweep.sweep.fields import read_class
from raysweep.sweep.keeping import KEEPS
from raysweep.sweep.resources import Resources
from raysweep.sweep.search import Search
from raysweep.training.config import PretrainConfig
from raysweep.training.seeds import Seeds
from raysweep.training.start import InitFrom

Schema = dict[str, Any]

DRAFT = "http://json-schema.org/draft-07/schema#"

_FAMILIES: dict[str, Registry[Any]] = {
    "language": registry.languages,
    "model": registry.models,
    "algorithm": registry.algorithms,
}
_SINGLE: dict[str, type[Config]] = {"pretrain": PretrainConfig, "init_from": InitFrom, "seeds": Seeds}
#: The sections that a run cannot do without.
_NEEDED = ("language", "model", "algorithm", "pretrain")

_RANGE = r"^[-+]?[0-9]{1,18}\.\.[-+]?[0-9]{1,18}$"
_NULL: Schema = {"type": "null"}
_TEXT: Schema = {"type": "string", "minLength": 1}

MEANING = {
    "name": "Name of the sweep, and of the folder of its results.",
    "description": "The sweep in a few words, for its report.",
    "extends": "Another sweep file, which this one is laid on; its place starts from this file's folder.",
    "language": "The language of the text.",
    "model": "The model that is trained.",
    "algorithm": "The algorithm that trains it, or that stands in the place of a trained model.",
    "pretrain": "Pre-training: steps, batches and milestones.",
    "init_from": "The state that training starts from, in place of drawn weights.",
    "evaluate": "What is measured at every milestone: the kinds of evaluations with their settings.  A key "
    "that is no kind names a further evaluation of the kind that its settings name.  null removes one that "
    "`extends` brings.",
    "seed": "The seed of the initial weights, the data and the dropout.",
    "seeds": "Seeds of their own for the initial weights, the data and the dropout; null is `seed`.",
    "axes": "The grid: dotted path -> values.  Every combination of values is a run.  0..4 stands for the "
    "whole numbers from 0 to 4.  null removes an axis that `extends` brings.",
    "zip": "Groups of axes; those of a group take their values together.",
    "include": "Runs beside the grid: each entry is laid on the file, without its axes.",
    "exclude": "Combinations of the grid that are dropped: those that agree with all values of an entry.",
    "search": "Samples of a space in place of a grid, and the best of them by a metric.",
    "resources": "The resources that a run may use; no part of its identity.",
    "keep": "The checkpoints of a finished run that stay: of all milestones, the last one, or none.  What "
    "evaluations, resumed training or other runs need stays in any case.",
    "notify": "Commands, or addresses of webhooks, that a launch calls when it is done, has failed or is "
    "interrupted.",
}


class _Described(GenerateJsonSchema):
    """Pydantic's schema with our descriptions, in draft 7 and without titles."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def model_schema(self, schema: ModelSchema) -> JsonSchemaValue:
        found = super().model_schema(schema)
        cls = schema["cls"]
        text = read_class(f"{cls.__module__}:{cls.__qualname__}")
        found.pop("title", None)
        found["description"] = text.meaning.partition("\n\n")[0]
        for name, field in found.get("properties", {}).items():
            described = field.get("description") or text.fields.get(name)
            if described:
                found["properties"][name] = {"description": described, **_wrapped(field)}
        return found

    def tuple_schema(self, schema: Any) -> JsonSchemaValue:
        found = super().tuple_schema(schema)
        if "prefixItems" in found:
            # Draft 7 writes the elements of a pair so.
            found["items"] = found.pop("prefixItems")
        return found


def _wrapped(schema: Schema) -> Schema:
    """Return a schema beside which other keywords count: those beside a reference do not."""
    return {"allOf": [schema]} if "$ref" in schema else schema


def class_schema(cls: type[Config]) -> Schema:
    """Return the JSON Schema of one configuration, with the meaning of each field."""
    return cls.model_json_schema(schema_generator=_Described)


def sweep_schema() -> Schema:
    """Return the JSON Schema of sweep files, draft 7, as plain data."""
    parts = _Parts()
    questions = parts.definitions.pop(parts.names[Questions])["properties"]
    properties: Schema = {
        "name": {"type": "string", "pattern": r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"},
        "description": {"type": ["string", "null"]},
        "extends": {"type": "string", "minLength": 1},
        **{name: _ref(name) for name in (*_FAMILIES, *_SINGLE)},
        "evaluate": parts.evaluate(),
        "seed": {"type": "integer", "minimum": 0, "default": 0},
        "axes": {"anyOf": [_ref("axes"), _NULL]},
        "zip": _listed(_ref("axes")),
        "include": _listed(_ref("point")),
        "exclude": _listed({"allOf": [_ref("point")], "minProperties": 1}),
        "search": {"anyOf": [parts.search(), _NULL]},
        "resources": {"anyOf": [_ref(parts.names[Resources]), _NULL]},
        "keep": {"enum": [*KEEPS, None]},
        "notify": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, _NULL]},
    }
    described = {name: {"description": MEANING[name], **_wrapped(s)} for name, s in properties.items()}
    return {
        "$schema": DRAFT,
        "title": "raysweep sweep file",
        "type": "object",
        "properties": described | questions,
        "additionalProperties": False,
        "allOf": parts.needs(),
        "$defs": parts.definitions,
    }


def as_text(schema: Schema) -> str:
    """Return a schema as JSON with each definition on a line of its own."""
    lines = [f' "{key}": {json.dumps(value, ensure_ascii=False)}' for key, value in schema.items()]
    lines[-1] = (
        ' "$defs": {\n'
        + ",\n".join(
            f'  "{name}": {json.dumps(found, ensure_ascii=False)}'
            for name, found in sorted(schema["$defs"].items())
        )
        + "\n }"
    )
    return "{\n" + ",\n".join(lines) + "\n}"


class _Parts:
    """The definitions of all configurations, of the sections made of them, and of the fields in these."""

    def __init__(self) -> None:
        families = [*_FAMILIES.values(), registry.evaluations]
        classes: list[type[Config]] = [family.get(kind) for family in families for kind in family.kinds()]
        of_sections: list[type[Config]] = [*_SINGLE.values(), Resources, Search, Questions]
        known = dict.fromkeys([*classes, *of_sections])
        found, whole = models_json_schema([(cls, "validation") for cls in known], schema_generator=_Described)
        self.definitions: dict[str, Schema] = whole["$defs"]
        self.names = {cls: str(ref["$ref"]).rpartition("/")[2] for (cls, _), ref in found.items()}
        #: The fields that a configuration cannot do without; axes and `extends` may bring them, too.
        self.required = {cls: self.definitions[name].pop("required", []) for cls, name in self.names.items()}
        for kind in registry.evaluations.kinds():
            # The key above is the name.
            self.definition(registry.evaluations.get(kind))["properties"].pop("name", None)
        paths = {name: _ref(name) for name in (*_FAMILIES, *_SINGLE)}
        paths |= {"seed": {"description": MEANING["seed"], "type": "integer", "minimum": 0}}
        for name, family in _FAMILIES.items():
            paths |= self._of_kinds(name, family) | {f"{name}.kind": {"enum": family.kinds()}}
        for name, cls in _SINGLE.items():
            paths |= self._of_class(name, cls)
        self._of_kinds("evaluation", registry.evaluations)
        self.definitions |= {
            "axes": _paths({path: _axis(value) for path, value in paths.items()}, _axis({})),
            "point": _paths(paths, {}),
        }

    def definition(self, cls: type[Config]) -> Schema:
        """Return the definition of a class."""
        return self.definitions[self.names[cls]]

    def _of_kinds(self, name: str, family: Registry[Any]) -> dict[str, Schema]:
        """Define a section whose `kind` is one of a family's, and its fields; return these by path."""
        found: dict[str, dict[str, Schema]] = {}
        for kind in family.kinds():
            for field, schema in self.definition(family.get(kind))["properties"].items():
                if field != "kind":
                    found.setdefault(field, {})[kind] = schema
        self.definitions |= {f"{name}.{field}": _any_of(by_kind) for field, by_kind in found.items()}
        self.definitions[name] = {
            "type": "object",
            "properties": {"kind": {"description": f"Kind of the {name}.", "enum": family.kinds()}},
            "allOf": [_if_kind(kind, _ref(self.names[family.get(kind)])) for kind in family.kinds()],
            # Without a kind, which `extends` may bring, a field is one of any kind.
            "if": {"not": {"required": ["kind"]}},
            "then": {
                "properties": {field: _ref(f"{name}.{field}") for field in found},
                "additionalProperties": False,
            },
        }
        return {f"{name}.{field}": _ref(f"{name}.{field}") for field in found}

    def _of_class(self, name: str, cls: type[Config]) -> dict[str, Schema]:
        """Define a section of one class, and its fields; return these by path."""
        of_class = self.definitions.pop(self.names[cls])
        for field, schema in of_class["properties"].items():
            # A seed that is null is that of the run.
            free = {"anyOf": [schema, _NULL], "description": schema["description"]}
            self.definitions[f"{name}.{field}"] = free if name == "seeds" else schema
        refs = {field: _ref(f"{name}.{field}") for field in of_class["properties"]}
        of_class["properties"] = refs
        self.definitions[name] = of_class if name in _NEEDED else {"anyOf": [of_class, _NULL]}
        return {f"{name}.{field}": ref for field, ref in refs.items()}

    def evaluate(self) -> Schema:
        """Return the schema of `evaluate`."""
        family = registry.evaluations
        own = {kind: _ref(self.names[family.get(kind)]) for kind in family.kinds()}
        return {
            "type": ["object", "null"],
            "properties": {
                kind: {"anyOf": [{"allOf": [ref], "not": {"required": ["kind"]}}, _NULL]}
                for kind, ref in own.items()
            },
            "propertyNames": {"pattern": "^[A-Za-z][A-Za-z0-9_]{0,49}$"},
            "additionalProperties": {"anyOf": [_ref("evaluation"), _NULL]},
        }

    def search(self) -> Schema:
        """Return the schema of `search`, whose scheduler has short forms."""
        fields = self.definition(Search)["properties"]
        scheduler = fields["scheduler"]
        scheduler["anyOf"] = [{"enum": ["none", "fifo", "asha"]}, *scheduler["anyOf"]]
        return _ref(self.names[Search])

    def needs(self) -> list[Schema]:
        """Return the conditions on files that nothing is laid on: what must be there."""
        kinds = dict.fromkeys(registry.evaluations.kinds(), True)
        named = {"evaluate": {"properties": kinds, "additionalProperties": {"required": ["kind"]}}}
        whole: Schema = {"pretrain": {"required": self.required[PretrainConfig]}}
        for name, family in _FAMILIES.items():
            needed = {kind: self.required[family.get(kind)] for kind in family.kinds()}
            of_kinds = [_if_kind(kind, {"required": fields}) for kind, fields in needed.items() if fields]
            whole[name] = {"required": ["kind"]} | ({"allOf": of_kinds} if of_kinds else {})
        brings = [{"required": [name]} for name in ("extends", "axes", "zip", "search")]
        return [
            {
                "if": {"not": {"required": ["extends"]}},
                "then": {"required": ["name"], "properties": named},
            },
            {"if": {"not": {"anyOf": brings}}, "then": {"required": list(_NEEDED), "properties": whole}},
        ]


def _ref(name: str) -> Schema:
    return {"$ref": f"#/$defs/{name}"}


def _if_kind(kind: str, then: Schema) -> Schema:
    return {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": then}


def _listed(schema: Schema) -> Schema:
    return {"type": ["array", "null"], "items": schema}


def _axis(value: Schema) -> Schema:
    """Return the schema of an axis whose values have a schema."""
    several = {"type": "string", "pattern": _RANGE}
    listed = {"type": "array", "items": {"anyOf": [value, several]} if value else {}}
    return {"anyOf": [listed, several, _NULL]}


def _paths(fields: Mapping[str, Schema], deeper: Schema) -> Schema:
    """Return the schema of a mapping from dotted paths; those below a field have another schema."""
    heads = "|".join((*_FAMILIES, *_SINGLE))
    return {
        "type": "object",
        "properties": dict(fields),
        "patternProperties": {rf"^({heads})\.[^.]+(\.[^.]+)+$": deeper},
        "additionalProperties": False,
    }


def _any_of(by_kind: Mapping[str, Schema]) -> Schema:
    """Return the schema of a field that several kinds have, with the meaning that it has in each."""
    meanings: dict[str, list[str]] = {}
    schemas: list[Schema] = []
    for kind, schema in by_kind.items():
        meanings.setdefault(schema.get("description", ""), []).append(kind)
        bare = {key: value for key, value in schema.items() if key not in ("description", "default")}
        if bare not in schemas:
            schemas.append(bare)
    told = list(meanings) if len(meanings) == 1 else [f"{', '.join(k)}: {m}" for m, k in meanings.items()]
    joined = schemas[0] if len(schemas) == 1 else {"anyOf": schemas}
    return {"description": "\n".join(told), **joined}
