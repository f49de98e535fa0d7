"""Derivatives along a direction of all parameters at once, another direction for every input of a batch.

For input i with logits z_i(θ), at one masked position or several, and a direction v_i in the space of
parameters, this gives

    ż_i = d/dε z_i(θ + ε v_i)            and            ⟨r_i, z̈_i⟩ = d²/dε² ⟨r_i, z_i(θ + ε v_i)⟩    at ε = 0

for a whole batch in one pass over the network, though no two inputs share a direction.  For the random
directions of Hutchinson's estimator, v_i has the entries ±1 of

    V_i = diag(σ_i) V diag(τ_i)  of a matrix,     σ_i  of a vector,

with signs V shared by all inputs and signs σ_i, τ_i of each input's own: a linear layer's part V_i a is
σ_i ∘ V (τ_i ∘ a), the price of one more product with a shared matrix (Wen, Vicol, Ba, Tran and Grosse,
"Flipout: efficient pseudo-independent weight perturbations on mini-batches", ICLR 2018).  E v_i v_iᵀ = I, and
given V the v_i are independent, so a mean of v_iᵀ A_i v_i is unbiased and its standard error is that of
independent values.  Signs are keyed by (seed, parameter, input number): the same for every model.

Derivatives are taken by reverse mode with respect to one number ε_i an input, which asks for no gradient of
any parameter.  (Forward mode twice would be slower, and it is wrong for LayerNorm: PyTorch's issue 196700.)
Models with other modules than `nn.Linear`, `nn.LayerNorm` and `nn.Embedding` take one input at a time, and
the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from raysweep.errors import ConfigError
from raysweep.flatness.evaluating import twice_differentiable
from raysweep.flatness.norms.ghost import MaskedLogits, masked_logits
from raysweep.models.base import MaskedLM
from raysweep.seeding import signs

log = logging.getLogger("raysweep.flatness")

#: Share of its norm by which a derivative may differ between the two ways of computing it.
_TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-2, torch.bfloat16: 0.2, torch.float16: 0.2}


class Directions:
    """Directions of a model's trainable parameters, and derivatives along them.

    By default directions are random signs; with `scaled` they are the parameters' own values times these
    signs, θ ∘ v_i; without `random` all are one: θ itself if `scaled`, else ones.
    """

    def __init__(self, model: MaskedLM, *, seed: int = 0, random: bool = True, scaled: bool = False) -> None:
        self.model, self.seed, self.random, self.scaled = model, seed, random, scaled
        self.parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise ConfigError("the model has no trainable parameter, so there is no direction to move it in")
        self._names = {id(p): n for n, p in self.parameters.items()}
        self._modules = [m for m in model.modules() if any(id(p) in self._names for p in _own(m))]
        self._together = all(type(m) in (nn.Linear, nn.LayerNorm, nn.Embedding) for m in self._modules)
        self._checked = self._said = False
        self._dtype = next(iter(self.parameters.values())).dtype
        self._shared: dict[str, Tensor] = {}
        self._flips: dict[tuple[str, str], Tensor] = {}
        self._index = torch.empty(0)

    def at(self, number: int) -> dict[str, Tensor]:
        """Return the direction of one input by the parameters' names, written out in full."""
        index = torch.tensor([number])
        self._begin(index)
        found = {}
        for name, parameter in self.parameters.items():
            shared = self._shared_part(name)
            if self.random and parameter.dim() == 2:
                shared = self._flip(name, "rows", index)[0][:, None] * shared
                shared = shared * self._flip(name, "columns", index)[0]
            elif self.random:
                shared = shared * self._flip(name, "rows", index)[0].view_as(parameter)
            found[name] = shared
        return found

    def first(self, ids: Tensor, positions: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and ż [B, C] of masked `ids` [B, T] at `positions` [B]; `index` [B] numbers them.

        At several positions [B, m], −1 for none, they are [B, m, C], and those of none mean nothing.
        """
        found = []
        for _, logits, step in self._pieces(ids, positions, index, alone=self.random):
            found.append(_slopes(logits, step))
        logits, slopes = (torch.cat(parts) for parts in zip(*found, strict=True))
        return logits, slopes

    def second(
        self, ids: Tensor, positions: Tensor, index: Tensor, weights: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Return ⟨r, z̈⟩ [B], where r [b, C] = `weights`(logits [b, C], their places [b] in the batch).

        At several positions logits and r are [b, m, C], and r is to be 0 where there is none.
        """
        found = []
        for rows, logits, step in self._pieces(ids, positions, index, alone=True):
            (slope,) = torch.autograd.grad(logits, step, weights(logits.detach(), rows), create_graph=True)
            found.append(torch.autograd.grad(slope.sum(), step)[0])
        return torch.cat(found)

    def _pieces(
        self, ids: Tensor, positions: Tensor, index: Tensor, *, alone: bool
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield (rows [b], logits [b, C], steps ε at 0) with their graph, all rows covered in order.

        Steps are [b], one a row, or [1], one for all rows where these need not stand `alone`.
        """
        if self._together and not self._checked:
            # The last is the longest of a pool's batch; attention has no effect in a sentence of one word.
            self._check(ids[-1:], positions[-1:], index[-1:])
        rows = torch.arange(len(ids), device=ids.device)
        if self._together:
            yield rows, *self._hooked(ids, positions, index)
            return
        self._say()
        for part in rows.split(1 if alone else len(rows)):
            yield part, *self._written_out(ids[part], positions[part], index[part])

    def _hooked(self, ids: Tensor, positions: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, C] and steps [B]: every module adds what its own parameters' step does."""
        self._begin(index)
        step = torch.zeros(len(ids), device=ids.device, dtype=self._dtype, requires_grad=True)

        def move(module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor:
            change = self._change(module, args[0], output)
            return output + step.view(-1, *[1] * (change.dim() - 1)) * change

        handles = [module.register_forward_hook(move) for module in self._modules]
        try:
            with torch.enable_grad():
                return masked_logits(self.model, ids, positions), step
        finally:
            for handle in handles:
                handle.remove()

    def _written_out(self, ids: Tensor, positions: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits [B, C] and the step [1]: the model at θ + ε v, with v that of the first input."""
        direction = self.at(int(index[0]))
        step = torch.zeros(1, device=ids.device, dtype=self._dtype, requires_grad=True)
        longest = int((ids != self.model.pad_id).sum(dim=1).max())
        with torch.enable_grad(), twice_differentiable(self.model):
            moved = {f"model.{n}": p.detach() + step * direction[n] for n, p in self.parameters.items()}
            return functional_call(MaskedLogits(self.model), moved, (ids[:, :longest], positions)), step

    def _check(self, ids: Tensor, positions: Tensor, index: Tensor) -> None:
        """Compare both ways on one input; where they differ, inputs are taken one at a time from then on."""
        self._checked = True
        one, other = (_slopes(*way(ids, positions, index))[1] for way in (self._hooked, self._written_out))
        # Values that are not finite raise an error where they are measured, so they pass here.
        self._together = not bool((one - other).norm() > _TOLERANCE[self._dtype] * other.norm())

    def _say(self) -> None:
        if not self._said:
            self._said = True
            log.info(
                "%s uses other modules than Linear, LayerNorm and Embedding, or these otherwise than by "
                "calling them: derivatives along random directions are taken one input at a time",
                type(self.model).__name__,
            )

    def _change(self, module: nn.Module, given: Tensor, output: Tensor) -> Tensor:
        """Return the derivative of a module's output by ε through its own parameters, inputs held."""
        total: Tensor | None = None
        weight, bias = module.weight, getattr(module, "bias", None)
        if id(weight) in self._names:
            name = self._names[id(weight)]
            shared = self._shared_part(name)
            if isinstance(module, nn.LayerNorm):
                total = F.layer_norm(given, module.normalized_shape, eps=module.eps)
                total = total * self._rowwise(name, shared, output)
            elif isinstance(module, nn.Embedding):
                given = given.expand(len(self._index), -1)
                total = F.embedding(given, shared)
                if self.random:
                    rows = self._flip(name, "rows", self._index).gather(1, given)
                    total = total * rows[:, :, None] * self._flip(name, "columns", self._index)[:, None]
            elif self.random:
                given = given * _spread(self._flip(name, "columns", self._index), given)
                total = F.linear(given, shared) * _spread(self._flip(name, "rows", self._index), output)
            else:
                total = F.linear(given, shared)
        if bias is not None and id(bias) in self._names:
            name = self._names[id(bias)]
            change = self._rowwise(name, self._shared_part(name), output)
            total = change if total is None else total + change
        if total is None:
            raise RuntimeError(f"{module} has no parameter to move")
        return total

    def _begin(self, index: Tensor) -> None:
        """Forget the signs of the last batch's inputs; those of `index` are made when they are needed."""
        self._index = index
        self._flips.clear()

    def _shared_part(self, name: str) -> Tensor:
        """Return the common factor of all inputs' directions for a parameter: V, θ or θ ∘ V; else ones."""
        if name not in self._shared:
            parameter = self.parameters[name].detach()
            shared = parameter if self.scaled else torch.ones_like(parameter)
            if self.random and parameter.dim() == 2:
                rows = torch.arange(len(parameter), device=parameter.device)
                drawn = signs(self.seed, f"direction/{name}", rows, parameter.shape[1])
                shared = shared * drawn.to(parameter.dtype)
            self._shared[name] = shared
        return self._shared[name]

    def _flip(self, name: str, side: str, index: Tensor) -> Tensor:
        """Return the inputs' own signs [B, n] for the rows or columns of a matrix, or for a vector."""
        if (name, side) not in self._flips:
            parameter = self.parameters[name]
            count = parameter.shape[side == "columns"] if parameter.dim() == 2 else parameter.numel()
            drawn = signs(self.seed, f"direction/{name}/{side}", index.to(parameter.device), count)
            self._flips[name, side] = drawn.to(parameter.dtype)
        return self._flips[name, side]

    def _rowwise(self, name: str, shared: Tensor, output: Tensor) -> Tensor:
        """Return a vector parameter's direction, of shape that broadcasts with `output` [B, ..., n]."""
        if not self.random:
            return shared
        return _spread(shared * self._flip(name, "rows", self._index), output)


def _slopes(logits: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits and their derivative [B, C] by the step."""
    # ⟨u, ż⟩ is linear in u: its derivative by u is ż, at any u.
    u = torch.zeros_like(logits, requires_grad=True)
    (product,) = torch.autograd.grad(logits, step, u, create_graph=True)
    (slope,) = torch.autograd.grad(product.sum(), u)
    return logits.detach(), slope


def _own(module: nn.Module) -> Iterator[nn.Parameter]:
    return module.parameters(recurse=False)


def _spread(rows: Tensor, like: Tensor) -> Tensor:
    """Return `rows` [B, n] with the axes between that `like` [B, ..., n] has."""
    return rows.view(len(rows), *[1] * (like.dim() - 2), rows.shape[1])
