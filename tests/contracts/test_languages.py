"""The contract of languages, over the registry, on more instances than the kinds' examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from helpers import local_models, local_texts
from raysweep.registry import languages
from raysweep.testing import LanguageContract, TextContract

GRAMMARS = Path(__file__).parents[1] / "languages" / "grammars"

LAYERED = {"roots": 2, "layers": 2, "symbols": 3, "rules": 3, "stop": 0.3, "words": 2, "vocabulary": 4}
DENSE = {"structure": "dense", "nonterminals": 3, "vocabulary": 3, "max_length": 5}

INSTANCES: dict[str, dict[str, dict[str, Any]]] = {
    "pcfg": {
        "layered": dict(LAYERED, seed=1),
        "layered-posterior": dict(LAYERED, seed=2, label="posterior"),
        "layered-tree": dict(LAYERED, seed=3, label="tree", stop=0.0),
        "layered-prefix": dict(LAYERED, seed=9, label="prefix"),
        "layered-longer": dict(LAYERED, seed=10, label="tree", task_words=3),
        "layered-cut": dict(LAYERED, seed=4, max_length=3, concentration=0.2),
        "dense": dict(DENSE, seed=5),
        "dense-posterior": dict(DENSE, seed=6, label="posterior", concentration=0.3),
        "dense-tree": dict(DENSE, seed=7, label="tree", spans=(2, 3)),
        "dense-one-word": dict(DENSE, seed=8, max_length=1),
        "text": {"structure": "file", "path": str(GRAMMARS / "dogs.pcfg"), "max_length": 4},
        "table": {"structure": "file", "path": str(GRAMMARS / "table.txt")},
    },
    "hmm": {
        "blocks": {"seed": 1, "states": 5, "vocabulary": 5, "length": 4, "blocks": 2, "tasks": [1, 3]},
        "dense": {
            "seed": 2,
            "states": 3,
            "vocabulary": 4,
            "length": 5,
            "blocks": 1,
            "tasks": [5],
            "concentration": 0.2,
        },
        "posterior": {
            "seed": 3,
            "states": 4,
            "vocabulary": 4,
            "length": 4,
            "blocks": 2,
            "tasks": [2],
            "label": "posterior",
        },
        "two-words": {"seed": 5, "states": 4, "vocabulary": 5, "length": 2, "blocks": 2, "tasks": [2]},
        "one-word": {"seed": 4, "states": 3, "vocabulary": 4, "length": 1, "blocks": 3, "tasks": []},
    },
    "dyck": {"two": {"length": 2}, "four": {"length": 4}, "six": {"length": 6}},
}

INSTANCES["causal_lm"] = {
    "three-words": {"model": str(local_models.random_opt()), "keep": 3, "length": 3},
    "five-words": {"model": str(local_models.random_opt(1)), "keep": 5, "length": 2},
    "one-word": {"model": str(local_models.random_opt()), "keep": 4, "length": 1},
}

INSTANCES["corpus"] = {
    name: {
        "source": str(path),
        "tokenizer": {"train": "wordpiece", "vocabulary": 300},
        "length": 16,
        "held_out": 0.2,
        "seed": 0,
    }
    for name, path in local_texts.files().items()
}

#: Kinds whose truth nobody knows.
TEXT = {"corpus"}


def configs(kinds: set[str]) -> dict[str, Any]:
    """Return the example of each kind, and our further instances."""
    found: dict[str, Any] = {f"{kind}-example": languages.get(kind).example for kind in sorted(kinds)}
    for kind in sorted(kinds):
        for name, data in INSTANCES.get(kind, {}).items():
            found[f"{kind}-{name}"] = languages.decode({"kind": kind, **data})
    return found


class TestLanguages(LanguageContract):
    """Every kind whose truth is known."""

    configs: ClassVar = configs(set(languages.kinds()) - TEXT)


class TestTexts(TextContract):
    """Every kind whose truth nobody knows."""

    configs: ClassVar = configs(TEXT)
