"""The parts of the work that the benchmark of exact conditionals measures by themselves."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from raysweep.bench.exact import hmm
from raysweep.languages import HMM


def test_the_parts_alone_are_as_many_as_those_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    language = HMM.random(states=40, vocabulary=70, length=12, blocks=1)
    sizes: list[int] = []
    parts = hmm.parts_alone(language, 65)

    def made(name: str) -> int:
        part: Any = parts[name]
        assert isinstance(part, partial)
        sizes.clear()
        # As Python would run it, with kernels that count.
        part.func.py_func(*part.args)
        return sum(sizes)

    product, logarithms = hmm.kernels.product, hmm.kernels.logarithms
    monkeypatch.setattr(
        hmm.kernels, "product", lambda a, x, out: sizes.append(out.size) or product(a, x, out)
    )
    monkeypatch.setattr(
        hmm.kernels, "logarithms", lambda p, out: sizes.append(out.size) or logarithms(p, out)
    )
    # Two tiles of 64 sentences.
    assert made("matrix products") == 2 * 64 * (2 * 11 * 40 + 12 * 70)
    assert made("logarithms") == 2 * 64 * 12 * 70
    assert parts["writing the result"]().shape == (65, 12, 70)  # type: ignore[attr-defined]
