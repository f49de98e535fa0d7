"""Losses of masked words, the slow and obvious way."""

from __future__ import annotations

import torch
from torch import Tensor

from raysweep.models.subject import ModelSubject


def one_word_at_a_time(subject: ModelSubject, ids: Tensor, mask: Tensor) -> list[float]:
    """Return the loss in nats of each masked word of sentences [n, T], in order; `mask` is bool [n, T]."""
    losses = []
    for row, marked in zip(ids, mask, strict=True):
        hidden = torch.where(marked, subject.language.mask_id, row)
        for t in marked.nonzero()[:, 0]:
            with torch.no_grad():
                logits = subject.model(hidden[None], t[None]).double()[0]
            losses.append(-logits.log_softmax(-1)[row[t]].item())
    return losses
