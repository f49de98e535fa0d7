"""Weights and the sums of their gradients, shared by the fused training paths of models (`.step`)."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.models.base import MaskedLM
from raysweep.models.fused.products import Product, add_outer, array, empty

_VECTOR = 16  # float32 numbers that lie in one line of the cache


@dataclass(frozen=True)
class Matrix:
    """A weight in low precision, and the sum of the gradient of the float32 weight.

    It multiplies arrays as `raysweep.models.fused.products.array` returns them: bfloat16's bits are uint16.
    The weight is laid out at its first product of many rows (`Product`); call `forget` between a change of it
    and the next product.

    A matrix of several `heads` H is block-diagonal: each has O / H of its rows, and I columns of its own.  So
    what is [N, I] below is [N, H I] for it.
    """

    low: Tensor
    gradient: np.ndarray
    heads: int = 1
    parts: dict[tuple[int, int, int], Matrix] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def _applied(self) -> Product:
        return Product(self.by_head.mT)

    @cached_property
    def _returned(self) -> Product:
        return Product(self.by_head)

    @property
    def by_head(self) -> Tensor:
        """The weight of each head [H, O / H, I]."""
        return self.low.view(self.heads, -1, self.low.shape[1])

    def apply(self, x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return x [N, I] times the weight [O, I], transposed; in `out` if given, which is contiguous."""
        return self._applied(x, out)

    def back(self, d: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Add the weight's gradient, and return that of x, given d [N, O], that of `apply(x)`."""
        self.learn(d, x)
        return self.through(d)

    def learn(self, d: np.ndarray, x: np.ndarray, row: np.ndarray | None = None) -> None:
        """Add the weight's gradient, given d [N, O], that of `apply(x)`.

        `row` [N] is the row of each word of the chunk in d and x, or −1; without it the words, or the masked
        ones, stand there in their order.
        """
        add_outer(self.gradient, d, x, self.heads)

    def through(self, d: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """Return d [N, O] times the weight, in `out` if given, which is contiguous."""
        return self._returned(d, out)

    def forget(self) -> None:
        """Lay the weight out anew at its next products: its values will change."""
        for made in ("_applied", "_returned"):
            if made in self.__dict__:
                self.__dict__[made].forget()
        for part in self.parts.values():
            part.forget()

    def part(self, rows: slice, heads: int = 1) -> Matrix:
        """Return some of its rows as a matrix of their own, of so many heads, always the same one."""
        first, last, _ = rows.indices(len(self.low))
        if (first, last, heads) not in self.parts:
            self.parts[first, last, heads] = self._part(slice(first, last), heads)
        return self.parts[first, last, heads]

    def _part(self, rows: slice, heads: int) -> Matrix:
        return Matrix(self.low[rows], self.gradient[rows], heads)


@dataclass(frozen=True)
class Vector:
    """A bias or a LayerNorm's parameter, and the sum of its gradient."""

    value: np.ndarray
    gradient: np.ndarray


class Weights:
    """A model's parameters as they are now, in the working precision, with sums of gradients.

    Kinds of models add theirs; `sums` holds by a parameter's id where its gradient is summed.  All sums lie
    in one piece of memory (`room`).
    """

    decoder_bias: Vector

    def __init__(self, model: MaskedLM, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.parameters = list(model.parameters())
        self.sums: dict[int, Tensor] = {}
        self._memory = _memory(self.parameters)
        self._all = torch.zeros(sum(_padded(p.numel()) for p in self.parameters), dtype=torch.float32)
        self._used = 0
        self._low = array(torch.empty(0, dtype=dtype)).dtype
        self._matrices: list[Matrix] = []
        #: The parameters whose gradients were given out last, by their ids, and where their sums lie in the
        #: memory of all: size, stride, first number, and whether the sum must be copied to be a gradient.
        self._asked: list[int] = []
        self._parts: list[tuple[torch.Size, tuple[int, ...], int, bool]] = []
        #: Memory of this object, and the parameters whose values it has in its own precision or order.
        self._copies: tuple[list[Tensor], list[Tensor]] = ([], [])

    def serve(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> bool:
        """Return whether these are the weights of `parameters` in `dtype`, up to their values."""
        same = len(parameters) == len(self.parameters) and all(map(operator.is_, parameters, self.parameters))
        return same and dtype == self.dtype and self._memory == _memory(parameters)

    def renew(self) -> None:
        """Take the values of the parameters as they are now, and set all sums to zero."""
        self._all.zero_()
        if self._copies[0]:
            torch._foreach_copy_(*self._copies)

    def rest(self) -> bool:
        """Make way for other values; return whether these weights may be kept for the next step."""
        for matrix in self._matrices:
            matrix.forget()
        # Memory of inference mode cannot be written to outside of it, and other tensors hold graphs.
        return not self._all.is_inference() and all(p.is_leaf for p in self.parameters)

    def gradients(self, parameters: Sequence[Tensor], *, own: bool) -> list[Tensor]:
        """Return the parameters' gradients, none in the memory of another.

        Without `own` they are the sums themselves where they can be.
        """
        asked = list(map(id, parameters))
        if asked != self._asked:
            self._asked, self._parts = asked, list(self._places(asked))
        whole = self._all.clone() if own else self._all
        found = [whole.as_strided(size, stride, first) for size, stride, first, _ in self._parts]
        for k, (_, _, _, again) in enumerate(self._parts):
            if again:
                found[k] = found[k].clone(memory_format=torch.contiguous_format)
        return found

    def _places(self, asked: Sequence[int]) -> Iterator[tuple[torch.Size, tuple[int, ...], int, bool]]:
        """Yield the `_parts` of parameters, given by their ids."""
        given = set[int]()
        for key in asked:
            part = self.sums[key]
            first = int(part.storage_offset())
            # Parameters with equal gradients share one sum.
            yield part.size(), part.stride(), first, first in given or not part.is_contiguous()
            given.add(first)

    def add(self, other: Weights) -> None:
        """Add the sums of the same parameters' gradients that were made beside these."""
        self._all.add_(other._all)

    def room(self, shape: Sequence[int]) -> Tensor:
        """Return zeros for the sum of a gradient, in vectors of their own."""
        first = self._used
        self._used += _padded(prod(shape))
        return self._all[first : first + prod(shape)].view(*shape)

    def low(self, rows: int, columns: int) -> np.ndarray:
        """Return an empty matrix in the working precision, as the kernels take it."""
        return empty(rows, columns, self._low)

    def _sum(self, parameter: Tensor) -> Tensor:
        if id(parameter) not in self.sums:
            self.sums[id(parameter)] = self.room(parameter.shape)
        return self.sums[id(parameter)]

    def _matrix(self, *weights: Tensor, dim: int = 0) -> Matrix:
        """Return weights side by side along `dim` as one matrix; their gradients are parts of its own."""
        if len(weights) == 1:
            [weight] = weights
            total, low = self._sum(weight), weight.detach()
            if self.dtype != weight.dtype:
                low = self._copy(torch.empty_like(low, dtype=self.dtype), weights)
        else:
            shape = list(weights[0].shape)
            shape[dim] = sum(weight.shape[dim] for weight in weights)
            total = self._shared(self.room(shape), weights, dim)
            low = self._copy(torch.empty(shape, dtype=self.dtype), weights, dim)
        self._matrices.append(Matrix(low, array(total)))
        return self._matrices[-1]

    def _vector(self, *parameters: Tensor) -> Vector:
        """Return parameters one behind the other as one vector; their gradients are parts of its own."""
        if len(parameters) == 1:
            return Vector(array(parameters[0]), array(self._sum(parameters[0])))
        size = sum(map(len, parameters))
        total = self._shared(self.room([size]), parameters)
        return Vector(array(self._copy(torch.empty(size, dtype=torch.float32), parameters)), array(total))

    def _linear(self, module: nn.Linear) -> tuple[Matrix, Vector]:
        return self._matrix(module.weight), self._vector(module.bias)

    def _shared(self, total: Tensor, parameters: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Give each parameter its part of a sum along `dim`; return the sum."""
        parts = total.split([p.shape[dim] for p in parameters], dim)
        self.sums.update({id(p): part for p, part in zip(parameters, parts, strict=True)})
        return total

    def _copy(self, room: Tensor, parameters: Sequence[Tensor], dim: int = 0) -> Tensor:
        """Copy parameters side by side into `room` now and whenever their values change; return it."""
        parts, values = room.split([p.shape[dim] for p in parameters], dim), [p.detach() for p in parameters]
        torch._foreach_copy_(list(parts), values)
        for kept, more in zip(self._copies, (parts, values), strict=True):
            kept.extend(more)
        return room


def _memory(tensors: Sequence[Tensor]) -> tuple[object, ...]:
    """Return where and how tensors lie in memory."""
    return tuple(list(map(asked, tensors)) for asked in (Tensor.data_ptr, Tensor.size, Tensor.stride))


def _padded(size: int) -> int:
    """Return a number of float32 numbers, rounded up to whole vectors."""
    return -(-size // _VECTOR) * _VECTOR
