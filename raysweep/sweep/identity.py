"""Identities: two runs with one identity are the same run.

A run's identity is the sha256 of its validated, normalised configuration and of the language's content.
These are no part of it: the text of a file, the order of its keys, paths, resources, devices, concurrency,
the number of steps and the milestones (more steps extend a run), and the evaluations, which have identities
of their own.  If a step depends on the number of steps (a cosine schedule, a warm-up in proportion), the run
cannot be extended, and the number of steps is part of its identity.  A run that starts from another one also
has in its identity what identifies that state (`raysweep.sweep.source`).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysweep.evaluation.base import Evaluation

#: Number of hexadecimal digits of an identity in names; the record has all of them.
DIGITS = 10

#: Fields of `pretrain` that change how long, how often or in what parts a run trains, but not its weights.
EXTENT = frozenset({"steps", "milestones", "checkpoint_every", "micro_batch"})


_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def extent(depends_on_steps: bool) -> frozenset[str]:
    """Return the fields of `pretrain` that are no part of a run's identity.

    >>> sorted(EXTENT - extent(True))
    ['steps']
    """
    return EXTENT - {"steps"} if depends_on_steps else EXTENT


def canonical(data: Any) -> str:
    """Return the one JSON text of plain data: sorted keys, no spaces, shortest floats.

    >>> canonical({"b": 1e-3, "a": [1]}) == canonical({"a": [1], "b": 0.001})
    True
    """
    return _CANONICAL.encode(data)


def digest(data: Any) -> str:
    """Return the sha256 (hexadecimal) of plain data."""
    return _sha256(canonical(data))


def digest_of_shared(shared: Mapping[str, Any], own: Mapping[str, Any]) -> str:
    """Return `digest(shared | own)` of mappings without a common name.

    Thousands of runs share the first, which nobody changes.

    >>> digest_of_shared({"b": {"lr": 1e-3}}, {"a": 0}) == digest({"a": 0, "b": {"lr": 0.001}})
    True
    """
    texts = sorted([*_items(Itself(shared)), *((name, _item(name, canonical(own[name]))) for name in own)])
    return _sha256(f"{{{','.join([text for _, text in texts])}}}")


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def training_content(
    *,
    fingerprint: str,
    model: Mapping[str, Any],
    algorithm: Mapping[str, Any],
    pretrain: Mapping[str, Any],
    trains: bool,
    depends_on_steps: bool,
) -> dict[str, Any]:
    """Return the plain data that the training identity is computed from, but for its seeds and its source.

    If nothing is trained (`trains` False: the look-up table), model and pretrain are left out;
    `depends_on_steps` is the algorithm's.  Nobody may change what is given or returned: runs share it.
    """
    if not trains:
        return {"language": fingerprint, "algorithm": algorithm}
    return {
        "language": fingerprint,
        "model": model,
        "algorithm": algorithm,
        "pretrain": _lasting(Itself(pretrain), depends_on_steps),
    }


def configuration(content: Mapping[str, Any], source: Any) -> str:
    """Return the sha256 of the `content` of an identity but for its seeds, which replicates share.

    `source` says without seeds what training starts from, None for drawn weights.
    """
    return digest([{k: v for k, v in content.items() if k not in ("seed", "source")}, source])


def evaluation_identity(evaluation: Evaluation) -> str:
    """Return the sha256 of an evaluation's kind, settings and version."""
    return _of_evaluation(Itself(evaluation), evaluation.version)


class Itself:
    """An object that equals nothing but itself, as a key."""

    def __init__(self, known: Any) -> None:
        self.known = known

    def __hash__(self) -> int:
        return id(self.known)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Itself) and self.known is other.known


# Thousands of runs share their sections, and these never change.
@lru_cache(maxsize=4096)
def _canonical(section: Itself) -> str:
    return canonical(section.known)


@lru_cache(maxsize=4096)
def _items(shared: Itself) -> list[tuple[str, str]]:
    """Return the name and the text of each part of a mapping."""
    return [
        (name, _item(name, _canonical(Itself(data)) if isinstance(data, dict) else canonical(data)))
        for name, data in shared.known.items()
    ]


def _item(name: str, text: str) -> str:
    return f"{canonical(name)}:{text}"


@lru_cache(maxsize=4096)
def _lasting(pretrain: Itself, depends_on_steps: bool) -> dict[str, Any]:
    """Return the fields of `pretrain` that are part of a run's identity."""
    return {k: v for k, v in pretrain.known.items() if k not in extent(depends_on_steps)}


@lru_cache(maxsize=256)
def _of_evaluation(evaluation: Itself, version: int) -> str:
    return digest(evaluation.known.content())


def content_of(config: Any) -> Mapping[str, Any]:
    """Return `config.content()`, which nobody may change: runs share their configurations."""
    return _content(Itself(config))


@lru_cache(maxsize=4096)
def _content(config: Itself) -> Mapping[str, Any]:
    found: Mapping[str, Any] = config.known.content()
    return found


def arrays_identity(evaluation: Evaluation) -> str:
    """Return the sha256 of what decides the arrays of an evaluation's shards."""
    return digest(evaluation.arrays_content())


@lru_cache(maxsize=4096)
def safe(text: str) -> str:
    """Return text fit for a file name.

    >>> safe("64/1/2/256")
    '64-1-2-256'
    >>> safe("lr1e+30"), safe("lr1e-30")
    ('lr1e30', 'lr1e-30')
    """
    # The plus of an exponent is dropped: a '-' in its place would make another number.
    text = re.sub(r"(?<=\de)\+(?=\d)", "", text)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "x"


def run_name(labels: Iterable[str], identity: str) -> str:
    """Return the readable, durable id of a run: labels, and the head of its identity."""
    return "-".join([*map(safe, labels), identity[:DIGITS]])
