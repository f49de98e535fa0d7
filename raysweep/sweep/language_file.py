"""Reads a language alone, or evaluations alone: from a sweep file, or from a file of its own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from raysweep import registry
from raysweep.evaluation.base import Evaluation
from raysweep.languages.base import Language, LanguageConfig
from raysweep.sweep.check import Checker
from raysweep.sweep.config import LanguageCache
from raysweep.sweep.document import Mark, Problems, put
from raysweep.sweep.grid import Point
from raysweep.sweep.load import override
from raysweep.sweep.reading import parse_override, read_file


def load_language(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Language:
    """Build the language that `load_language_config` finds; errors are as there."""
    problems = Problems()
    checker, point = Checker(problems, LanguageCache()), _point(path, overrides, problems)
    config = checker.section("language", registry.languages, point)
    language = None if config is None else checker.language(config, point)
    problems.raise_any()
    return cast(Language, language)


def load_language_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> LanguageConfig:
    """Return the base language of a sweep file, or of a YAML file that is one language (`kind: hmm`, ...).

    `overrides` are `a.b=c` on the file's own fields.  Raises `ConfigError` with one line
    `file:line:column: field: message` for each error.
    """
    problems = Problems()
    point = _point(path, overrides, problems)
    config = Checker(problems, LanguageCache()).section("language", registry.languages, point)
    problems.raise_any()
    return cast(LanguageConfig, config)


def load_evaluations(path: str | os.PathLike[str]) -> dict[str, Evaluation]:
    """Return the evaluations of a sweep file by kind; {} for the file of a language.

    Raises `ConfigError` as above.
    """
    problems = Problems()
    root = read_file(Path(path), problems)
    node = None if root.get("kind") is not None else root.get("evaluate")
    found = Checker(problems, LanguageCache()).evaluations(node, root.mark)
    problems.raise_any()
    return {kind: evaluation for kind, (evaluation, _, _) in found.items()}


def _point(path: str | os.PathLike[str], overrides: Sequence[str], problems: Problems) -> Point:
    """Return the section of the language as the only one of a point."""
    root = read_file(Path(path), problems)
    alone = root.get("kind") is not None
    if alone:
        for text in overrides:
            parsed = parse_override(text, problems)
            if parsed is not None:
                field, value = parsed
                root = put(root, field, value, Mark.of_override(text))
    else:
        root = override(root, overrides, problems, base=True)
    node = root if alone else root.get("language")
    mark = root.mark if alone else root.keys.get("language", root.mark)
    return Point(sections={} if node is None else {"language": node}, marks={"language": mark}, axes={})
