"""The protocol of per-input gradient norms: every input's own ‖Jᵀv‖², however it is computed.

`raysweep.flatness.fused.norms` computes them by compiled passes, `raysweep.flatness.norms.ghost` by hooks,
and `raysweep.flatness.norms.fallback` from every input's own gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from torch import Tensor, nn

from raysweep.flatness.inputs import batch_rows, padding_id

if TYPE_CHECKING:
    from raysweep.flatness.vectors import Drawing


@dataclass(frozen=True, kw_only=True)
class Forward:
    """One batch of inputs behind its forward pass.

    `rows` [b] number the inputs.  `logits` are [b, V], or [b, m, V] with `real` [b, m] False where an input
    has no position.  `hidden` are the inputs of the module that was asked for, shaped alike; None without
    one.  `norms(v, last)` returns ‖Jᵀv‖² of vectors v shaped as the logits, float64 [b, P]; after a call with
    `last` there is no other.
    """

    rows: Tensor
    logits: Tensor
    real: Tensor | None
    hidden: Tensor | None
    norms: Callable[[Tensor, bool], Tensor]


class Norms(Protocol):
    """Squared norms of Jᵀv by input and parameter.

    `names` are the parameters of the columns and `excluded` the frozen ones.  `method` says how norms are
    computed, and `reason` why not by ghost norms, None where they are.
    """

    names: list[str]
    excluded: list[str]
    method: str
    reason: str | None

    def batches(
        self, masked: Tensor, positions: Tensor, *, at: nn.Module | None = None, batch: int | None = None
    ) -> Iterator[Forward]:
        """Yield the forward pass of every batch of `masked` ids [n, T] at `positions`, [n] or [n, m].

        The hidden states are the inputs of `at`.  A batch has `batch` inputs where the implementation has
        padded batches, and by default as many as suit the device.
        """

    def vectors(self, drawing: Drawing, forward: Forward, index: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Yield the test vectors of a batch of inputs numbered `index` [b], each with its weight."""


class PaddedNorms(ABC):
    """Norms of padded batches, with the forward pass of the model itself.

    Use it as a context manager, and keep the model's weights as they are meanwhile.
    """

    names: list[str]
    excluded: list[str]
    method: str
    reason: str | None = None
    model: nn.Module

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *error: object) -> None: ...

    @abstractmethod
    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the logits [B, V] at `positions` [B] of masked `ids` [B, T], or [B, m, V] at [B, m].

        They are detached.  A position of −1 stands for none, and its test vector must be 0.
        """

    @abstractmethod
    def norms(self, cotangents: Tensor, *, last: bool = True) -> Tensor:
        """Return ‖Jᵀv‖² of `cotangents`, shaped as the logits: float64 [B, P], columns `names`.

        What `forward` kept is freed unless `last` is False.
        """

    def batches(
        self, masked: Tensor, positions: Tensor, *, at: nn.Module | None = None, batch: int | None = None
    ) -> Iterator[Forward]:
        """Yield the forward pass of every batch; see `Norms.batches`."""
        lengths = (masked != padding_id(self.model)).sum(dim=1)
        width, classes = (int(getattr(self.model, *of)) for of in (("width", 512), ("total_vocabulary", 0)))
        for rows in batch_rows(lengths, width, batch, classes):
            places = positions[rows]
            with _inputs_of(at) as seen:
                logits = self.forward(masked[rows, : int(lengths[rows[-1]])], places)
            yield Forward(
                rows=rows,
                logits=logits,
                real=places >= 0 if places.dim() == 2 else None,
                hidden=None if at is None else seen[-1].view(*logits.shape[:-1], -1),
                norms=lambda v, last: self.norms(v, last=last),
            )

    def vectors(self, drawing: Drawing, forward: Forward, index: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Yield the test vectors of a batch, each with its weight."""
        return drawing.vectors(forward.logits, index, forward.real)


@contextmanager
def _inputs_of(module: nn.Module | None) -> Iterator[list[Tensor]]:
    """Give a list to which the inputs of `module` are appended at each of its calls."""
    seen: list[Tensor] = []
    if module is None:
        yield seen
        return
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach()))
    try:
        yield seen
    finally:
        handle.remove()
