"""The request of a generation: checked before anything starts, and passed to every task."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from raysweep.errors import ConfigError
from raysweep.languages.base import Language, LanguageConfig
from raysweep.registry import suggest

WHAT = ("statistics", "entropy", "conditionals", "tasks")
Part = Literal["sentences", "train", "test"]
Positions = Literal["all", "random"]
#: Sentences of a shard, unless their stored arrays would exceed `SHARD_BYTES`.
SHARD = 16_384
SHARD_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one generation, as every task receives it: all that determines a shard, and its folder."""

    language: LanguageConfig
    fingerprint: str
    seed: int
    #: Number of sentences of each part; only the parts that are asked for.
    sizes: Mapping[Part, int]
    shard_size: int
    entropy: bool
    store_conditionals: bool
    positions: Positions
    tasks: tuple[str, ...]
    out: Path | None

    def shards(self) -> list[tuple[Part, int]]:
        """Return all shards, in the order in which they are combined."""
        return [(part, k) for part, n in self.sizes.items() for k in range(-(-n // self.shard_size))]

    def numbers(self, part: Part, shard: int) -> range:
        """Return the numbers of the sentences of a shard."""
        start = shard * self.shard_size
        return range(start, min(start + self.shard_size, self.sizes[part]))

    def identity(self, part: Part) -> dict[str, Any]:
        """Return the settings that determine the stored shards of a part."""
        what: dict[str, Any] = {"labels": list(self.tasks)}
        if part == "sentences":
            positions = self.positions if self.entropy or self.store_conditionals else None
            what = {"conditionals": self.store_conditionals, "positions": positions}
        return {
            "language": self.fingerprint,
            "part": part,
            "sentences": self.sizes[part],
            "seed": self.seed,
            "shard_size": self.shard_size,
            **what,
        }

    def folder(self, part: Part) -> Path | None:
        """Return the folder of the shards of a part, None if nothing is stored."""
        return None if self.out is None else self.out / part


def plan(
    config: LanguageConfig,
    language: Language,
    *,
    what: Sequence[str] | None,
    sizes: Mapping[Part, int],
    seed: int,
    positions: Positions | None,
    out: str | Path | None,
    shard_size: int | None,
) -> Work:
    """Return the work that the arguments of `generate` ask for; raises `ConfigError` and `DataError`."""
    kinds, tasks = _parse(everything(language) if what is None else what, language)
    exact = kinds & {"entropy", "conditionals"}
    name = type(language).__name__
    if exact and not language.exact:
        raise ConfigError(
            f"what: {', '.join(sorted(exact))}: nobody knows the exact conditionals of a {name}"
        )
    if "conditionals" in kinds and out is None:
        raise ConfigError("what: conditionals are of use only if they are stored; name a folder (out)")
    if positions not in (None, "all", "random"):
        raise ConfigError(f"positions: '{positions}'; choose all or random")
    asked: dict[Part, int] = {}
    for part, n in sizes.items():
        if kinds - {"tasks"} if part == "sentences" else tasks:
            if n < 1:
                raise ConfigError(f"{part}: {n} is less than 1; leave items that need it out of what")
            asked[part] = n
    stores = out is not None and ("conditionals" in kinds or (bool(exact) and language.stores_conditionals))
    chosen: Positions = positions or ("random" if language.stores_conditionals else "all")
    if shard_size is None:
        kept = (language.max_length if chosen == "all" else 1) * language.vocabulary_size * 4
        shard_size = max(1, min(SHARD, SHARD_BYTES // kept)) if stores else SHARD
    elif shard_size < 1:
        raise ConfigError(f"shard_size: {shard_size} is less than 1")
    return Work(
        language=config,
        fingerprint=language.fingerprint,
        seed=seed,
        sizes=asked,
        shard_size=shard_size,
        entropy=bool(exact),
        store_conditionals=stores,
        positions=chosen,
        tasks=tasks,
        out=None if out is None else Path(out).absolute(),
    )


def everything(language: Language) -> tuple[str, ...]:
    """Return all that a language can be asked for, except conditionals that it need not store."""
    return ("statistics", *(["entropy"] if language.exact else []), *(["tasks"] if language.tasks else []))


def _parse(what: Sequence[str], language: Language) -> tuple[set[str], tuple[str, ...]]:
    """Return the kinds that are asked for, and the tasks."""
    kinds, tasks = set(), tuple[str, ...]()
    for item in what:
        kind, colon, names = item.partition(":")
        if kind not in WHAT or (colon and kind != "tasks"):
            raise ConfigError(f"what: unknown '{item}'{suggest(kind, WHAT)}; known: {', '.join(WHAT)}")
        kinds.add(kind)
        if kind == "tasks":
            known = tuple(language.tasks)
            tasks = tuple(name.strip() for name in names.split(",")) if colon else known
            for name in tasks:
                if name not in known:
                    there = ", ".join(known) or "none"
                    raise ConfigError(
                        f"what: unknown task '{name}'{suggest(name, known)}; the language has {there}"
                    )
            if not tasks:
                raise ConfigError("what: the language has no tasks; leave them out")
    if not kinds:
        raise ConfigError(f"what: asks for nothing; choose from {', '.join(WHAT)}")
    return kinds, tasks
