"""Control variates of the Fisher trace: quadratic forms of a test vector in the head, less their means.

A random test vector v (raysweep.flatness.vectors) has E vvᵀ = diag p − ppᵀ at every input, so any
quadratic form of it has a mean that is known.  Forms in what reaches the head's modules go much the way that
‖Jᵀv‖² goes, and each less its mean is a statistic f of the input with E f = 0 whatever the model: values with
β·f taken off have the same mean and, for the β of least squares (`raysweep.flatness.trace.regression`), a
smaller variance.

With the hidden state y at the masked word, h = LayerNorm(gelu(u)), u = Dy + bias, logits Wh + bias, and
cotangents g = Wᵀv of h and δ = (∂h/∂u)ᵀg of u, the statistics are the forms, each less its mean,

    (1 + ‖h‖²)‖v‖²      the squared gradient norm of the decoder's weight and bias alone,
    ‖g‖²                 a factor in the norms of the head's LayerNorm,
    (1 + ‖y‖²)‖δ‖²      the squared gradient norm of the dense layer's weight and bias,
    ‖δ‖²                 a factor in the norms of all layers below;

an LSTM has the first two, because its head is the decoder alone (h = y).  Means of single forms, with w_c the
rows of W and m = Σ_c p_c w_c:

    E‖v‖² = 1 − Σ p_c²,     E‖g‖² = Σ p_c ‖w_c‖² − ‖m‖²,     E‖δ‖² = Σ p_c ‖Jᵀw_c‖² − ‖Jᵀm‖²,

where J = ∂h/∂u is diagonal but for two terms of rank one, so that the last sum is a few matrix products of
the size of the logits.  Cost: about 12·C·D operations a masked word for C logits and width D, in float64,
since means of confident inputs are small differences.  On a processor, u and J of float32 weights are
float32: forms and their means share J, so means stay zero.  Where the statistics cost more than the body of
the model, as for small models of large vocabularies, there are none (`pays`): they would take longer than the
inputs that they spare.

Source of the method: Owen, "Monte Carlo theory, methods and examples" (2013), section 8.9.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.flatness.vectors import Vectors
from raysweep.models.encoder import Encoder
from raysweep.models.lstm import LSTM

#: Kinds of test vectors that are controlled.  Labels are left as published, and exact vectors need nothing.
CONTROLLED = ("rademacher", "gaussian")
#: Entries of a block of logits in float64: a processor's caches hold a few such blocks; a GPU takes more.
_BLOCK, _GPU_BLOCK = 1 << 20, 1 << 25


def pays(model: Encoder | LSTM) -> bool:
    """Return whether the statistics of a masked word cost less than its sentence does without a head.

    They are 12·C·D operations in float64 on few rows, which take as long as 32·C·D of the products that a
    sentence takes: 6 for each weight of the body and word; a sentence has half of the most words, on average.

    >>> from types import SimpleNamespace
    >>> from raysweep.models.encoder import EncoderConfig
    >>> small, large = (SimpleNamespace(vocabulary_size=v, pad_id=v, max_length=16) for v in (200, 30_000))
    >>> [pays(EncoderConfig(shape="64/1/2/256").build(text, seed=0)) for text in (small, large)]
    [True, False]
    """
    head = {id(p) for module in (model.token_embedding, model.decoder) for p in module.parameters()}
    body = sum(p.numel() for p in model.parameters() if id(p) not in head and p.dim() == 2)
    return 32 * model.total_vocabulary * model.width <= 6 * body * model.max_length / 2


@dataclass(frozen=True, kw_only=True)
class _Dense:
    """The part of an encoder's head before the decoder, with sums over the decoder's rows, in float64."""

    weight: Tensor
    bias: Tensor
    norm: nn.LayerNorm
    gamma: Tensor
    beta: Tensor
    #: γ ∘ w_c [C, D], their squares, and their means over D [C].
    rows: Tensor
    squares: Tensor
    means: Tensor
    #: Weight, bias, γ and β in the model's own precision.
    given: tuple[Tensor, Tensor, Tensor, Tensor]

    @property
    def compiled(self) -> bool:
        """True where compiled passes can take the head: float32 on a processor."""
        return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in self.given)


class Control:
    """Statistics of mean zero at every input, from the head of an encoder or an LSTM of raysweep.

    `at` is the module whose input is the hidden state at masked words; `size` is the number of statistics.
    It holds the head's weights in float64 as they are when it is made.
    """

    def __init__(self, model: Encoder | LSTM) -> None:
        self._rows = model.decoder.weight.detach().double()
        self._lengths = self._rows.square().sum(dim=1)
        self._dense: _Dense | None = None
        self.at: nn.Module = model.decoder
        self.size = 2
        if isinstance(model, Encoder):
            dense, norm = model.head_dense, model.head_norm
            gamma = norm.weight.detach().double()
            rows = self._rows * gamma
            self._dense = _Dense(
                weight=dense.weight.detach().double(),
                bias=dense.bias.detach().double(),
                norm=norm,
                gamma=gamma,
                beta=norm.bias.detach().double(),
                rows=rows,
                squares=rows.square(),
                means=rows.mean(dim=1),
                given=(_own(dense.weight), _own(dense.bias), _own(norm.weight), _own(norm.bias)),
            )
            self.at, self.size = model.head_dense, 4

    @classmethod
    def of(cls, model: nn.Module, vectors: Vectors) -> Self | None:
        """Return the control of a model and kind of vectors, None where there is none or it does not pay.

        A subclass may have another head, so it has none.
        """
        if vectors in CONTROLLED and (type(model) is Encoder or type(model) is LSTM) and pays(model):
            return cls(model)
        return None

    @torch.no_grad()
    def statistics(self, logits: Tensor, hidden: Tensor, v: Tensor, real: Tensor | None = None) -> Tensor:
        """Return the statistics [B, size], float64, of vectors v at masked words with these hidden states.

        `logits` and `v` are [B, C] and `hidden` [B, D]; or [B, m, C] and [B, m, D] with `real` [B, m] False
        where there is no word, and the statistics are sums over an input's words.
        """
        if real is not None:
            found = self.statistics(logits.flatten(0, 1), hidden.flatten(0, 1), v.flatten(0, 1))
            return (found.view(*real.shape, -1) * real[:, :, None]).sum(dim=1)
        rows = max(1, (_BLOCK if logits.device.type == "cpu" else _GPU_BLOCK) // logits.shape[1])
        blocks = zip(*(x.split(rows) for x in (logits, hidden, v)), strict=True)
        return torch.cat([self._of(*block) for block in blocks])

    def _of(self, logits: Tensor, hidden: Tensor, v: Tensor) -> Tensor:
        """Return the statistics [B, size] of one block."""
        p, v, y = logits.double().softmax(dim=-1), v.double(), hidden.double()
        g, mean = v @ self._rows, p @ self._rows
        low = _squared(g) - (p @ self._lengths - _squared(mean))
        if self._dense is None:
            length, apart = _squared(y), None
        elif self._dense.compiled and hidden.dtype == torch.float32:
            length, apart = self._below_compiled(self._dense, p, g, mean, hidden)
        else:
            length, apart = self._below(self._dense, p, g, mean, y)
        decoder = (1 + length) * (_squared(v) - (1 - _squared(p)))
        others = [] if apart is None else [(1 + _squared(y)) * apart, apart]
        return torch.stack([decoder, low, *others], dim=1)

    @staticmethod
    def _below(head: _Dense, p: Tensor, g: Tensor, mean: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ‖h‖² and ‖δ‖² less its mean, each [B]."""
        u = F.linear(y, head.weight, head.bias)
        a = F.gelu(u)
        width = a.shape[1]
        n = F.layer_norm(a, (width,), eps=head.norm.eps)
        spread = (a - a.mean(dim=1, keepdim=True)).square().mean(dim=1, keepdim=True)
        # gelu' over the standard deviation: δ = s ∘ (x − mean x − n · mean(n ∘ x)) for x = γ ∘ g.
        slope = 0.5 * (1 + torch.erf(u * 0.5**0.5)) + u * torch.exp(-0.5 * u * u) * (2 * torch.pi) ** -0.5
        s = slope * (spread + head.norm.eps).rsqrt()

        def back(g: Tensor) -> Tensor:
            x = g * head.gamma
            return s * (x - x.mean(dim=1, keepdim=True) - n * (n * x).mean(dim=1, keepdim=True))

        # Σ_c p_c ‖Jᵀw_c‖², the square written out: with x_c = γ ∘ w_c, a_c its mean and b_c that of n ∘ x_c,
        # (x_c − a_c − n b_c)² = x_c² − 2 a_c x_c − 2 b_c n x_c + a_c² + 2 a_c b_c n + b_c² n².
        pa = p * head.means
        b = n @ head.rows.T / width
        pb = p * b
        square = p @ head.squares - 2 * pa @ head.rows - 2 * n * (pb @ head.rows)
        square += (pa @ head.means)[:, None] + 2 * n * (pb @ head.means)[:, None]
        square += n.square() * torch.linalg.vecdot(pb, b)[:, None]
        expected = torch.linalg.vecdot(s.square(), square) - _squared(back(mean))
        apart = _squared(back(g)) - expected
        return _squared(n * head.gamma + head.beta), apart

    @staticmethod
    def _below_compiled(head: _Dense, p: Tensor, g: Tensor, mean: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Do what `_below` does for float32 on a processor, by compiled passes over rows; J is float32."""
        from raysweep.flatness.fused import control

        (weight, bias, gamma, beta), norm = head.given, head.norm
        u = F.linear(y, weight, bias)
        n, ss, ssn = u.new_empty(3, *u.shape, dtype=torch.float64)
        length, apart = u.new_empty(2, len(u), dtype=torch.float64)
        control.jacobians(
            u.numpy(), np.float32(norm.eps), gamma.numpy(), beta.numpy(),
            n.numpy(), ss.numpy(), ssn.numpy(), length.numpy(),
        )  # fmt: skip
        pa, b = p * head.means, n @ head.rows.T / u.shape[1]
        pb = p * b
        squares = torch.addmm(p @ head.squares, pa, head.rows, alpha=-2)
        sums = torch.stack([pa @ head.means, pb @ head.means, torch.linalg.vecdot(pb, b)], dim=1)
        control.centred_forms(
            g.numpy(), mean.numpy(), head.gamma.numpy(), n.numpy(), ss.numpy(), ssn.numpy(),
            squares.numpy(), (pb @ head.rows).numpy(), sums.numpy(), apart.numpy(),
        )  # fmt: skip
        return length, apart


def _own(x: Tensor) -> Tensor:
    """Return a copy that no later step changes."""
    return x.detach().clone()


def _squared(x: Tensor) -> Tensor:
    return torch.linalg.vecdot(x, x)
