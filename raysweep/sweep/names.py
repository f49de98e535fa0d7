"""The names of runs: one place that says which run a person means.

    64/1/2/256 seed 0                      the name in tables; parts of it in any order, also seed=0, lr 3e-3
    64-1-2-256-adamw-s0-3f9a1c27be         the id
    64-1-2-256-adamw-s0, 3f9a1c27be        the beginning of the id, or its last part or the beginning of that
    64-*-s0-*, * seed 0                    a pattern (* and ?) of the id or of the name in tables
    scaling/64/1/2/256 seed 0@2000         any of these in one sweep, at a step

A name without a pattern means one run.  Where it could mean several, they are listed in an error.
"""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from raysweep.errors import ConfigError
from raysweep.registry import suggest

if TYPE_CHECKING:
    from raysweep.sweep.run import RunSpec

#: Most candidates that an error lists.
_LISTED = 5
#: Least digits of the last part of an id that stand for it.
_DIGITS = 4
#: Digits of a number that a person writes at most; a number with more was drawn, and is shown with `_SHOWN`.
_WRITTEN, _SHOWN = 7, 4


class UnknownRunError(ConfigError):
    """A name that means no run."""


@dataclass(frozen=True)
class Named:
    """A run by its names: id, name in tables, and the words that may describe it.

    `sweep` is the sweep that has it.  A run that several sweeps have is the same training in all of them.
    """

    run_id: str
    label: str = ""
    words: tuple[str, ...] = ()
    sweep: str = ""

    @classmethod
    def of(cls, spec: RunSpec, sweep: str = "") -> Named:
        """Return the names of a run."""
        axes = spec.axes if spec.trains else {}
        words = [axis_text(path, value, whole) for path, value in axes.items() for whole in (False, True)]
        if spec.trains and not words and spec.seed is not None:
            words = [axis_text("seed", spec.seed)]
        parts: list[Any] = [spec.model, spec.algorithm] if spec.trains else [spec.algorithm]
        kinds = dict.fromkeys(text for part in parts for text in (part.label, part.kind))
        return cls(spec.run_id, label(spec), tuple(dict.fromkeys((*kinds, *words))), sweep)


def value_text(value: Any) -> str:
    """Return the value of a field as a table shows it, a drawn number with four digits.

    >>> value_text("64/1/2/256"), value_text(0.003), value_text(0.0012345678901234567), value_text([1, 2])
    ('64/1/2/256', '0.003', '0.001235', '[1, 2]')
    """
    if isinstance(value, str):
        return value
    return _number_text(value) if isinstance(value, int | float) else json.dumps(value)


# Thousands of runs have few values of an axis.
@lru_cache(maxsize=4096, typed=True)
def _number_text(value: float) -> str:
    drawn = isinstance(value, float) and float(f"{value:.{_WRITTEN}g}") != value
    return f"{value:.{_SHOWN}g}" if drawn else json.dumps(value)


def axis_text(path: str, value: Any, whole: bool = False) -> str:
    """Return the value of an axis as a table shows it, a drawn number with all its digits where `whole`.

    >>> axis_text("model.shape", "64/1/2/256"), axis_text("algorithm.lr", 0.003)
    ('64/1/2/256', 'lr 0.003')
    """
    if isinstance(value, str):
        return value
    return f"{path.rpartition('.')[2]} {json.dumps(value) if whole else value_text(value)}"


def axes_label(axes: Mapping[str, Any], between: str = " ") -> str:
    """Return the values of a run's axes as a short label.

    >>> axes_label({"model.shape": "64/1/2/256", "seed": 1}, " · ")
    '64/1/2/256 · seed 1'
    """
    return between.join(axis_text(path, value) for path, value in axes.items())


def label(spec: RunSpec) -> str:
    """Return the name of a run in tables: the values of its axes, or its id if it has none."""
    return (axes_label(spec.axes) or spec.run_id) if spec.trains else spec.algorithm.label


def labels(specs: Sequence[RunSpec]) -> dict[str, str]:
    """Return the names of a sweep's runs in tables, by id.

    A run without axes has its model and seed, where these tell it from all others, and else its id.
    """
    found = {spec.run_id: label(spec) for spec in specs}
    short = {
        spec.run_id: f"{spec.model.label} {axis_text('seed', spec.seed)}"
        for spec in specs
        if spec.trains and not spec.axes and spec.seed is not None
    }
    times = Counter((found | short).values())
    return found | {run_id: name for run_id, name in short.items() if times[name] == 1}


def split_step(text: str) -> tuple[str, int | None]:
    """Return the name of a run and the step of RUN@STEP, None without one; raises `ConfigError`.

    >>> split_step("scaling/64/1/2/256 seed 0@2000")
    ('scaling/64/1/2/256 seed 0', 2000)
    """
    name, at, step = text.rpartition("@") if "@" in text else (text, "", "")
    if at and not (step.isascii() and step.isdigit()):
        raise ConfigError(f"'{text}': '{step}' is not a step; write RUN@STEP, e.g. {name or 'RUN'}@1000")
    return name, int(step) if at else None


def is_pattern(text: str) -> bool:
    """Return whether a name is a pattern, which may mean several runs."""
    return any(mark in text for mark in "*?[")


def named(text: str, runs: Iterable[Named]) -> list[Named]:
    """Return the runs that a name without a step means, the nearest kind of match alone; [] for none.

    Exact names come first, then patterns, then parts of names, then mere beginnings of ids.
    """
    known = list(runs)
    sweep, slash, rest = text.partition("/")
    mine = [run for run in known if slash and run.sweep == sweep]
    found = dict.fromkeys([*(_named(rest, mine) if rest else []), *_named(text, known)])
    return list(found)


def one(text: str, runs: Iterable[Named], absent: Callable[[str], str]) -> str:
    """Return the id of the one run that a name means.

    Raises `UnknownRunError` where there is none, with the text that `absent` makes of a hint at the nearest
    name, and `ConfigError` with the candidates where there are several.
    """
    known = list(runs)
    found = named(text, known)
    if not found:
        raise UnknownRunError(absent(_hint(text, known)))
    if len({run.run_id for run in found}) > 1:
        raise ConfigError(f"'{text}': matches {_candidates(found)}; name one of them")
    return found[0].run_id


def chosen(texts: Sequence[str], runs: Iterable[Named], absent: Callable[[str], str]) -> set[str]:
    """Return the ids of the runs that `--only` names: patterns may mean several, other names mean one.

    The step of RUN@STEP counts for nothing.  Raises `UnknownRunError` as `one` does, and `ConfigError` for a
    name that means several runs without being a pattern.
    """
    known = list(runs)
    picked: set[str] = set()
    for text in texts:
        name, _ = split_step(text)
        found = named(name, known)
        if not found:
            raise UnknownRunError(f"--only {text}: {absent(_hint(name, known))}")
        if len({run.run_id for run in found}) > 1 and not is_pattern(name):
            meant = {run.run_id for run in found}
            patterns = (f"{name}*", f"*{name}*")
            all_ = next((p for p in patterns if {run.run_id for run in named(p, known)} == meant), None)
            several = "use * to mean several" if all_ is None else f"write '{all_}' for all of them"
            raise ConfigError(f"--only {text}: matches {_candidates(found)}; name one of them, or {several}")
        picked |= {run.run_id for run in found}
    return picked


def _named(text: str, runs: Sequence[Named]) -> list[Named]:
    if not text:
        return []
    spoken = _words(text)
    ways: tuple[Callable[[Named], bool], ...] = (
        lambda run: text == run.run_id,
        lambda run: spoken == _words(run.label),
        lambda run: is_pattern(text) and any(fnmatch.fnmatchcase(n, text) for n in (run.run_id, run.label)),
        lambda run: run.run_id.startswith(f"{text}-") or _ends(run.run_id, text) or _told(spoken, run),
        lambda run: run.run_id.startswith(text),
    )
    for fits in ways:
        found = [run for run in runs if fits(run)]
        if found:
            return found
    return []


def _ends(run_id: str, text: str) -> bool:
    """Return whether a text begins the last part of an id, which tells it from all others."""
    return len(text) >= _DIGITS and run_id.rpartition("-")[2].startswith(text)


def _words(text: str) -> tuple[str, ...]:
    """Return the words of a name, numbers in one spelling.

    >>> _words("64/1/2/256 · lr=3e-3, seed 0")
    ('64/1/2/256', 'lr', '0.003', 'seed', '0.0')
    """
    return tuple(_number(word) for word in re.split(r"[\s,·=]+", text) if word)


def _number(word: str) -> str:
    try:
        return repr(float(word))
    except ValueError:
        return word


def _told(spoken: tuple[str, ...], run: Named) -> bool:
    """Return whether a name is made of the words of a run, each at most once and in any order."""
    left = sorted((_words(word) for word in run.words), key=len, reverse=True)
    while spoken:
        part = next((part for part in left if part and spoken[: len(part)] == part), None)
        if part is None:
            return False
        left.remove(part)
        spoken = spoken[len(part) :]
    return True


def _hint(text: str, runs: Sequence[Named]) -> str:
    labels = [run.label for run in runs if run.label]
    return suggest(text, [*labels, *(run.run_id for run in runs)])


def _candidates(found: Sequence[Named]) -> str:
    """Return the number of runs and the first of them, with their sweeps where these differ."""
    places: dict[str, Named] = {}
    for run in found:
        places.setdefault(run.run_id, run)
    several = len({run.sweep for run in places.values()}) > 1
    listed = [
        (f"{run.sweep}/" if several else "")
        + run.run_id
        + (f" ({run.label})" if run.label not in ("", run.run_id) else "")
        for run in list(places.values())[:_LISTED]
    ]
    more = len(places) - len(listed)
    rest = f" and {more} more" if more else ""
    return f"{len(places)} runs: {', '.join(listed)}{rest}"
