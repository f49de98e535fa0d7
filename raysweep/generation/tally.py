"""The sums over the shards of a generation: entropy, lengths, words and labels.

Shards are added in their order, so the sums do not depend on which worker made which shard.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from raysweep.languages.base import Estimate, Language
from raysweep.languages.splits import Split, TaskFacts


@dataclass(frozen=True, kw_only=True)
class Generated:
    """The results of a generation; None or empty for those that were not asked for."""

    language: str
    fingerprint: str
    seed: int
    #: Number of sentences, without those of the task splits.
    sentences: int
    #: Words per sentence.
    length: Estimate | None
    #: Number of sentences with 0, 1, ... words.
    length_counts: tuple[int, ...]
    #: Number of occurrences of each word.
    word_counts: tuple[int, ...]
    #: Nats per masked word, over `positions` of each sentence.
    entropy: Estimate | None
    positions: str
    #: Label counts by task and split.
    tasks: Mapping[str, Mapping[Split, TaskFacts]]
    out: Path | None
    #: Number of shards that this call made, and of those that were stored before.
    made: int
    reused: int
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; `tasks` holds the counts of the labels that occur, by task and split."""

        def estimate(value: Estimate | None, unit: str) -> dict[str, Any] | None:
            if value is None:
                return None
            error = None if math.isnan(value.standard_error) else value.standard_error
            return {"value": value.value, "standard_error": error, "n": value.n, "unit": unit}

        entropy = estimate(self.entropy, "nats")
        return {
            "language": self.language,
            "fingerprint": self.fingerprint,
            "seed": self.seed,
            "sentences": self.sentences,
            "length": estimate(self.length, "words"),
            "length_counts": list(self.length_counts),
            "word_counts": list(self.word_counts),
            "entropy": None if entropy is None else {**entropy, "positions": self.positions},
            "tasks": {
                name: {split: label_counts(facts) for split, facts in splits.items()}
                for name, splits in self.tasks.items()
            },
            "out": None if self.out is None else str(self.out),
            "shards": {"made": self.made, "reused": self.reused},
            "seconds": self.seconds,
        }

    def lines(self) -> list[str]:
        """Return the results as lines for a terminal."""
        lines = [f"{self.language}  {self.fingerprint[:12]}, seed {self.seed}"]
        if self.length is not None:
            seen = [n for n, count in enumerate(self.length_counts) if count]
            lines += [
                f"{self.sentences:,} sentences of {seen[0]} to {seen[-1]} words, "
                f"mean {self.length.value:.4f} ± {self.length.standard_error:.4f}",
                f"{sum(self.word_counts):,} words, {sum(map(bool, self.word_counts))} different ones "
                f"of {len(self.word_counts)}",
            ]
        if self.entropy is not None:
            where = "" if self.positions == "all" else ", one drawn position each"
            lines.append(
                f"entropy {self.entropy.value:.6f} ± {self.entropy.standard_error:.6f} nats per masked word "
                f"({self.entropy.n:,} sentences{where})"
            )
        for name, splits in self.tasks.items():
            for split, facts in splits.items():
                lines.append(
                    f"task {name}, {split}: {facts.n:,} sentences, {facts.classes_seen} of "
                    f"{len(facts.counts)} classes; always '{facts.task.classes[facts.majority]}' is right in "
                    f"{facts.majority_rate:.2%} ± {facts.majority_standard_error:.2%}"
                )
        return lines


def label_counts(facts: TaskFacts) -> dict[str, Any]:
    """Return class counts and majority rate of a task's labels as plain data."""
    classes = facts.task.classes
    return {
        "n": facts.n,
        "classes": len(classes),
        "counts": {classes[k]: count for k, count in enumerate(facts.counts) if count},
        "majority": classes[facts.majority],
        "majority_rate": facts.majority_rate,
        "majority_standard_error": facts.majority_standard_error,
    }


def moments(values: np.ndarray) -> np.ndarray:
    """Return number, mean and sum of squared deviations of `values`, float64 [3]."""
    values = values.astype(np.float64)
    mean = values.mean()
    return np.array([len(values), mean, ((values - mean) ** 2).sum()])


def merged(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the moments of two sets together.

    Chan, Golub and LeVeque, "Algorithms for computing the sample variance", The American Statistician 37
    (1983).

    >>> merged(moments(np.array([1.0, 2.0])), moments(np.array([6.0]))).tolist()
    [3.0, 3.0, 14.0]
    """
    n = a[0] + b[0]
    shift = b[1] - a[1]
    return np.array([n, a[1] + shift * b[0] / n, a[2] + b[2] + shift**2 * a[0] * b[0] / n])


def counted(split: Split, task: str) -> str:
    """Return the name under which a shard reports the label counts of a task."""
    return f"{split}.{task}_counts"


def counts_of(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Return the report of a shard: its counts, and the moments of its entropies."""
    report: dict[str, Any] = {name: value for name, value in arrays.items() if name.endswith("_counts")}
    if "entropy" in arrays:
        report["entropy"] = moments(arrays["entropy"])
    return report


class Tally:
    """Adds up the reports of shards."""

    def __init__(self, language: Language, tasks: tuple[str, ...]) -> None:
        self._language = language
        self._tasks = tasks
        self._counts: dict[str, np.ndarray] = {}
        self._entropy: np.ndarray | None = None
        self._made = self._reused = 0

    def add(self, report: Mapping[str, Any]) -> None:
        """Add the report of the next shard."""
        for name, value in report.items():
            if name == "entropy":
                self._entropy = value if self._entropy is None else merged(self._entropy, value)
            elif name == "reused":
                self._reused += value
                self._made += not value
            else:
                self._counts[name] = self._counts.get(name, 0) + value

    def result(self, *, seed: int, positions: str, out: Path | None, seconds: float) -> Generated:
        """Return the results so far."""
        lengths = self._counts.get("length_counts", np.zeros(0, dtype=np.int64))
        tasks: dict[str, dict[Split, TaskFacts]] = {
            name: {
                split: TaskFacts(
                    task=self._language.tasks[name], counts=tuple(self._counts[counted(split, name)].tolist())
                )
                for split in ("train", "test")
            }
            for name in self._tasks
        }
        return Generated(
            language=type(self._language).__name__,
            fingerprint=self._language.fingerprint,
            seed=seed,
            sentences=int(lengths.sum()),
            length=_mean_of_counts(lengths) if len(lengths) else None,
            length_counts=tuple(lengths.tolist()),
            word_counts=tuple(self._counts.get("word_counts", np.zeros(0, dtype=np.int64)).tolist()),
            entropy=None if self._entropy is None else _estimate(self._entropy),
            positions=positions,
            tasks=tasks,
            out=out,
            made=self._made,
            reused=self._reused,
            seconds=seconds,
        )


def _estimate(moments: np.ndarray) -> Estimate:
    n, mean, squares = moments.tolist()
    error = math.sqrt(squares / (n - 1) / n) if n > 1 else math.nan
    return Estimate(value=mean, standard_error=error, n=int(n))


def _mean_of_counts(counts: np.ndarray) -> Estimate:
    value, n = np.arange(len(counts)), counts.sum()
    mean = float((counts * value).sum() / n)
    return _estimate(np.array([n, mean, (counts * (value - mean) ** 2).sum()]))
