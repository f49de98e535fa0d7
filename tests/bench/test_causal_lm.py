"""The case of the causal LM on a small shape: reading every candidate anew gives the same conditionals."""

from __future__ import annotations

import torch

from raysweep.bench.exact import causal_lm
from raysweep.bench.peers import reforward


def test_every_candidate_read_anew() -> None:
    language, model = causal_lm.shape_of_opt(quick=True)
    ids = language.sample(3, seed=1)
    positions = torch.tensor([0, language.max_length // 2, language.max_length - 1])
    found = reforward.conditionals_at(model, language.kept, language.bos, ids, positions)
    expected = language.conditionals_at(ids, positions, dtype=torch.float64)
    torch.testing.assert_close(found.exp(), expected.exp(), rtol=1e-4, atol=1e-7)
