"""Conditionals of a causal LM with `transformers` alone, which reads each candidate from its first word."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

#: Sentences that the model reads at a time.
BATCH = 32


def conditionals_at(model: Any, kept: Tensor, bos: int, ids: Tensor, positions: Tensor) -> Tensor:
    """Return log Pr(x_t = . | x_-t) [B, K] of words [B, T] at t = `positions` [B], counted from 0.

    `kept` [K] are the tokens of the words in the model; its logits cover its full vocabulary.
    """
    K = len(kept)
    out = torch.empty(len(ids), K, dtype=torch.float64)
    for row, (words, t) in enumerate(zip(ids, positions.tolist(), strict=True)):
        candidates = words.repeat(K, 1)
        candidates[:, t] = torch.arange(K)
        scores = []
        for some in candidates.split(BATCH):
            tokens = torch.cat([torch.full((len(some), 1), bos), kept[some[:, :-1]]], dim=1)
            with torch.no_grad():
                logits = model(input_ids=tokens, use_cache=False).logits
            log_probs = logits[..., kept].log_softmax(dim=-1)
            scores.append(log_probs.gather(-1, some[..., None])[..., 0].double().sum(dim=1))
        out[row] = torch.cat(scores)
    return out.log_softmax(dim=-1)
