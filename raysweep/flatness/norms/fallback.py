"""Gradient norms of any architecture, from every input's own gradient: slower, and always right.

Ghost norms do not know every module, and a model may use a parameter without calling its module.  Then each
input's gradient is formed and squared: for many inputs at once by `torch.func` (vmap of a vector-Jacobian
product) where the model allows it, else one input after the other.  Both are compared with each other, and
with the logits of the whole batch, before they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from raysweep.errors import ConfigError
from raysweep.flatness.norms.base import PaddedNorms
from raysweep.flatness.norms.ghost import (
    TOLERANCE,
    GhostNorms,
    MaskedLogits,
    masked_logits,
    own_norms,
    require_finite,
    some_signs,
    split_parameters,
)
from raysweep.flatness.norms.taps import NotCoveredError

log = logging.getLogger("raysweep.flatness")

#: Entries of gradients that are held at once: 256 MB in float32.
_HELD = 1 << 26


class GradientNorms(PaddedNorms):
    """Per-input squared gradient norms of any model, one column a trainable parameter.

    Use it like `GhostNorms`.  `verify` sets `method`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._parameters, self.excluded = split_parameters(model)
        self.names = list(self._parameters)
        self.method = "one gradient at a time"
        self._inputs: tuple[Tensor, Tensor] | None = None
        size = sum(p.numel() for p in self._parameters.values())
        self._chunk = max(1, _HELD // size)

    def __exit__(self, *error: object) -> None:
        self._inputs = None

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        self._inputs = (ids, positions)
        with torch.no_grad():
            return masked_logits(self.model, ids, positions)

    def norms(self, cotangents: Tensor, *, last: bool = True) -> Tensor:
        if self._inputs is None:
            raise RuntimeError("call forward first")
        ids, positions = self._inputs
        if last:
            self._inputs = None
        way = self._together if self.method == "vmap" else self._singly
        return way(ids, positions, cotangents)

    def _singly(self, ids: Tensor, positions: Tensor, cotangents: Tensor) -> Tensor:
        rows = []
        parameters = list(self._parameters.values())
        for row in range(len(ids)):
            with torch.enable_grad():
                logits = masked_logits(self.model, ids[row : row + 1], positions[row : row + 1])[0]
            rows.append(own_norms(logits, parameters, cotangents[row]))
        return torch.stack(rows)

    def _together(self, ids: Tensor, positions: Tensor, cotangents: Tensor) -> Tensor:
        parameters = {name: p.detach() for name, p in self._parameters.items()}
        wrapped = MaskedLogits(self.model)

        def norms(row: Tensor, at: Tensor, v: Tensor) -> Tensor:
            def logits(values: dict[str, Tensor]) -> Tensor:
                named = {f"model.{name}": value for name, value in values.items()}
                made: Tensor = functional_call(wrapped, named, (row[None], at[None]))
                return made[0]

            (gradients,) = vjp(logits, parameters)[1](v)
            return torch.stack([gradients[name].double().square().sum() for name in parameters])

        made: Tensor = vmap(norms, chunk_size=self._chunk)(ids, positions, cotangents)
        return made

    def verify(self, ids: Tensor, positions: Tensor) -> None:
        """Choose the method on `ids` [B, T] at `positions`, and check that rows do not affect one another.

        Raises `ConfigError` where a row's logits depend on the others, and `RunFailedError` for gradients
        that are not finite.
        """
        logits = self.forward(ids, positions)
        require_finite(logits)
        alone = torch.cat(
            [self.forward(ids[row : row + 1], positions[row : row + 1]) for row in range(len(ids))]
        )
        tolerance = TOLERANCE[logits.dtype]
        if not torch.allclose(logits, alone, rtol=tolerance, atol=tolerance * float(alone.abs().max())):
            raise ConfigError(
                "the model's logits at one input depend on the other inputs of the batch, so that no input "
                "has a gradient of its own; its Fisher trace cannot be computed"
            )
        v = some_signs(logits, positions)
        truth = self._singly(ids, positions, v)
        try:
            found = self._together(ids, positions, v)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            # vmap raises any of these where it cannot do something; the slower way is as right.
            log.info("vmap cannot differentiate %s: %s", type(self.model).__name__, str(error).split("\n")[0])
            return
        if bool(((found - truth).abs() <= tolerance * truth.sum(dim=1, keepdim=True)).all()):
            self.method = "vmap"


@contextmanager
def gradient_norms(model: nn.Module, ids: Tensor, positions: Tensor) -> Iterator[PaddedNorms]:
    """Give ghost norms if they agree with autograd on `ids` [B, T] at `positions`, else the slower norms.

    The reason for the slower ones is logged, and kept in their `reason`.
    Raises `ConfigError` for a model without trainable parameters, or with inputs that affect one another, and
    `RunFailedError` for gradients that are not finite.
    """
    try:
        ghost = GhostNorms(model)
        with ghost:
            ghost.verify(ids, positions)
            reason = None
    except NotCoveredError as error:
        reason = str(error)
    if reason is None:
        with ghost:
            yield ghost
        return
    with GradientNorms(model) as slow:
        slow.verify(ids, positions)
        log.warning(
            "the Fisher trace of this %s is computed from every input's own gradient (%s), many times slower "
            "than by ghost norms: %s",
            type(model).__name__,
            slow.method,
            reason,
        )
        slow.reason = reason
        yield slow
