"""The parts of the work that the benchmark of exact conditionals measures by themselves."""

from __future__ import annotations

import pytest

from raysweep.bench.exact import hmm
from raysweep.languages import HMM


def test_the_parts_alone_are_as_many_as_those_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    language = HMM.random(states=40, vocabulary=70, length=12, blocks=1)
    sizes: list[int] = []
    product, logarithms = hmm.kernels.product, hmm.kernels.logarithms
    monkeypatch.setattr(
        hmm.kernels, "product", lambda a, x, out: sizes.append(out.size) or product(a, x, out)
    )
    monkeypatch.setattr(
        hmm.kernels, "logarithms", lambda p, out: sizes.append(out.size) or logarithms(p, out)
    )
    parts = hmm.parts_alone(language, 65)
    # Two tiles of 64 sentences.
    parts["matrix products"]()
    assert sum(sizes) == 2 * 64 * (2 * 11 * 40 + 12 * 70)
    sizes.clear()
    parts["logarithms"]()
    assert sum(sizes) == 2 * 64 * 12 * 70
    assert parts["writing the result"]().shape == (65, 12, 70)  # type: ignore[attr-defined]
