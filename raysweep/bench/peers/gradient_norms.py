"""Fisher traces from the gradient norm of each input at a drawn label: in a loop, by vmap, and by Opacus.

At an input with logits z(x; θ) and a label y drawn from softmax(z), ‖∇_θ log f_y‖² is an unbiased value of
the trace (Liu, Xie, Li and Ma, ICML 2023, appendix B.1).
"""

from __future__ import annotations

import copy
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from raysweep.bench.harness import UnavailableError
from raysweep.bench.peers import peer
from raysweep.models.base import MaskedLM


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a label [B] from each row of logits [B, V]."""
    return torch.multinomial(logits.detach().softmax(dim=-1), 1, generator=generator)[:, 0]


def naive(model: nn.Module, ids: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
    """Return the squared norms [B, k] of `labels` [B, k], with a backward pass for each label."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for row in range(len(ids)):
        log_f = model(ids[row : row + 1], positions[row : row + 1])[0].log_softmax(dim=-1)
        norms = []
        for label in labels[row]:
            gradients = torch.autograd.grad(log_f[label], parameters, retain_graph=True)
            norms.append(torch.stack([g.square().sum() for g in gradients]).sum())
        rows.append(torch.stack(norms))
    return torch.stack(rows)


def vectorised(model: nn.Module, ids: Tensor, positions: Tensor, labels: Tensor) -> Tensor:
    """Return the squared norms [B] of one label for each input, by vmap of grad.

    Raises `UnavailableError` for a model that vmap cannot differentiate.
    """
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def norm(values: dict[str, Tensor], row: Tensor, at: Tensor, label: Tensor) -> Tensor:
        def log_f(values: dict[str, Tensor]) -> Tensor:
            logits = functional_call(model, values, (row[None], at[None]))
            return -F.cross_entropy(logits, label[None])

        return torch.stack([g.square().sum() for g in grad(log_f)(values).values()]).sum()

    try:
        with warnings.catch_warnings():
            # torch warns that it computes LSTMs row by row; the timing shows it.
            warnings.simplefilter("ignore")
            found: Tensor = vmap(norm, in_dims=(None, 0, 0, 0))(parameters, ids, positions, labels)
    except (RuntimeError, NotImplementedError) as error:
        raise UnavailableError(f"vmap cannot differentiate it: {str(error).splitlines()[0]}") from error
    return found


def untied(model: MaskedLM) -> MaskedLM:
    """Return a copy of a model with a separate matrix in its decoder."""
    found = copy.deepcopy(model)
    decoder: Any = found.get_submodule("decoder")
    decoder.weight = nn.Parameter(decoder.weight.detach().clone())
    return found


class Opacus:
    """Opacus' fast gradient clipping: norms in one backward pass, without gradients of single inputs.

    `model` is changed in place.  Its decoder must be untied, because Opacus counts a weight that is used
    twice as two weights.  Its LSTMs are replaced by Opacus' own, for which Opacus knows the norms of single
    inputs.
    """

    def __init__(self, model: nn.Module) -> None:
        opacus, layers = peer("opacus.grad_sample"), peer("opacus.layers")
        for module in list(model.modules()):
            if isinstance(module, nn.Embedding):
                # Opacus takes views of ids, which expanded tensors do not allow.
                module.register_forward_pre_hook(lambda module, args: (args[0].contiguous(),))
            for name, child in module.named_children():
                if isinstance(child, nn.LSTM):
                    own = layers.DPLSTM(child.input_size, child.hidden_size, batch_first=child.batch_first)
                    # The dtype comes first: weights that are set before it would be rounded.
                    own.to(child.weight_hh_l0.dtype).load_state_dict(child.state_dict())
                    setattr(module, name, own)
        # The hooks need `train`; the model has no dropout.
        self._model = opacus.GradSampleModuleFastGradientClipping(
            model.train(), loss_reduction="sum", use_ghost_clipping=True, max_grad_norm=1.0
        )

    def norms(self, ids: Tensor, positions: Tensor, generator: torch.Generator) -> Tensor:
        """Return the squared norms [B] of one drawn label for each input."""
        logits = self._model(ids, positions)
        return self.of(logits, draw(logits, generator))

    def of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the squared norms [B] at labels [B], from logits of this module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.autograd.backward(F.cross_entropy(logits, labels, reduction="sum"))
        found: Tensor = self._model.get_norm_sample().square()
        self._model.zero_grad()
        return found

    def logits(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, V]; the hooks record what the norms need."""
        made: Tensor = self._model(ids, positions)
        return made
