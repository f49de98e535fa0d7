"""Records of the calls of a model's modules in a forward pass, for ghost norms.

While a model records, each of its known modules computes as usual, but on detached weights.  It keeps its
input and its output; the output is a *tap*, and the backward pass returns the cotangent of every tap.  A use
of a parameter in such a call is a `Term`; `raysweep.flatness.norms.ghost` computes norms from terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.flatness.norms.recurrence import Recurrence


class NotCoveredError(ConfigError):
    """A model that uses a trainable parameter in a way that has no known ghost norm."""


@dataclass(frozen=True, kw_only=True)
class Term:
    """One use of a parameter, of a `kind`, on `inputs` [B, S, I] or ids [B, S], with the output `tap`.

    `part` are the parameter's columns of the tap.  Terms with the same `gram` share their input and its Gram
    matrix.  Places that are `blind` [B, S] give no gradient.
    """

    kind: Literal["matrix", "lookup", "scale", "sum"]
    tap: int
    inputs: Tensor
    part: slice | None = None
    gram: int = -1
    eps: float = 0.0
    blind: Tensor | None = None


def check_module(module: nn.Module) -> bool:
    """Return whether a module is one that ghost norms know."""
    known = type(module) in (nn.Linear, nn.LayerNorm, nn.Embedding, nn.LSTM)
    # An instance's own forward, such as another tool's wrapper, need not be that of its class.
    known &= "forward" not in vars(module)
    if isinstance(module, nn.Embedding):
        known &= module.max_norm is None and not module.scale_grad_by_freq
    if isinstance(module, nn.LayerNorm):
        known &= len(module.normalized_shape) == 1
    if isinstance(module, nn.LSTM):
        known &= module.proj_size == 0
    return known


class Taps:
    """Records of the calls of `modules`; `wanted` are the ids of the parameters that matter."""

    def __init__(self, modules: Sequence[nn.Module], wanted: set[int]) -> None:
        self._modules = modules
        self._wanted = wanted
        self._recording = False
        self.explored = False
        #: Linear modules that are called on one tensor, by the id of each; and their stacked weights.
        self._families: dict[int, tuple[nn.Linear, ...]] = {}
        self._stacked: dict[int, tuple[Tensor, Tensor | None]] = {}
        self._rows = 0
        self.clear()

    def clear(self) -> None:
        """Forget the last forward pass."""
        self.outputs: list[Tensor] = []
        #: Taps with time as their first axis and the batch as their second.
        self.timed: set[int] = set()
        self.terms: dict[int, list[Term]] = {}
        self.grams: dict[int, Tensor] = {}
        self._inputs: dict[int, tuple[int, Tensor]] = {}
        self._ahead: dict[tuple[int, int], Tensor] = {}
        self._calls: list[tuple[int, nn.Linear]] = []

    def attach(self) -> None:
        """Replace the forward of every module by one that records."""
        kinds: dict[type[nn.Module], Callable[..., object]] = {
            nn.Linear: self._linear,
            nn.LayerNorm: self._layer_norm,
            nn.Embedding: self._embedding,
            nn.LSTM: self._lstm,
        }
        for module in self._modules:
            object.__setattr__(module, "forward", partial(self._call, module, kinds[type(module)]))

    def detach(self) -> None:
        """Restore the modules."""
        for module in self._modules:
            object.__delattr__(module, "forward")
        self.clear()

    @contextmanager
    def recording(self, rows: int) -> Iterator[None]:
        """Record the calls of a forward pass on `rows` inputs."""
        self.clear()
        self._rows, self._recording = rows, True
        try:
            yield
        finally:
            self._recording = False

    def explore(self) -> None:
        """Find the families in the pass that was recorded, and stack their weights."""
        self.explored = True
        names = [id(module) for _, module in self._calls]
        groups: dict[int, list[nn.Linear]] = {}
        for number, module in self._calls:
            if names.count(id(module)) == 1:
                groups.setdefault(number, []).append(module)
        for family in groups.values():
            biases = [m.bias for m in family if m.bias is not None]
            if len(family) > 1 and len(biases) in (0, len(family)):
                weight = torch.cat([m.weight.detach() for m in family])
                bias = torch.cat([b.detach() for b in biases]) if biases else None
                for module in family:
                    self._families[id(module)] = tuple(family)
                    self._stacked[id(module)] = (weight, bias)
        self.clear()

    def _call(self, module: nn.Module, record: Callable[..., object], *args: Any, **kwargs: Any) -> object:
        """Do a module's forward, between `attach` and `detach`."""
        if not self._recording:
            return type(module).forward(module, *args, **kwargs)
        if kwargs or len(args) != 1 or not isinstance(args[0], Tensor):
            raise NotCoveredError(f"{module} is called with more than one tensor")
        rows = 1 if isinstance(module, nn.LSTM) and not module.batch_first else 0
        if args[0].shape[rows] != self._rows and not isinstance(module, nn.Embedding):
            raise NotCoveredError(
                f"{module} is called on {args[0].shape[rows]} rows for {self._rows} inputs, where ghost "
                "norms need the batch as an axis of every call"
            )
        return record(module, args[0])

    def _tap(self, output: Tensor) -> tuple[int, Tensor]:
        """Return the number of a new tap, and the output with a graph behind it."""
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        self.outputs.append(output)
        return len(self.outputs) - 1, output

    def _number(self, x: Tensor) -> int:
        """Return a number for an input; calls on the same tensor get the same."""
        # The tensor is kept beside its number, so that its id cannot be given to another one.
        return self._inputs.setdefault(id(x), (len(self._inputs), x))[0]

    def _add(self, parameter: Tensor | None, **fields: Any) -> None:
        if parameter is not None and id(parameter) in self._wanted:
            self.terms.setdefault(id(parameter), []).append(Term(**fields))

    def _linear(self, module: nn.Linear, x: Tensor) -> Tensor:
        ahead = self._ahead.pop((id(x), id(module)), None)
        if ahead is not None:
            return ahead
        number = self._number(x)
        self._calls.append((number, module))
        family = self._families.get(id(module), (module,))
        weight, bias = self._stacked.get(id(module), (module.weight.detach(), detached(module.bias)))
        tap, output = self._tap(F.linear(x, weight, bias))
        parts = output.split([m.out_features for m in family], dim=-1) if len(family) > 1 else (output,)
        flat, first = places(x.detach()), 0
        for member, part in zip(family, parts, strict=True):
            own = slice(first, first + member.out_features) if len(family) > 1 else None
            self._add(member.weight, kind="matrix", tap=tap, inputs=flat, part=own, gram=number)
            self._add(member.bias, kind="sum", tap=tap, inputs=flat, part=own)
            first += member.out_features
            if member is not module:
                self._ahead[id(x), id(member)] = part
        return parts[family.index(module)]

    def _layer_norm(self, module: nn.LayerNorm, x: Tensor) -> Tensor:
        made = F.layer_norm(
            x, module.normalized_shape, detached(module.weight), detached(module.bias), module.eps
        )
        tap, output = self._tap(made)
        flat = places(x.detach())
        self._add(module.weight, kind="scale", tap=tap, inputs=flat, eps=module.eps)
        self._add(module.bias, kind="sum", tap=tap, inputs=flat)
        return output

    def _embedding(self, module: nn.Embedding, ids: Tensor) -> Tensor:
        number = self._number(ids)
        if ids.dim() == 1:
            ids = ids[None]
        if len(ids) != self._rows:
            # Ids shared by all rows, such as positions: each row gets its own copy of the output, or its
            # cotangent would be summed over the batch.
            if len(ids) != 1:
                raise NotCoveredError(f"{module} is called on {len(ids)} rows for {self._rows} inputs")
            ids = ids.expand(self._rows, *ids.shape[1:])
        tap, output = self._tap(F.embedding(ids, module.weight.detach()))
        flat = ids.flatten(1)
        blind = None if module.padding_idx is None else flat == module.padding_idx
        self._add(module.weight, kind="lookup", tap=tap, inputs=flat, gram=number, blind=blind)
        return output

    def _lstm(self, module: nn.LSTM, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if module.training and module.dropout:
            raise NotCoveredError(f"{module} has dropout between its layers, which must be off")
        if module.batch_first:
            x = x.transpose(0, 1)
        ends, cells = [], []
        for layer in range(module.num_layers):
            made = []
            for suffix in ("", "_reverse")[: 1 + module.bidirectional]:
                given = x.flip(0) if suffix else x
                hidden, cell = self._direction(module, f"_l{layer}{suffix}", given)
                ends.append(hidden[-1])
                cells.append(cell)
                made.append(hidden.flip(0) if suffix else hidden)
            x = torch.cat(made, dim=-1) if len(made) > 1 else made[0]
        out = x.transpose(0, 1) if module.batch_first else x
        return out, (torch.stack(ends), torch.stack(cells))

    def _direction(self, module: nn.LSTM, name: str, x: Tensor) -> tuple[Tensor, Tensor]:
        """Run one layer one way over x [T, B, I]: hidden states [T, B, H] and the last cells [B, H]."""
        into, across = getattr(module, f"weight_ih{name}"), getattr(module, f"weight_hh{name}")
        biases = [getattr(module, f"bias_{what}{name}") for what in ("ih", "hh")] if module.bias else []
        bias = torch.stack([b.detach() for b in biases]).sum(dim=0) if biases else None
        tap, pre = self._tap(F.linear(x, into.detach(), bias))
        self.timed.add(tap)
        hidden, cell = Recurrence.apply(pre, across.detach())
        before = torch.zeros_like(hidden)
        before[1:] = hidden.detach()[:-1]
        given, before = x.detach().transpose(0, 1), before.transpose(0, 1)
        self._add(into, kind="matrix", tap=tap, inputs=given, gram=self._number(given))
        self._add(across, kind="matrix", tap=tap, inputs=before, gram=self._number(before))
        for b in biases:
            self._add(b, kind="sum", tap=tap, inputs=given)
        return hidden, cell


def detached(x: Tensor | None) -> Tensor | None:
    """Return a tensor without its graph; None stays None."""
    return None if x is None else x.detach()


def places(x: Tensor) -> Tensor:
    """Return x [B, ..., D] as [B, S, D]."""
    return x[:, None] if x.dim() == 2 else x.flatten(1, -2)
