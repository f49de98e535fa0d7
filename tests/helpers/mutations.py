"""Sweep files and overrides that went wrong: good ones of every kind, and changes to values and text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any

from raysweep import registry


class Raw(str):
    """A scalar as it stands in a file."""


#: Values that stand in the place of others: first as text of YAML, then as strings.
NASTY: list[str] = [
    *map(
        Raw, ("0", "-1", "1", "2", "7", "1e2", "1e3", "100000", "2147483648", "1e9", "1e15", "1e17", "1e300")
    ),
    *map(
        Raw, ("9223372036854775807", "9223372036854775808", "0x7fffffffffffffff", "0o17", "1e-300", "1e999")
    ),
    *map(
        Raw, ("0.0", "-0.0", "0.5", "1.5", ".nan", ".inf", "-.inf", "true", "no", "null", "~", "''", "1_000")
    ),
    *map(
        Raw, ("2024-01-01", "12:30:00", "0..4", "9..1", "0..99999999", "*b", "[]", "{}", "[[]]", "[null]", "")
    ),
    *map(Raw, ("!!python/name:os.system x", "!x y", "&a [*a]", "<<: x", "{a: b}", "{kind: adamw}", "? x")),
    *map(Raw, ("{kind:sgd,lr:1}", "9" * 400, "9" * 6000, "[" * 300, "[" * 30 + "]" * 30)),
    *map(Raw, ("{a: " * 200, "- " * 300)),
    *(
        "~nobody",
        "~nobody/x",
        "~",
        ".",
        "..",
        "/",
        "/dev/null",
        "/dev/zero",
        "/proc/self/mem",
        "s3://bucket/x",
    ),
    *("a/b/c/d", "*", "[", "#", "A", "1", "1/1/1/1", "0/0/0/0", "1000000/1/1/1000000", "2/1/100000/2", "4/9"),
    *("table3-64", "seed", "x\0y", "\ud800", "é", "'", '"', "%s %d {0}", "\n", "\t", "a: b", "x" * 300),
    "x" * 5000,
]

#: Text that is put somewhere into a file.
SNIPPETS = [
    *("[", "]", "{", "}", ":", ",", "-", "#", "&a", "*a", "!!", "|", ">", "'", '"', "\\", "%", "@", "`", "?"),
    *("~", "null", "0..3", ": ", "- ", "\n", " ", "  ", "\t", "\0", "\x07", "\ufeff", "\u2028", "é", "---\n"),
    *("...\n", "<<: *a\n", "extends: s.yaml\n", 'extends: "a\\0b"\n', "extends: ~nobody/x\n"),
    *("axes: {seed: 0..3}\n", "exclude: [{seed: 0}]\n", "include: [{seed: 7}]\n", "zip: [{seed: [0, 1]}]\n"),
    *("[" * 2000, "{" * 2000, "- " * 1000, "a: " * 200, "9" * 6000, "x" * 10000),
]


def good_files(folder: Path) -> list[dict[str, Any]]:
    """Return a sweep for each kind of each family; files that they name go to `folder`."""
    languages = {}
    for kind in registry.languages.kinds():
        place = folder / kind
        place.mkdir(parents=True)
        languages[kind] = registry.languages.get(kind).example(place).encode()
    base = {
        "name": "good",
        "description": "a sweep",
        "language": languages["hmm"],
        "model": {"kind": "encoder", "shape": "8/1/1/16"},
        "algorithm": {"kind": "adamw", "lr": 0.001, "warmup_steps": 2},
        "pretrain": {"steps": 8, "batch_size": 4, "milestones": [4, 8], "mask": "one"},
        "evaluate": {"excess_loss": {"sentences": 16}, "trace": {"inputs": 64}},
        "axes": {"model.shape": ["8/1/1/16", "8/2/2/16"], "seed": [0, 1]},
        "resources": {"workers": 1, "per_worker": {"CPU": 1}, "max_concurrent": "auto", "engine": "auto"},
        "tolerance": 0.02,
    }
    few = languages["hmm"] | {"states": 2, "vocabulary": 2, "length": 3, "blocks": 1, "tasks": [2]}
    found = [base]
    found += [
        base | {"language": data, "evaluate": {"held_out_loss": {"sentences": 16}}}
        for data in languages.values()
    ]
    found.append(
        base | {"language": {"kind": "pcfg", "structure": "dense", "nonterminals": 3, "vocabulary": 4}}
    )
    for family, section in ((registry.models, "model"), (registry.algorithms, "algorithm")):
        for kind in family.kinds():
            place = folder / f"{section}-{kind}"
            place.mkdir()
            there = languages["dyck" if kind.startswith("dyck") else "hmm"]
            part = family.get(kind).example(place).encode()
            found.append({**base, "language": there, section: part, "axes": {"seed": [0]}})
    for kind in registry.evaluations.kinds():
        place = folder / f"evaluation-{kind}"
        place.mkdir()
        settings = registry.evaluations.get(kind).example(place).encode()
        settings.pop("kind")
        there = {"dyck": languages["dyck"], "descent": few}.get(kind, base["language"])
        found.append({**base, "language": there, "evaluate": {kind: settings}})
    found.append(
        base
        | {
            "axes": {"seed": [0, 1]},
            "zip": [{"algorithm.lr": [0.001, 0.002], "pretrain.batch_size": [4, 8]}],
            "exclude": [{"seed": 1, "algorithm.lr": 0.002}],
            "include": [{"algorithm": {"kind": "lookup_table"}}],
            "seeds": {"init": 3},
            "claims": [{"flatter": {"task": "2"}}, {"longer": {}}, {"beats": "lookup_table"}],
        }
    )
    space = {
        "algorithm.lr": {"loguniform": [0.0001, 0.01]},
        "model.shape": {"choice": ["8/1/1/16", "8/2/2/16"]},
        "algorithm.warmup_steps": {"int_uniform": [1, 5]},
    }
    search = {"metric": "excess_loss", "mode": "min", "samples": 12, "space": space, "seed": 0}
    asha = {"kind": "asha", "grace_period": 4, "reduction_factor": 2}
    found.append(base | {"axes": {"seed": [0, 1]}, "search": search | {"algorithm": "optuna"}})
    found.append(base | {"axes": {}, "search": search | {"scheduler": asha}})
    return found


def written(value: Any) -> str:
    """Return a value as YAML in flow style."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {written(child)}" for key, child in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    return str(value) if isinstance(value, Raw) else json.dumps(value)


def _key(key: str) -> str:
    return (
        key if isinstance(key, Raw) else json.dumps(key) if not key.replace(".", "_").isidentifier() else key
    )


def file_of(sweep: dict[str, Any]) -> str:
    """Return a sweep as the text of a file: a section on each line."""
    return "".join(f"{_key(key)}: {written(value)}\n" for key, value in sweep.items())


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    if isinstance(value, dict | list):
        for key, child in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _places(child, (*path, key))


def changed(sweep: dict[str, Any], random: Random) -> dict[str, Any]:
    """Return a copy with one value replaced, left out, renamed, wrapped, repeated or moved."""
    copy = deepcopy(sweep)
    path = random.choice(list(_places(copy)))
    parent = copy
    for key in path[:-1]:
        parent = parent[key]
    key, how = path[-1], random.randrange(12)
    if how < 7:
        parent[key] = random.choice(NASTY)
    elif how == 7:
        del parent[key]
    elif how == 8 and isinstance(parent, dict):
        name = random.choice([f"{key}s", str(key)[1:] or "x", Raw("? [a]"), "kind", "a.b", "", "x\0"])
        parent[name] = parent.pop(key)
    elif how == 9:
        parent[key] = random.choice([[parent[key]], {"kind": parent[key]}, [parent[key]] * 3])
    elif how == 10:
        parent[key] = random.choice(list(sweep.values()))
    else:
        copy[
            random.choice(["model", "language", "evaluate", "axes", "zip", "claims", "seeds", "extends"])
        ] = parent[key]
    return copy


def damaged(text: str, random: Random) -> str:
    """Return text with a character, a line or a piece changed, lost or put in."""
    at = random.randrange(len(text) + 1)
    end = min(len(text), at + random.choice([1, 1, 2, 5, 20, 200]))
    how = random.randrange(6)
    if how == 0:
        return text[:at] + text[end:]
    if how == 1:
        return text[:at] + random.choice(SNIPPETS) + text[at:]
    if how == 2:
        return text[:at] + random.choice(SNIPPETS) + text[end:]
    if how == 3:
        return text[:at]
    lines = text.splitlines(keepends=True)
    if how == 4:
        random.shuffle(lines)
    else:
        lines.insert(random.randrange(len(lines) + 1), random.choice(lines))
    return "".join(lines)


def override(sweep: dict[str, Any], random: Random) -> str:
    """Return `a.b=c` with a path of the sweep, or one beside it, and any value."""
    paths = [path for path in _places(sweep) if all(isinstance(key, str) for key in path)]
    path = ".".join(random.choice(paths))
    value = written(random.choice(NASTY))
    text = f"{path}={value}"
    return damaged(text, random) if random.random() < 0.3 else text


def mutated(sweeps: list[dict[str, Any]], random: Random) -> tuple[str, list[str]]:
    """Return the text of a sweep file and its overrides, with at least one change."""
    sweep = random.choice(sweeps)
    text, overrides = file_of(sweep), []
    how = random.randrange(10)
    if how < 5:
        for _ in range(random.choice([1, 1, 2, 4])):
            sweep = changed(sweep, random) or sweep
        text = file_of(sweep)
    elif how < 8:
        overrides = [override(sweep, random) for _ in range(random.choice([1, 1, 2]))]
    if how >= 8 or random.random() < 0.1:
        text = damaged(text, random)
    return text, overrides
