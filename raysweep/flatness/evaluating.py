"""Contexts in which a model is measured: without dropout, and with its modes restored after."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore every module's mode after.

    Recurrent networks do not use cuDNN meanwhile: its backward pass refuses this mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    if any(training for _, training in modes):
        model.eval()
    try:
        with twice_differentiable(model):
            yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def twice_differentiable(model: nn.Module) -> Iterator[None]:
    """Use kernels that can be differentiated twice: cuDNN's of recurrent networks cannot."""
    if not any(isinstance(module, nn.RNNBase) for module in model.modules()):
        yield
        return
    with torch.backends.cudnn.flags(enabled=False):
        yield
