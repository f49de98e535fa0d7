"""Hutchinson's estimate of the trace over a batch: vᵀGv with random signs v over all parameters.

G is the Gauss-Newton matrix of the batch's mean loss, which is the Fisher matrix.  The released script of Liu
et al. takes the Hessian instead, by differentiating twice.  With labels drawn from the model, its mean is G.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.bench.harness import UnavailableError
from raysweep.bench.peers import CURVLINOPS, peer
from raysweep.bench.peers.gradient_norms import draw


def signs(model: nn.Module, generator: torch.Generator) -> list[Tensor]:
    """Return random signs in the shapes of the trainable parameters."""
    shapes = [p.shape for p in model.parameters() if p.requires_grad]
    return [torch.randint(0, 2, shape, generator=generator).float() * 2 - 1 for shape in shapes]


class Curvlinops:
    """curvlinops' GGN of the cross-entropy on a batch, one product with a vector at a time."""

    def __init__(self, model: nn.Module) -> None:
        self._operator = peer("curvlinops", CURVLINOPS).GGNLinearOperator
        self._model, self._loss = _Paired(model), nn.CrossEntropyLoss(reduction="mean")

    def product(self, ids: Tensor, positions: Tensor, vector: Sequence[Tensor]) -> Tensor:
        """Return vᵀGv of a batch."""
        batch = [(torch.cat([ids, positions[:, None]], dim=1), torch.zeros(len(ids), dtype=torch.long))]
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        # With the number of inputs given, the constructor computes nothing.
        operator = self._operator(
            self._model, self._loss, parameters, batch, check_deterministic=False, num_data=len(ids)
        )
        # oneDNN's LSTM has no forward-mode derivative; PyTorch's own has one.
        recurrent = any(isinstance(module, nn.RNNBase) for module in self._model.modules())
        plain = torch.backends.mkldnn.flags(enabled=False) if recurrent else nullcontext()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                with plain:
                    made = operator @ list(vector)
        except NotImplementedError as error:
            reason = str(error).split(" that ")[0]
            raise UnavailableError(f"PyTorch cannot differentiate it forwards: {reason}") from error
        return torch.stack([(a * b).sum() for a, b in zip(vector, made, strict=True)]).sum()


class _Paired(nn.Module):
    """A masked language model that takes one tensor: the words, then the position."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, both: Tensor) -> Tensor:
        logits: Tensor = self.model(both[:, :-1], both[:, -1])
        return logits


class Released:
    """The method of the released script: Hessian-vector products by double backpropagation."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._parameters = [p for p in model.parameters() if p.requires_grad]

    def product(
        self, ids: Tensor, positions: Tensor, vector: Sequence[Tensor], generator: torch.Generator
    ) -> Tensor:
        """Return vᵀHv of a batch, with labels drawn from the model."""
        logits = self._model(ids, positions)
        return self._twice(F.cross_entropy(logits, draw(logits, generator)), vector)

    def expected(self, ids: Tensor, positions: Tensor, vector: Sequence[Tensor]) -> Tensor:
        """Return the mean of `product` over the labels: the model's own probabilities as soft labels."""
        logits = self._model(ids, positions)
        return self._twice(F.cross_entropy(logits, logits.detach().softmax(dim=-1)), vector)

    def _twice(self, loss: Tensor, vector: Sequence[Tensor]) -> Tensor:
        gradients = torch.autograd.grad(loss, self._parameters, create_graph=True)
        product = torch.stack([(g * v).sum() for g, v in zip(gradients, vector, strict=True)]).sum()
        made = torch.autograd.grad(product, self._parameters)
        return torch.stack([(h * v).sum() for h, v in zip(made, vector, strict=True)]).sum()


def by_slopes(model: nn.Module, ids: Tensor, positions: Tensor, vector: Sequence[Tensor]) -> Tensor:
    """Return vᵀGv as the mean of Σ_c p_c ż_c² − (Σ_c p_c ż_c)², where ż = Jv are the slopes of the logits."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    logits = model(ids, positions)
    # ⟨u, ż⟩ is linear in u: its derivative by u is ż, at any u.
    u = torch.zeros_like(logits, requires_grad=True)
    gradients = torch.autograd.grad(logits, parameters, u, create_graph=True)
    product = torch.stack([(g * v).sum() for g, v in zip(gradients, vector, strict=True)]).sum()
    (slope,) = torch.autograd.grad(product, u)
    p, slope = logits.detach().double().softmax(dim=-1), slope.double()
    return ((p * slope.square()).sum(dim=1) - (p * slope).sum(dim=1).square()).mean()
