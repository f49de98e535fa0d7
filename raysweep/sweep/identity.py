"""What makes two runs the same run.

A run's identity is the sha256 of its validated, normalised configuration and of the language's content.
Not in it: the text of a file, the order of its keys, paths, resources, devices, concurrency, the number of
steps and the milestones (more steps extend a run), and the evaluations, which have an identity of their own.
Where what a step does depends on how many there are (a cosine schedule, a warm-up in proportion), no run can
be extended, and the number of steps is part of its identity.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

#: How many hexadecimal digits of an identity stand in names; the whole is in the record.
DIGITS = 10

#: Fields of `pretrain` that say how far, how often or in what parts, not what is trained.
EXTENT = frozenset({"steps", "milestones", "checkpoint_every", "micro_batch"})

#: Values of `pretrain` that are no part of an identity, so that runs from before the field came keep theirs.
FORMER = {"replace": "mask", "precision": "auto"}


def extent(depends_on_steps: bool) -> frozenset[str]:
    """Return the fields of `pretrain` that have no part in an identity of an algorithm.

    >>> sorted(EXTENT - extent(True))
    ['steps']
    """
    return EXTENT - {"steps"} if depends_on_steps else EXTENT


def canonical(data: Any) -> str:
    """Return the one JSON text of plain data: sorted keys, no spaces, shortest floats.

    >>> canonical({"b": 1e-3, "a": [1]}) == canonical({"a": [1], "b": 0.001})
    True
    """
    return json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


def digest(data: Any) -> str:
    """Return the sha256 (hexadecimal) of plain data."""
    return hashlib.sha256(canonical(data).encode()).hexdigest()


def training_content(
    *,
    fingerprint: str,
    model: Mapping[str, Any],
    algorithm: Mapping[str, Any],
    pretrain: Mapping[str, Any],
    seed: int,
    trains: bool,
    depends_on_steps: bool,
) -> dict[str, Any]:
    """Return what the training identity is the digest of.

    Where nothing is trained (`trains` False: the look-up table) model, pretrain and seed have no part;
    `depends_on_steps` is the algorithm's.
    """
    if not trains:
        return {"language": fingerprint, "algorithm": dict(algorithm)}
    return {
        "language": fingerprint,
        "model": dict(model),
        "algorithm": dict(algorithm),
        "pretrain": {
            key: value
            for key, value in pretrain.items()
            if key not in extent(depends_on_steps) and not _as_before(key, value)
        },
        "seed": seed,
    }


def evaluation_identity(evaluation: Any) -> str:
    """Return the sha256 of an evaluation's kind and settings, and of its version where that is not the first.

    So what another version measured stays on record, and is measured again.
    """
    content = evaluation.encode()
    return digest(content if evaluation.version == 1 else {**content, "version": evaluation.version})


def _as_before(key: str, value: Any) -> bool:
    """Return whether a field of `pretrain` has the value that stands for how it was before the field came."""
    return key in FORMER and FORMER[key] == value


def safe(text: str) -> str:
    """Return text fit for a file name.

    >>> safe("64/1/2/256")
    '64-1-2-256'
    >>> safe("lr1e+30"), safe("lr1e-30")
    ('lr1e30', 'lr1e-30')
    """
    # The plus of an exponent goes without a trace: a '-' in its place would be another number.
    text = re.sub(r"(?<=\de)\+(?=\d)", "", text)
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "x"


def run_name(*, model: str, algorithm: str, seed: int, trains: bool, identity: str) -> str:
    """Return the readable, durable id of a run: labels, seed, and the head of its identity."""
    parts = [model, algorithm, f"s{seed}"] if trains else [algorithm]
    return "-".join([*map(safe, parts), identity[:DIGITS]])
