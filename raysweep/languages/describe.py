"""A language at a glance: lengths, entropy, the distribution of its tasks' labels, and some sentences.

Lengths are exact where the language knows them.  Everything else but the name and the sizes is measured on a
sample, whose size is given with it.
"""

from __future__ import annotations

import math
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from raysweep.languages.base import Estimate, LabelledData, Language, Sample
from raysweep.languages.splits import TaskFacts, certainty, task_facts

#: Sentences whose entropy is measured where a conditional costs seconds.
FEW = 16


@runtime_checkable
class Drawable(Protocol):
    """A language that can show a sentence with its latents, as text of one or more lines."""

    def draw(self, sample: Sample, row: int) -> str:
        """Return sentence `row` of a sample as text."""


def describe(
    language: Language,
    *,
    sentences: int = 4096,
    entropy_sentences: int | None = None,
    seed: int = 0,
    examples: int = 5,
) -> dict[str, Any]:
    """Return plain data (numbers, strings, lists, dictionaries) about a language, from `sentences` of `seed`.

    `lengths`: min, max, mean and counts by length, and the exact `probabilities` by length, None where they
    are unknown.  `entropy`: nats per masked word, its standard error, n and positions; None where it is
    unknown.  It is measured on `entropy_sentences` sentences (0: not at all).  By default these are all
    sentences at all positions, or, where the language stores its costly conditionals, `FEW` sentences with
    one drawn position each.  `tasks`: for each task, its description, the counts of the labels that occur,
    the most frequent label and its share, which is the accuracy of a constant answer, and `best`, the
    accuracy of the best possible classifier with its standard error, None where it is unknown; `determined`
    says that the label is a function of the sentence.
    `data_tasks`: for each task of a data set, its source, scores and test labels, and a sentence on its rows.
    `notes`: the remarks of the language.
    `examples`: ids, text, drawing (None where there is none) and labels of the first sentences.
    """
    sample = language.sample_latent(sentences, seed=seed)
    lengths = language.lengths(sample.ids)
    values, counts = torch.unique(lengths, return_counts=True)
    labels = {name: language.labels(name, sample) for name in language.tasks}
    known = language.length_probabilities
    tasks: dict[str, Any] = {}
    for name, facts in task_facts(language, sample).items():
        classes = facts.task.classes
        tasks[name] = {
            "description": facts.task.description,
            "classes": len(classes),
            "counts": {classes[k]: count for k, count in enumerate(facts.counts) if count},
            "majority": classes[facts.majority],
            "majority_rate": facts.majority_rate,
            "majority_standard_error": facts.majority_standard_error,
            "determined": language.determined(name),
            "best": _best(language, name, sample.ids),
        }
    return {
        "language": type(language).__name__,
        "fingerprint": language.fingerprint,
        "vocabulary_size": language.vocabulary_size,
        "max_length": language.max_length,
        "exact": language.exact,
        "notes": list(language.notes),
        "sentences": sentences,
        "seed": seed,
        "lengths": {
            "min": int(lengths.min()),
            "max": int(lengths.max()),
            "mean": lengths.double().mean().item(),
            "counts": {str(v): int(c) for v, c in zip(values.tolist(), counts.tolist(), strict=True)},
            "probabilities": None
            if known is None
            else {str(n): p for n, p in enumerate(known.tolist()) if p > 0},
        },
        "entropy": _entropy(language, sentences, entropy_sentences, seed),
        "tasks": tasks,
        "data_tasks": {name: _data_task(data) for name, data in language.data_tasks.items()},
        "examples": [
            {
                "ids": sample.ids[row, : int(lengths[row])].tolist(),
                "text": language.text(sample.ids[row]),
                "drawing": language.draw(sample, row) if isinstance(language, Drawable) else None,
                "labels": {name: language.tasks[name].classes[int(labels[name][row])] for name in labels},
            }
            for row in range(min(examples, sentences))
        ],
    }


def _best(language: Language, task: str, ids: Tensor) -> dict[str, float | None] | None:
    """Return value and standard error of the best possible accuracy; None where it is unknown."""
    values = certainty(language, task, ids[language.in_tasks(ids)])
    if values is None:
        return None
    found = Estimate.of(values)
    return {"value": found.value, "standard_error": _number(found.standard_error)}


def _data_task(data: LabelledData) -> dict[str, Any]:
    data.prepare()
    task, n = data.task, data.size("test") or 0
    labels = data.take("test", torch.arange(n))[1]
    facts: dict[str, Any] = {
        "description": task.description,
        "metrics": list(task.metrics),
        "classes": list(task.classes),
        "rows": data.summary(),
    }
    if task.regression:
        return facts | {"mean": labels.double().mean().item()}
    found = TaskFacts.of(task, labels)
    return facts | {
        "counts": dict(zip(task.classes, found.counts, strict=True)),
        "majority_rate": found.majority_rate,
    }


def _entropy(language: Language, sentences: int, few: int | None, seed: int) -> dict[str, Any] | None:
    costly = language.stores_conditionals
    n = (min(FEW, sentences) if costly else sentences) if few is None else few
    if not language.exact or n == 0:
        return None
    estimate = language.entropy(n, seed=seed, positions="random" if costly else "all")
    return {
        "value": estimate.value,
        "standard_error": _number(estimate.standard_error),
        "n": estimate.n,
        "unit": "nats",
        "positions": "random" if costly else "all",
    }


def _number(error: float) -> float | None:
    """Return a standard error, None for that of a single draw."""
    return None if math.isnan(error) else error


def as_text(facts: dict[str, Any]) -> str:
    """Return the result of `describe` as text for a terminal."""
    lines = [
        f"{facts['language']}  {facts['fingerprint'][:12]}",
        f"{facts['vocabulary_size']} words, sentences of at most {facts['max_length']}",
        *(f"note: {note}" for note in facts["notes"]),
        *_entropy_lines(facts),
        *_length_lines(facts),
    ]
    for name, task in facts["tasks"].items():
        error = task["majority_standard_error"]
        lines += [
            "",
            f"task {name}: {task['description']}",
            f"  {task['classes']} classes, {len(task['counts'])} of them seen in "
            f"{sum(task['counts'].values())} sentences; always '{task['majority']}' is right in "
            f"{task['majority_rate']:.1%} ± {error:.1%}",
            *_best_lines(task["best"], task["determined"]),
        ]
        common = sorted(task["counts"].items(), key=lambda item: -item[1])
        lines.append("  " + ", ".join(f"{label} {count}" for label, count in common[:8]))
        if len(common) > 8:
            lines[-1] += f" and {len(common) - 8} more"
    for name, task in facts["data_tasks"].items():
        lines += ["", f"task {name}: {task['description']}, scored by {', '.join(task['metrics'])}"]
        lines.append(f"  {task['rows']}")
        if task["classes"]:
            counts = ", ".join(f"{label} {count}" for label, count in task["counts"].items())
            lines.append(f"  test: {counts}; the most frequent is right in {task['majority_rate']:.1%}")
        else:
            lines.append(f"  a regression; the mean of the test is {task['mean']:.3f}")
    for example in facts["examples"]:
        labels = ", ".join(f"{name} = {label}" for name, label in example["labels"].items())
        lines += ["", example["text"]]
        if example["drawing"] is not None:
            lines.append(example["drawing"])
        lines.append(f"  labels: {labels}" if labels else "  no tasks")
    return "\n".join(lines)


def _best_lines(best: dict[str, float | None] | None, determined: bool) -> list[str]:
    if determined:
        return ["  the label is a function of the sentence, so the best possible accuracy is 100 %"]
    if best is None:
        return []
    error = best["standard_error"]
    return [
        f"  the best possible accuracy is {best['value']:.1%}{'' if error is None else f' ± {error:.1%}'}"
    ]


def _entropy_lines(facts: dict[str, Any]) -> list[str]:
    entropy = facts["entropy"]
    if entropy is None:
        unknown = "entropy: nobody knows the exact conditionals of this language"
        return ["entropy: not measured" if facts["exact"] else unknown]
    error = entropy["standard_error"]
    about = f"{entropy['n']} sentences of seed {facts['seed']}"
    if entropy["positions"] == "random":
        about += ", one drawn position each, because conditionals are costly"
    spread = "" if error is None else f" ± {error:.4f}"
    return [f"entropy {entropy['value']:.4f}{spread} nats per masked word ({about})"]


def _length_lines(facts: dict[str, Any]) -> list[str]:
    lengths = facts["lengths"]
    exact = lengths["probabilities"]
    if exact is None:
        shares = {n: count / facts["sentences"] for n, count in lengths["counts"].items()}
        mean, how = lengths["mean"], f"of {facts['sentences']} sentences"
    else:
        shares, how = exact, "exact"
        mean = math.fsum(int(n) * p for n, p in exact.items())
    numbers = [int(n) for n in shares]
    if len(numbers) == 1:
        return [f"lengths ({how}): always {numbers[0]}"]
    most = max(shares.values())
    return [
        f"lengths ({how}): {min(numbers)} to {max(numbers)}, mean {mean:.2f}",
        *(f"  {n:>4} {p:7.2%} {'█' * round(30 * p / most)}".rstrip() for n, p in shares.items()),
    ]
