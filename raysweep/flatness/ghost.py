"""Ghost norms: every input's own gradient norm from one backward pass over a batch.

For logits z(x; θ) with Jacobian J = ∂z/∂θ at one masked position, and a cotangent v for each input, the
squared norms ‖Jᵀv‖² are wanted for each input and parameter, without ever forming a gradient.  With the
input a_s and the output's cotangent d_s of a module at the S places where it is applied to one sentence,

    linear weight        ‖Σ_s d_s a_sᵀ‖² = Σ_{s,t} (a_s·a_t)(d_s·d_t),
    embedding            ‖Σ_s e_{x_s} d_sᵀ‖² = Σ_{s,t} 1[x_s = x_t] (d_s·d_t),
    linear and embedding that share one weight:  both, and  2 Σ_{s,t} d_s[x_t] (a_s·d'_t),
    bias                 ‖Σ_s d_s‖²,
    LayerNorm weight     ‖Σ_s x̂_s ⊙ d_s‖², its bias ‖Σ_s d_s‖².

Linear weights take whichever is cheaper: this form, S²(I + O) products, or the plain one, S·I·O.
Sources: Goodfellow, "Efficient per-example gradient computations" (2015); Li, Tramèr, Liang and Hashimoto,
"Large language models can be strong differentially private learners" (ICLR 2022), appendix F.

The values hold for modules called as modules, one row of the batch per input.  `GhostNorms.verify` compares
them with autograd's on real inputs, so that a model that computes otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.errors import ConfigError, RunFailedError

#: Share of the total by which a verified norm may differ from autograd's, by dtype.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}


@dataclass(frozen=True)
class _Call:
    """One call of one module: `inputs` [B, S, I] or ids [B, S], `output` [B, S, O]."""

    module: nn.Module
    inputs: Tensor
    output: Tensor
    gram: int  # calls with the same number share one input, and its Gram matrix
    distinct: bool = False  # an embedding's ids are all different


@dataclass(frozen=True)
class _Use:
    """One role of a parameter: `weight` or `bias` of a module."""

    module: nn.Module
    role: str


class GhostNorms:
    """Per-input squared gradient norms of a masked language model, one column a trainable parameter.

    Use as a context manager; hooks are removed at its end.  Frozen parameters are left out and named in
    `excluded`.

    Raises `ConfigError` for a trainable parameter of a module that is not a plain `nn.Linear`,
    `nn.LayerNorm` or `nn.Embedding`.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.names: list[str] = []
        self.excluded: list[str] = []
        self._parameters: list[nn.Parameter] = []
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.names.append(name)
                self._parameters.append(parameter)
            else:
                self.excluded.append(name)
        if not self.names:
            raise ConfigError("the model has no trainable parameter, so it has no Fisher trace")
        self._uses: dict[int, list[_Use]] = {id(p): [] for p in self._parameters}
        self._modules: list[nn.Module] = []
        for path, module in model.named_modules():
            own = [(r, p) for r, p in module.named_parameters(recurse=False) if id(p) in self._uses]
            if own:
                _check_module(path, module)
                self._modules.append(module)
            for role, parameter in own:
                self._uses[id(parameter)].append(_Use(module, role))
        self._handles: list[Any] = []
        self._recording = False
        self._clear()

    def __enter__(self) -> Self:
        self._handles = [module.register_forward_hook(self._record) for module in self._modules]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._clear()

    def _clear(self) -> None:
        self._calls: list[_Call] = []
        self._inputs: dict[int, tuple[int, Any]] = {}
        self._grams: dict[int, Tensor] = {}
        self._logits: Tensor | None = None
        self._rows = 0

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return the logits [B, V] at `positions` [B] of masked `ids` [B, T], detached; keep the graph."""
        self._clear()
        self._rows = len(ids)
        self._recording = True
        try:
            with torch.enable_grad():
                self._logits = self.model(ids, positions)
        finally:
            self._recording = False
        called = {id(call.module) for call in self._calls}
        for name, parameter in zip(self.names, self._parameters, strict=True):
            if not any(id(use.module) in called for use in self._uses[id(parameter)]):
                raise ConfigError(
                    f"parameter {name} takes no visible part in the forward pass; freeze it "
                    "(requires_grad_(False)) to leave it out of the trace, or call its module as a module"
                )
        return self._logits.detach()

    def norms(self, cotangents: Tensor, *, last: bool = True) -> Tensor:
        """Return ‖Jᵀv‖² of `cotangents` v [B, V] by input and parameter: float64 [B, P], columns `names`.

        The graph of `forward` is freed unless `last` is False.
        """
        if self._logits is None:
            raise RuntimeError("call forward first")
        gradients = torch.autograd.grad(
            self._logits, [call.output for call in self._calls], cotangents, retain_graph=not last
        )
        calls: dict[int, list[tuple[_Call, Tensor]]] = {}
        for call, gradient in zip(self._calls, gradients, strict=True):
            calls.setdefault(id(call.module), []).append((call, _places(gradient)))
        columns = [self._norm(self._uses[id(p)], calls) for p in self._parameters]
        if last:
            self._clear()
        return torch.stack(columns, dim=1)

    def _norm(self, uses: list[_Use], calls: Mapping[int, list[tuple[_Call, Tensor]]]) -> Tensor:
        """Return the squared norm [B] of one parameter's gradient: all pairs of its uses."""
        terms = [(use, *call) for use in uses for call in calls.get(id(use.module), ())]
        roles = {use.role for use in uses}
        if roles == {"bias"} or all(isinstance(use.module, nn.LayerNorm) for use in uses):
            return _squared(torch.stack([_vector(use, call, d) for use, call, d in terms]).sum(dim=0))
        total = torch.zeros(self._rows, dtype=torch.float64, device=terms[0][2].device)
        for i, (_, call, d) in enumerate(terms):
            total += self._own(call, d)
            for _, other, e in terms[i + 1 :]:
                total += 2 * _cross(call, d, other, e)
        return total

    def _own(self, call: _Call, d: Tensor) -> Tensor:
        """Return ‖gradient‖² [B] of a matrix from one call with cotangents d [B, S, O]."""
        a, places = call.inputs, d.shape[1]
        if isinstance(call.module, nn.Embedding):
            if call.distinct or places == 1:
                return _squared(d.flatten(1))
            if call.gram not in self._grams:
                self._grams[call.gram] = (a[:, :, None] == a[:, None, :]).to(d.dtype)
        elif places == 1:
            return _squared(a[:, 0]) * _squared(d[:, 0])
        elif places * (a.shape[2] + d.shape[2]) > a.shape[2] * d.shape[2]:
            return _squared((d.transpose(1, 2) @ a).flatten(1))
        elif call.gram not in self._grams:
            self._grams[call.gram] = a @ a.transpose(1, 2)
        return (self._grams[call.gram] * (d @ d.transpose(1, 2))).sum((1, 2), dtype=torch.float64)

    def _record(self, module: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
        """Keep a call's input and output; called by torch behind every forward of a parametric module."""
        if not self._recording:
            return None
        inputs = args[0]
        changed = False
        distinct = False
        if isinstance(module, nn.Embedding):
            output, changed = output.detach(), True
            if inputs.dim() == 1:
                # Ids shared by all rows, such as positions: each row gets its own copy of the output, or
                # its cotangent would be summed over the batch.
                distinct = len(inputs.unique()) == len(inputs)
                inputs = inputs.expand(self._rows, -1)
                output = output.expand(self._rows, *output.shape).contiguous()
        elif not output.requires_grad:
            output, changed = output.detach(), True
        if changed:
            output.requires_grad_()
        if inputs.shape[0] != self._rows:
            raise ConfigError(
                f"a {type(module).__name__} was called on {inputs.shape[0]} rows for {self._rows} inputs; "
                "ghost norms need the batch as the first axis of every call"
            )
        # The tensor is kept beside its number, so that its id cannot be given to another one.
        number, _ = self._inputs.setdefault(id(args[0]), (len(self._inputs), args[0]))
        flat = inputs.flatten(1) if isinstance(module, nn.Embedding) else _places(inputs.detach())
        self._calls.append(_Call(module, flat, output, number, distinct))
        return output if changed else None

    def verify(self, ids: Tensor, positions: Tensor) -> None:
        """Compare with autograd's own gradients on `ids` [B, T] at `positions` [B], one backward an input.

        Raises `ConfigError` naming the worst parameter where one differs by more than `TOLERANCE` of the
        total, and `RunFailedError` where gradients are not finite.
        """
        logits = self.forward(ids, positions)
        # Signs that differ from class to class and row to row, so that no term vanishes by symmetry.
        signs = torch.arange(logits.numel(), device=logits.device).mul(2654435761).bitwise_right_shift(13)
        v = (signs.bitwise_and(1) * 2 - 1).to(logits.dtype).view_as(logits)
        ghost = self.norms(v)
        with torch.enable_grad():
            truth = self.model(ids, positions)
        for row in range(len(ids)):
            gradients = torch.autograd.grad(
                truth[row], self._parameters, v[row], retain_graph=row + 1 < len(ids), allow_unused=True
            )
            dense = torch.stack(
                [ghost.new_zeros(()) if g is None else g.double().square().sum() for g in gradients]
            )
            if not bool(dense.isfinite().all()):
                raise RunFailedError(
                    "the model's gradients are not finite, so it has no Fisher trace; "
                    "look at its training loss, and lower the learning rate"
                )
            gap = (dense - ghost[row]).abs() / dense.sum()
            if not bool((gap <= TOLERANCE[logits.dtype]).all()):
                worst = int(gap.nan_to_num(nan=torch.inf).argmax())
                raise ConfigError(
                    f"the model uses {self.names[worst]} otherwise than by calling its module: squared "
                    f"gradient norm {float(dense[worst]):.6g}, but {float(ghost[row, worst]):.6g} by ghost "
                    "norms; its Fisher trace cannot be computed this way"
                )


def _check_module(path: str, module: nn.Module) -> None:
    """Refuse a module whose gradient norms are not known."""
    known = type(module) in (nn.Linear, nn.LayerNorm, nn.Embedding)
    if isinstance(module, nn.Embedding):
        known &= module.max_norm is None and not module.scale_grad_by_freq and module.padding_idx is None
    if isinstance(module, nn.LayerNorm):
        known &= len(module.normalized_shape) == 1
    if not known:
        raise ConfigError(
            f"{path or 'the model itself'}: the trainable parameters of {module} have no known ghost norm; "
            "use plain nn.Linear, nn.LayerNorm or nn.Embedding, or freeze them (requires_grad_(False))"
        )


def _places(x: Tensor) -> Tensor:
    """Return x [B, ..., D] as [B, S, D]."""
    return x[:, None] if x.dim() == 2 else x.flatten(1, -2)


def _squared(x: Tensor) -> Tensor:
    """Return the squared norm [B] of each row of x [B, N], in float64."""
    return x.square().sum(dim=1, dtype=torch.float64)


def _vector(use: _Use, call: _Call, d: Tensor) -> Tensor:
    """Return the gradient itself [B, D] of a bias, or of a LayerNorm's weight."""
    if use.role == "weight" and isinstance(call.module, nn.LayerNorm):
        d = d * F.layer_norm(call.inputs, call.module.normalized_shape, eps=call.module.eps)
    return d.sum(dim=1)


def _cross(one: _Call, d: Tensor, other: _Call, e: Tensor) -> Tensor:
    """Return <gradient from one call, gradient from another> [B] of a matrix that both share."""
    lookups = [isinstance(call.module, nn.Embedding) for call in (one, other)]
    if lookups == [True, False]:
        return _cross(other, e, one, d)
    if lookups == [False, True]:
        # d [B, S, V] has a column for every row of the table: those that were looked up are picked out.
        picked = d.gather(2, other.inputs[:, None, :].expand(-1, d.shape[1], -1))
        weight = one.inputs @ e.transpose(1, 2)
    elif lookups == [True, True]:
        picked = (one.inputs[:, :, None] == other.inputs[:, None, :]).to(d.dtype)
        weight = d @ e.transpose(1, 2)
    else:
        picked = one.inputs @ other.inputs.transpose(1, 2)
        weight = d @ e.transpose(1, 2)
    return (picked * weight).sum((1, 2), dtype=torch.float64)
