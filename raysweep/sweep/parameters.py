"""Sizes of the models of a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from raysweep.models.base import Vocabulary
from raysweep.sweep.config import Sweep
from raysweep.sweep.identity import DIGITS

#: Trainable parameters by vocabulary.
Counts = Mapping[Vocabulary, int]


def parameters(sweep: Sweep) -> dict[str, Counts]:
    """Return the parameters of the trained models by label; equal labels get their language added."""
    found: dict[tuple[str, str], Counts] = {}
    for spec in sweep.runs:
        key = (spec.model.label, spec.language_fingerprint)
        if spec.trains and key not in found:
            found[key] = spec.model.parameter_counts(sweep.language(spec))
    several = Counter(label for label, _ in found)
    return {
        label if several[label] == 1 else f"{label} (language {language[:DIGITS]})": counts
        for (label, language), counts in found.items()
    }


def describe(counts: Counts) -> str:
    """Return parameter counts for a reader.

    >>> describe({"own": 68928, "faithful": 2037184})
    "68,928 parameters (2,037,184 with BERT's vocabulary)"
    """
    own = f"{counts['own']:,} parameters"
    return own if "faithful" not in counts else f"{own} ({counts['faithful']:,} with BERT's vocabulary)"
