"""A language at a glance: lengths, entropy, how its tasks' labels are distributed, and some sentences.

Everything but the name and the sizes is measured on a sample, and says on how many sentences.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

from raysweep.languages.base import Language, Sample


@runtime_checkable
class Drawable(Protocol):
    """A language that can show a sentence with its latents, as text of one or more lines."""

    def draw(self, sample: Sample, row: int) -> str:
        """Return sentence `row` of a sample as text."""


def describe(
    language: Language, *, sentences: int = 4096, seed: int = 0, examples: int = 5
) -> dict[str, Any]:
    """Return plain data (numbers, strings, lists, dictionaries) about a language, from `sentences` of `seed`.

    `lengths`: min, max, mean and counts by length.  `entropy`: nats per masked word, its standard error and
    n.  `tasks`: for each, its description, the counts of the labels that occur, the most frequent label and
    its share, which is what a classifier reaches that sees nothing.  `examples`: ids, drawing and labels of
    the first sentences.
    """
    sample = language.sample_latent(sentences, seed=seed)
    lengths = language.lengths(sample.ids)
    values, counts = torch.unique(lengths, return_counts=True)
    entropy = language.entropy(sentences, seed=seed)
    labels = {name: language.labels(name, sample) for name in language.tasks}
    tasks: dict[str, Any] = {}
    for name, task in language.tasks.items():
        number = torch.bincount(labels[name], minlength=len(task.classes))
        most = int(number.argmax())
        tasks[name] = {
            "description": task.description,
            "classes": len(task.classes),
            "counts": {task.classes[k]: int(number[k]) for k in number.nonzero()[:, 0].tolist()},
            "majority": task.classes[most],
            "majority_rate": int(number[most]) / sentences,
        }
    return {
        "language": type(language).__name__,
        "fingerprint": language.fingerprint,
        "vocabulary_size": language.vocabulary_size,
        "max_length": language.max_length,
        "sentences": sentences,
        "seed": seed,
        "lengths": {
            "min": int(lengths.min()),
            "max": int(lengths.max()),
            "mean": lengths.double().mean().item(),
            "counts": {str(v): int(c) for v, c in zip(values.tolist(), counts.tolist(), strict=True)},
        },
        "entropy": {
            "value": entropy.value,
            "standard_error": entropy.standard_error,
            "n": entropy.n,
            "unit": "nats",
        },
        "tasks": tasks,
        "examples": [
            {
                "ids": sample.ids[row, : int(lengths[row])].tolist(),
                "text": _shown(language, sample, row),
                "labels": {name: language.tasks[name].classes[int(labels[name][row])] for name in labels},
            }
            for row in range(min(examples, sentences))
        ],
    }


def as_text(facts: dict[str, Any]) -> str:
    """Return what `describe` found as text for a terminal."""
    lengths, entropy = facts["lengths"], facts["entropy"]
    lines = [
        f"{facts['language']}  {facts['fingerprint'][:12]}",
        f"{facts['vocabulary_size']} words, sentences of at most {facts['max_length']}",
        f"entropy {entropy['value']:.4f} ± {entropy['standard_error']:.4f} nats per masked word "
        f"({entropy['n']} sentences of seed {facts['seed']})",
        f"lengths {lengths['min']} to {lengths['max']}, mean {lengths['mean']:.2f}",
    ]
    most = max(lengths["counts"].values())
    lines += [
        f"  {length:>4} {count / facts['sentences']:7.2%} {'█' * round(30 * count / most)}".rstrip()
        for length, count in lengths["counts"].items()
    ]
    for name, task in facts["tasks"].items():
        lines += [
            "",
            f"task {name}: {task['description']}",
            f"  {task['classes']} classes, {len(task['counts'])} of them seen; "
            f"always '{task['majority']}' is right in {task['majority_rate']:.1%}",
        ]
        common = sorted(task["counts"].items(), key=lambda item: -item[1])
        lines.append("  " + ", ".join(f"{label} {count}" for label, count in common[:8]))
        if len(common) > 8:
            lines[-1] += f" and {len(common) - 8} more"
    for example in facts["examples"]:
        labels = ", ".join(f"{name} = {label}" for name, label in example["labels"].items())
        lines += ["", example["text"], f"  labels: {labels}" if labels else "  no tasks"]
    return "\n".join(lines)


def _shown(language: Language, sample: Sample, row: int) -> str:
    if isinstance(language, Drawable):
        return language.draw(sample, row)
    words = sample.ids[row, : int(language.lengths(sample.ids)[row])].tolist()
    return " ".join(map(str, words))
