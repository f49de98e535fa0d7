"""Gradient norms of any architecture, from every input's own gradient: slower, and never wrong.

Where ghost norms do not know a module, or a model uses a parameter otherwise than by calling its module, each
input's gradient is formed and squared: for many inputs at once by `torch.func` (vmap of a vector-Jacobian
product) where the model allows it, else one input after the other.  Both are compared with each other, and
with the logits of the whole batch, before they are used.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from raysweep.errors import ConfigError
from raysweep.flatness.norms.ghost import (
    TOLERANCE,
    GhostNorms,
    Norms,
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


class GradientNorms:
    """Per-input squared gradient norms of any model, one column a trainable parameter.

    Use like `GhostNorms`.  `verify` settles `method`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._parameters, self.excluded = split_parameters(model)
        self.names = list(self._parameters)
        self.method = "one gradient at a time"
        self._inputs: tuple[Tensor, Tensor] | None = None
        size = sum(p.numel() for p in self._parameters.values())
        self._chunk = max(1, _HELD // size)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._inputs = None

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the logits [B, V] at `positions` [B] of masked `ids` [B, T], or [B, m, V] at [B, m]."""
        self._inputs = (ids, positions)
        with torch.no_grad():
            return masked_logits(self.model, ids, positions)

    def norms(self, cotangents: Tensor, *, last: bool = True) -> Tensor:
        """Return ‖Jᵀv‖² of `cotangents`, shaped as the logits: float64 [B, P], columns `names`."""
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
        wrapped = _Logits(self.model)

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
        """Choose the way on `ids` [B, T] at `positions`, and check that rows do not see one another.

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
            # What vmap cannot do raises any of these; the reason is said, and nothing is lost but time.
            log.info("vmap cannot differentiate %s: %s", type(self.model).__name__, str(error).split("\n")[0])
            return
        if bool(((found - truth).abs() <= tolerance * truth.sum(dim=1, keepdim=True)).all()):
            self.method = "vmap"


class _Logits(nn.Module):
    """The logits of a model as a module's forward, which `functional_call` needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return masked_logits(self.model, ids, positions)


@contextmanager
def gradient_norms(model: nn.Module, ids: Tensor, positions: Tensor) -> Iterator[tuple[Norms, str | None]]:
    """Give the fastest `Norms` that agree with autograd on `ids` [B, T] at `positions`.

    Beside them stands the reason why they are not ghost norms, None where they are; it is logged as well.
    Raises `ConfigError` for a model without trainable parameters, or whose inputs see one another, and
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
            yield ghost, None
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
        yield slow, reason
