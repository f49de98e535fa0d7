"""The parts of the work that the benchmark of exact conditionals measures by themselves."""

from __future__ import annotations

from raysweep.bench.exact import hmm
from raysweep.languages import HMM


def test_the_parts_alone_are_as_many_as_those_of_the_work() -> None:
    language = HMM.random(states=40, vocabulary=70, length=12, blocks=1)
    parts = hmm.parts_alone(language, 65)
    # Two tiles of 64 sentences.
    assert parts["matrix products"]() == 2 * 64 * (2 * 11 * 40 + 12 * 70)
    assert parts["logarithms"]() == 2 * 64 * 12 * 70
    assert parts["writing the result"]().shape == (65, 12, 70)  # type: ignore[attr-defined]
