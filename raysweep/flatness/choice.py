"""The choice among the implementations of per-input gradient norms: the fastest that agrees with autograd."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from raysweep.compiled.threads import one_thread
from raysweep.flatness.evaluating import evaluating
from raysweep.flatness.fused.norms import FusedNorms, agreed, fits
from raysweep.flatness.inputs import padding_id
from raysweep.flatness.norms.base import Norms
from raysweep.flatness.norms.fallback import gradient_norms


@contextmanager
def per_input_norms(model: nn.Module, masked: Tensor, positions: Tensor) -> Iterator[Norms]:
    """Give the norms of a model, put into evaluation mode, for `masked` ids [n, T] at `positions`.

    The choice is compared with autograd on the shortest and the longest of the inputs; compiled passes only
    the first time that a model is measured.  Raises `ConfigError` for a model without trainable parameters,
    or with inputs that affect one another, and `RunFailedError` for gradients that are not finite.
    """
    lengths = (masked != padding_id(model)).sum(dim=1)
    ends = lengths.argsort(stable=True)[[0, -1]]
    with evaluating(model):
        if fits(model, positions, int(lengths.max())):
            with one_thread():
                fused = FusedNorms(model)
                if agreed(fused, masked[ends], positions[ends]):
                    yield fused
                    return
        with gradient_norms(model, masked[ends], positions[ends]) as norms:
            yield norms
