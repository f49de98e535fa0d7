"""One shard of a generation: a pure function of the language, the seed and the numbers of its sentences."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from raysweep.generation.request import Part, Work
from raysweep.generation.tally import counted
from raysweep.languages.base import Language
from raysweep.languages.splits import Split, TaskFacts, draw_split

#: Sentences computed in one go, unless their conditionals would exceed `BLOCK_BYTES`.
BLOCK = 4096
BLOCK_BYTES = 64 << 20


def make_shard(
    language: Language, work: Work, part: Part, shard: int, *, device: str = "cpu"
) -> dict[str, np.ndarray]:
    """Return the arrays of a shard by name; conditionals are computed on `device`.

    Names that end in `_counts` hold counts over the shard: of words, of lengths, or of a task's labels.  All
    other arrays have one row for each sentence.
    """
    numbers = work.numbers(part, shard)
    if part == "sentences":
        return _sentences(language, work, numbers, device)
    return _labelled(language, work, part, numbers)


def _sentences(language: Language, work: Work, numbers: range, device: str) -> dict[str, np.ndarray]:
    """Return the shard of the sentences `numbers`: counts, and the entropies and conditionals asked for."""
    each = 4 * language.vocabulary_size * (language.max_length if work.positions == "all" else 1)
    block = max(1, min(BLOCK, BLOCK_BYTES // each))
    words, lengths = language.vocabulary_size, language.max_length + 1
    counts = {
        "word_counts": torch.zeros(words + 1, dtype=torch.int64),
        "length_counts": torch.zeros(lengths, dtype=torch.int64),
    }
    found: dict[str, list[Tensor]] = {}
    for start in range(numbers.start, numbers.stop, block):
        n = min(block, numbers.stop - start)
        ids = language.sample(n, seed=work.seed, start=start)
        counts["word_counts"] += torch.bincount(ids.flatten(), minlength=words + 1).cpu()
        counts["length_counts"] += torch.bincount(language.lengths(ids), minlength=lengths).cpu()
        if not work.entropy:
            continue
        kept = _of_conditionals(language, work, ids.to(device), start)
        if work.store_conditionals:
            kept["ids"] = ids.to(torch.int32)
        for name, values in kept.items():
            found.setdefault(name, []).append(values.cpu())
    counts["word_counts"] = counts["word_counts"][:words]  # the last count is that of padding
    joined = {name: torch.cat(parts) for name, parts in found.items()}
    return {name: values.numpy() for name, values in {**counts, **joined}.items()}


def _of_conditionals(language: Language, work: Work, ids: Tensor, start: int) -> dict[str, Tensor]:
    """Return the entropy [n] of sentences, float64, and their conditionals if those are stored."""
    if work.positions == "random":
        positions = language.drawn_positions(ids, seed=work.seed, start=start)
        log_probs = language.conditionals_at(ids, positions)
        found = {"entropy": torch.special.entr(log_probs.double().exp()).sum(dim=-1)}
        stored = {"log_probs": log_probs, "positions": positions.to(torch.int32)}
        return {**found, **stored} if work.store_conditionals else found
    if not work.store_conditionals:
        return {"entropy": language.sentence_entropy(ids)}
    log_probs = language.conditionals(ids)
    return {"entropy": language.entropy_of(log_probs, ids), "log_probs": log_probs}


def _labelled(language: Language, work: Work, split: Split, numbers: range) -> dict[str, np.ndarray]:
    """Return the shard of the sentences `numbers` of a split: ids, labels, and label counts."""
    sample = draw_split(language, split, len(numbers), seed=work.seed, start=numbers.start)
    arrays = {"ids": sample.ids.to(torch.int32).cpu().numpy()}
    for name in work.tasks:
        labels = language.labels(name, sample)
        arrays[f"labels.{name}"] = labels.to(torch.int32).cpu().numpy()
        facts = TaskFacts.of(language.tasks[name], labels)
        arrays[counted(split, name)] = np.array(facts.counts)
    return arrays
