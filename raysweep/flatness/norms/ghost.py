"""Ghost norms: every input's own gradient norm from one backward pass over a batch.

For logits z(x; θ) with Jacobian J = ∂z/∂θ at the masked positions of an input, and a cotangent v for each
input, the squared norms ‖Jᵀv‖² are wanted for each input and parameter, without ever forming a gradient.
With the input a_s and the output's cotangent d_s of a module at the S places where it is applied to one
sentence,

    linear weight        ‖Σ_s d_s a_sᵀ‖² = Σ_{s,t} (a_s·a_t)(d_s·d_t),
    embedding            ‖Σ_s e_{x_s} d_sᵀ‖² = Σ_{s,t} 1[x_s = x_t] (d_s·d_t),
    linear and embedding that share one weight:  both, and  2 Σ_{s,t} d_s[x_t] (a_s·d'_t),
    bias                 ‖Σ_s d_s‖²,
    LayerNorm weight     ‖Σ_s x̂_s ⊙ d_s‖², its bias ‖Σ_s d_s‖²,
    LSTM                 two matrices and two biases with d_s the cotangent of the gates at step s, and a_s
                         the input or the hidden state before it (`raysweep.flatness.norms.recurrence`).

Linear weights take whichever is cheaper: this form, S²(I + O) products, or the plain one, S·I·O.
Sources: Goodfellow, "Efficient per-example gradient computations" (2015); Li, Tramèr, Liang and Hashimoto,
"Large language models can be strong differentially private learners" (ICLR 2022), appendix F.

Linear modules that are called on one tensor, such as an attention's queries, keys and values, are computed as
one matrix product and share its Gram matrix (`raysweep.flatness.norms.taps`).  For encoders and LSTMs on a
processor, `raysweep.flatness.fused.norms` is a faster implementation.  The values hold where modules are
called as modules, on one row of the batch per input.  `GhostNorms.verify` compares them with autograd's on
real inputs, which finds models that compute otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.norms.base import PaddedNorms
from raysweep.flatness.norms.taps import NotCoveredError, Taps, Term, check_module, places
from raysweep.models.base import MaskedLM

#: Share of the total by which a verified norm may differ from autograd's, by dtype.
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-4, torch.bfloat16: 5e-2, torch.float16: 5e-2}


def masked_logits(model: nn.Module, ids: Tensor, positions: Tensor) -> Tensor:
    """Return logits [B, V] at `positions` [B] of masked `ids` [B, T], or [B, m, V] at `positions` [B, m].

    A position of −1 stands for none, and its logits mean nothing.
    """
    if positions.dim() == 1 or not isinstance(model, MaskedLM):
        logits: Tensor = model(ids, positions)
        return logits
    hidden = model.encode(ids)
    index = positions.clamp(min=0)[:, :, None].expand(-1, -1, hidden.shape[-1])
    return model.head(hidden.gather(1, index))


class MaskedLogits(nn.Module):
    """A module with `masked_logits` of its `model` as its forward, for `functional_call`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return masked_logits(self.model, ids, positions)


def split_parameters(model: nn.Module) -> tuple[dict[str, nn.Parameter], list[str]]:
    """Return the trainable parameters by name, each once, and the names of the frozen ones.

    Raises `ConfigError` for a model without any that is trainable.
    """
    parameters = dict(model.named_parameters())
    trainable = {name: p for name, p in parameters.items() if p.requires_grad}
    if not trainable:
        raise ConfigError("the model has no trainable parameter, so it has no Fisher trace")
    return trainable, [name for name in parameters if name not in trainable]


class GhostNorms(PaddedNorms):
    """Per-input squared gradient norms of a masked language model, one column a trainable parameter.

    Known are plain `nn.Linear`, `nn.LayerNorm`, `nn.Embedding` and `nn.LSTM`; parameters of other modules
    have norm 0, until `verify` finds one that is used.  Use as a context manager: within it the model's
    modules record what they do while `forward` runs.  Its weights must stay as they are meanwhile.  Frozen
    parameters are left out and named in `excluded`.  Raises `ConfigError` for a model without trainable
    parameters.
    """

    method = "ghost norms"

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        parameters, self.excluded = split_parameters(model)
        self.names = list(parameters)
        self._parameters = list(parameters.values())
        wanted = {id(p) for p in self._parameters}
        modules = []
        #: The error message for each parameter of other modules, should one be used.
        self._unknown: dict[int, str] = {}
        for path, module in model.named_modules():
            own = {id(p) for p in module.parameters(recurse=False)} & wanted
            if own and check_module(module):
                modules.append(module)
            elif own:
                where = f"{path or 'the model itself'}: parameters of a {type(module).__name__}"
                self._unknown.update(dict.fromkeys(own, f"{where} have no known ghost norm"))
        self._taps = Taps(modules, wanted)
        self._logits: Tensor | None = None

    def __enter__(self) -> Self:
        self._taps.attach()
        return self

    def __exit__(self, *error: object) -> None:
        self._taps.detach()
        self._logits = None

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        if not self._taps.explored:
            # Which modules share an input is seen on one row, before anything is computed together.
            with self._taps.recording(1), torch.enable_grad():
                masked_logits(self.model, ids[:1], positions[:1])
            self._taps.explore()
        with self._taps.recording(len(ids)), torch.enable_grad():
            self._logits = masked_logits(self.model, ids, positions)
        return self._logits.detach()

    def norms(self, cotangents: Tensor, *, last: bool = True) -> Tensor:
        if self._logits is None:
            raise RuntimeError("call forward first")
        outputs = self._taps.outputs
        found = torch.autograd.grad(
            self._logits, outputs, cotangents, retain_graph=not last, allow_unused=True
        )
        gradients = []
        for tap, (d, out) in enumerate(zip(found, outputs, strict=True)):
            d = wide(torch.zeros_like(out) if d is None else d)
            gradients.append(d.transpose(0, 1) if tap in self._taps.timed else places(d))
        work = _Batch(gradients, self._taps.grams)
        rows = len(cotangents)
        columns = []
        for parameter in self._parameters:
            terms = self._taps.terms.get(id(parameter))
            columns.append(work.norm(terms) if terms else gradients[0].new_zeros(rows))
        if last:
            self._taps.clear()
            self._logits = None
        return torch.stack(columns, dim=1).double()

    def verify(self, ids: Tensor, positions: Tensor) -> None:
        """Compare with autograd's own gradients on `ids` [B, T] at `positions`, one backward an input.

        Raises `NotCoveredError` for a parameter of an unknown module that has a gradient, and for any whose
        norm differs by more than `TOLERANCE` of the total, naming the worst; `RunFailedError` where gradients
        are not finite.
        """
        v = some_signs(self.forward(ids, positions), positions)
        ghost = self.norms(v)
        with torch.enable_grad():
            truth = masked_logits(self.model, ids, positions)
        require_finite(truth)
        for row in range(len(ids)):
            dense = own_norms(truth[row], self._parameters, v[row], keep=row + 1 < len(ids))
            for k, parameter in enumerate(self._parameters):
                # Its share may be small here, but it has no norm at all, and may have more elsewhere.
                if id(parameter) in self._unknown and dense[k] > 0 and ghost[row, k] == 0:
                    raise NotCoveredError(self._unknown[id(parameter)])
            gap = (dense - ghost[row]).abs() / dense.sum()
            if not bool((gap <= TOLERANCE[v.dtype]).all()):
                worst = int(gap.nan_to_num(nan=torch.inf).argmax())
                raise NotCoveredError(
                    f"the model uses {self.names[worst]} otherwise than by calling its module: squared "
                    f"gradient norm {float(dense[worst]):.6g}, but {float(ghost[row, worst]):.6g} by ghost "
                    "norms"
                )


def some_signs(logits: Tensor, positions: Tensor) -> Tensor:
    """Return a cotangent for checks: signs that differ from class to class, 0 where there is no position."""
    # No pattern by row or class, so that no term vanishes by symmetry.
    signs = torch.arange(logits.numel(), device=logits.device).mul(2654435761).bitwise_right_shift(13)
    v = (signs.bitwise_and(1) * 2 - 1).to(logits.dtype).view_as(logits)
    return v * (positions >= 0)[..., None]


def own_norms(logits: Tensor, parameters: Sequence[Tensor], v: Tensor, *, keep: bool = False) -> Tensor:
    """Return ‖Jᵀv‖² [P], float64, of one input by autograd; raises `RunFailedError` if it is not finite."""
    gradients = torch.autograd.grad(logits, parameters, v, retain_graph=keep, allow_unused=True)
    zero = torch.zeros((), dtype=torch.float64, device=v.device)
    norms = torch.stack([zero if g is None else g.double().square().sum() for g in gradients])
    require_finite(norms)
    return norms


def require_finite(x: Tensor) -> None:
    """Raise `RunFailedError` unless logits, or gradients' norms, are finite."""
    if not bool(x.isfinite().all()):
        raise RunFailedError(
            "the model's gradients are not finite, so it has no Fisher trace; "
            "look at its training loss, and lower the learning rate"
        )


class _Batch:
    """The norms of one batch, from the cotangents [B, S, O] of every tap and from shared Gram matrices."""

    def __init__(self, gradients: list[Tensor], grams: dict[int, Tensor]) -> None:
        self._gradients = gradients
        self._inputs = grams
        self._outputs: dict[tuple[object, ...], Tensor] = {}

    def norm(self, terms: Sequence[Term]) -> Tensor:
        """Return the squared norm [B] of one parameter's gradient: all pairs of its uses."""
        if terms[0].kind in ("sum", "scale"):
            vector = self._vector(terms[0])
            for term in terms[1:]:
                vector = vector + self._vector(term)
            return squared(vector)
        total = self._own(terms[0])
        for i, term in enumerate(terms):
            if i:
                total = total + self._own(term)
            for other in terms[i + 1 :]:
                total = total + 2 * self._cross(term, other)
        return total

    def _cotangent(self, term: Term) -> Tensor:
        d = self._gradients[term.tap]
        if term.part is not None:
            d = d[..., term.part]
        return d if term.blind is None else d.masked_fill(term.blind[:, :, None], 0.0)

    def _vector(self, term: Term) -> Tensor:
        """Return the gradient itself [B, D] of a bias, or of a LayerNorm's weight."""
        d = self._cotangent(term)
        if term.kind == "scale":
            d = d * F.layer_norm(wide(term.inputs), term.inputs.shape[-1:], eps=term.eps)
        return d.sum(dim=1)

    def _own(self, term: Term) -> Tensor:
        """Return ‖gradient‖² [B] of a matrix from one use with cotangents d [B, S, O]."""
        a, d = term.inputs, self._cotangent(term)
        if term.kind == "lookup":
            if a.shape[1] == 1:
                return squared(d[:, 0])
            if term.gram not in self._inputs:
                self._inputs[term.gram] = (a[:, :, None] == a[:, None, :]).to(d.dtype)
            return inner(self._inputs[term.gram], self._gram(d))
        a = wide(a)
        if a.shape[1] == 1:
            return squared(a[:, 0]) * squared(d[:, 0])
        if a.shape[1] * (a.shape[2] + d.shape[2]) > a.shape[2] * d.shape[2]:
            return squared((d.transpose(1, 2) @ a).flatten(1))
        if term.gram not in self._inputs:
            self._inputs[term.gram] = a @ a.transpose(1, 2)
        return inner(self._inputs[term.gram], self._gram(d))

    def _gram(self, d: Tensor) -> Tensor:
        """Return d dᵀ [B, S, S]; uses that share a cotangent, such as summed embeddings, share it."""
        key = (d.data_ptr(), d.shape, d.stride())
        if key not in self._outputs:
            self._outputs[key] = d @ d.transpose(1, 2)
        return self._outputs[key]

    def _cross(self, one: Term, other: Term) -> Tensor:
        """Return <gradient from one use, gradient from another> [B] of a matrix that both share."""
        kinds = (one.kind, other.kind)
        if kinds == ("lookup", "matrix"):
            return self._cross(other, one)
        d, e = self._cotangent(one), self._cotangent(other)
        if kinds == ("matrix", "lookup"):
            # d [B, S, V] has a column for every row of the table: those that were looked up are picked out.
            picked = d.gather(2, other.inputs[:, None, :].expand(-1, d.shape[1], -1))
            return inner(picked, wide(one.inputs) @ e.transpose(1, 2))
        if kinds == ("lookup", "lookup"):
            picked = (one.inputs[:, :, None] == other.inputs[:, None, :]).to(d.dtype)
        else:
            picked = wide(one.inputs) @ wide(other.inputs).transpose(1, 2)
        return inner(picked, d @ e.transpose(1, 2))


def wide(x: Tensor) -> Tensor:
    """Return x in float32 at least: sums of products do not suit the half types."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def squared(x: Tensor) -> Tensor:
    """Return the squared norm [B] of each row of x [B, N]."""
    return torch.linalg.vecdot(x, x)


def inner(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product [B] of the matrices of x and y [B, S, T]."""
    return (x * y).sum(dim=(1, 2))
