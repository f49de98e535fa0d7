"""Errors of configurations in plain words: the value, its place, the fault and the remedy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args, get_origin

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from raysweep.registry import Config, nearest_word, suggest
from raysweep.sweep.document import Key, Mark, Node, Problems, dotted
from raysweep.sweep.scalars import EXACT, flow

_WANTED = {
    "int_type": "a whole number, e.g. 100",
    "int_from_float": "a whole number, e.g. 100",
    "int_parsing": "a whole number, e.g. 100",
    "float_type": "a number, e.g. 0.1",
    "float_parsing": "a number, e.g. 0.1",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "string_type": "text; put it in quotes",
    "none_required": "null",
    "list_type": "a list, e.g. [1, 2]",
    "tuple_type": "a list, e.g. [1, 2]",
    "set_type": "a list, e.g. [1, 2]",
    "dict_type": "a mapping, e.g. {key: value}",
    "model_type": "a mapping, e.g. {key: value}",
    "model_attributes_type": "a mapping, e.g. {key: value}",
    "path_type": "a path",
}

_BOUNDS = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
}

#: The validator of a whole config may start its message with the name of a field.
_NAMED = re.compile(r"(?P<field>[a-z_]+)(?:\[(?P<index>\d+)\])?: (?P<rest>.*)", re.DOTALL)


def show(value: Any) -> str:
    """Return a value as a sweep file would write it, shortened."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    short = text if len(text) <= 60 else text[:57] + "..."
    return f"'{short}'" if isinstance(value, str) else short


def one_line(text: str) -> str:
    """Return text with its line breaks turned into '; '."""
    return "; ".join(part.strip() for part in text.splitlines() if part.strip())


def explain(
    error: ValidationError,
    cls: type[Config],
    node: Node,
    prefix: Sequence[Key],
    at: Mark,
    problems: Problems,
) -> None:
    """Add the errors of `node`, a configuration of `cls` at `prefix`, to `problems`.

    `at` is the place of the section's name, the place of missing fields.
    """
    grouped: dict[tuple[Key, ...], list[ErrorDetails]] = {}
    for details in error.errors(include_url=False):
        grouped.setdefault(_place(details["loc"], node, cls, details["type"]), []).append(details)
    # A misspelt field is not also missing.
    meant = {
        (*path[:-1], near)
        for path, found in grouped.items()
        if found[0]["type"] == "extra_forbidden"
        if (near := nearest_word(str(path[-1]), cls.model_fields)) is not None
    }
    for path, found in grouped.items():
        first = found[0]
        name = dotted((*prefix, *path))
        parent = node.find(path[:-1])
        key = path[-1] if path else None
        if first["type"] == "extra_forbidden" and parent is not None and isinstance(key, str):
            of = _config_at(cls, path[:-1])
            known = [field for field in of.model_fields if field != "kind"] if of is not None else []
            problems.add(parent.keys.get(key, parent.mark), name, unknown(key, known))
        elif first["type"] == "missing":
            if isinstance(key, int) and parent is not None:
                least = f"at least {key + 1} long" + _such_as(_example(cls, path[:-1]))
                message = f"{show(parent.plain)} is not valid; it must be {least}"
                problems.add(parent.mark, dotted((*prefix, *path[:-1])), message)
            elif path not in meant:
                example = _example(cls, path)
                value = "..." if example is None else flow(example)
                problems.add(nearest(node, path, at), name, f"missing — add '{key}: {value}'")
        else:
            message = _sentence(found, _example(cls, path))
            if not path:
                explain_named(message, cls, node, prefix, at, problems)
                continue
            target = node.find(path)
            problems.add(at if target is None else target.mark, name, message)


def explain_named(
    message: str, cls: type[Config], node: Node, prefix: Sequence[Key], at: Mark, problems: Problems
) -> None:
    """Add a message on a whole configuration; it may begin with the name of a field of `cls` and a colon."""
    named = _NAMED.fullmatch(message)
    if named is None or named["field"] not in cls.model_fields:
        problems.add(at, dotted(prefix), message)
        return
    inner: list[Key] = [named["field"]]
    if named["index"] is not None:
        inner.append(int(named["index"]))
    problems.add(nearest(node, inner, at), dotted((*prefix, *inner)), named["rest"])


def nearest(node: Node, path: Sequence[Key], at: Mark) -> Mark:
    """Return the place of what a path leads to, or of the last thing on the way; `at` where nothing is."""
    for length in range(len(path), 0, -1):
        found = node.find(path[:length])
        if found is not None:
            return found.mark
    return at


def _place(loc: Sequence[Key], node: Node, cls: type[Config], kind: str) -> tuple[Key, ...]:
    """Return the part of a pydantic location that is a place in the file, without branches of unions."""
    path: list[Key] = []
    here: Node | None = node
    for k, key in enumerate(loc):
        child = here.get(key) if here is not None else None
        if child is None:
            # A missing field has no node, and a default can contradict another field.
            last = kind == "missing" and k == len(loc) - 1
            if last or (not path and isinstance(key, str) and key in cls.model_fields):
                path.append(key)
            continue
        path.append(key)
        here = child
    return tuple(path)


def _config_at(cls: type[Config], path: Sequence[Key]) -> type[Config] | None:
    """Return the configuration that a path in one of `cls` leads to; None where there is not just one."""
    found, in_mapping = [cls], False
    for key in path:
        if in_mapping:
            in_mapping = False
        elif isinstance(key, str):
            field = found[0].model_fields.get(key)
            found = list(_configs(field.annotation)) if field is not None else []
            in_mapping = field is not None and get_origin(field.annotation) is dict
        if len(found) != 1:
            return None
    return found[0]


def _example(cls: type[Config], path: Sequence[Key]) -> Any:
    """Return the example that a field of `cls`, or of one in it, gives of its values; None for none.

    That of a list or mapping has one for what is in it.
    """
    of = _config_at(cls, path[:-1]) if path else None
    field = None if of is None else of.model_fields.get(str(path[-1]))
    if field is not None:
        return field.examples[0] if field.examples else None
    around = _example(cls, path[:-1]) if path else None
    if isinstance(around, Mapping):
        return next(iter(around.values()))
    return around[0] if isinstance(around, list) else None


def _configs(annotation: Any) -> Iterator[type[Config]]:
    """Yield the configurations in a type, such as those of a tuple or of a union."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
    for part in get_args(annotation):
        yield from _configs(part)


def _sentence(found: Sequence[ErrorDetails], example: Any) -> str:
    """Return one sentence for all errors of one value; each branch of a union gives one.

    `example` is an example of a right value, or None.
    """
    value = found[0]["input"]
    wanted: list[str] = []
    for details in found:
        kind, context = details["type"], details.get("ctx", {})
        if kind in ("value_error", "assertion_error"):
            return one_line(str(context.get("error", details["msg"])))
        if kind in _BOUNDS:
            name, words = _BOUNDS[kind]
            value = details["input"]
            wanted.append(f"{words} {context[name]}")
        elif kind in ("literal_error", "enum"):
            wanted.append(_choice(value, str(context["expected"])))
        elif kind in ("too_short", "string_too_short"):
            wanted.append(f"at least {context['min_length']} long" + _such_as(example))
        elif kind in ("too_long", "string_too_long"):
            wanted.append(f"at most {context['max_length']} long")
        elif kind == "string_pattern_mismatch":
            wanted.append(f"text of the form {context['pattern']}")
        elif kind == "string_type" and isinstance(value, list) and value and _all_whole(value):
            wanted.append(f"text, e.g. {'/'.join(map(str, value))}")
        elif kind == "int_type" and isinstance(value, float) and abs(value) > EXACT:
            most = f"with an exponent at most {EXACT:.0e}"
            wanted.append(f"a whole number, e.g. 100, and {most}; write larger ones in digits")
        elif kind in _WANTED:
            words, generic, _ = _WANTED[kind].partition(", e.g. ")
            wanted.append(words + _such_as(example) if generic and example is not None else _WANTED[kind])
        else:
            wanted.append(one_line(details["msg"][:1].lower() + details["msg"][1:]))
    return f"{show(value)} is not valid; it must be {' or '.join(dict.fromkeys(wanted))}"


def _such_as(example: Any) -> str:
    return "" if example is None else f", e.g. {flow(example)}"


def _all_whole(values: Sequence[Any]) -> bool:
    return all(type(value) is int for value in values)


def _choice(value: Any, expected: str) -> str:
    """Return the choices of a literal field, with the nearest one suggested."""
    known = re.findall(r"'([^']*)'", expected)
    hint = suggest(value, known) if isinstance(value, str) else ""
    return (expected if len(known) < 2 else f"one of {', '.join(known)}") + hint


def unknown(key: str, known: Sequence[str] | Mapping[str, Any], what: str = "field") -> str:
    """Return the sentence for an unknown name, with the nearest known name or all of them."""
    listed = f" — known: {', '.join(sorted(known))}" if known else ""
    return f"unknown {what}{suggest(key, known) or listed}"
