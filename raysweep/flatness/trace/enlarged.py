"""The Fisher trace of a trained model seen as a larger one, in closed form.

`raysweep.models.enlarge` makes a model r times as wide that computes the same.  Every gradient of the larger
model is then known from the small one's, and with it the trace, parameter by parameter and input by input:

    matrices ×1,    biases and LayerNorms ×1/r,    token and position embeddings ×r,    decoder's bias ×1,
    input matrices of an LSTM's first layer ×1/r²

Spare intermediate units have no gradient.  An added layer (pre-norm) has none but in its two output biases.
Each is added to the residual stream behind the trained layers, as is the last trained layer's own, so each
has that one's gradient, and ×1/r.

So four sums an input, one for each factor and that of the last layer's output bias, give the trace in every
larger shape (`Parts`): what is stored of a measurement does not depend on the shape.

Source: Liu, Xie, Li and Ma, "Same pre-training loss, better downstream" (ICML 2023), appendix B.4, for r = 2.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.flatness.trace.estimate import InputTraces
from raysweep.models.encoder import Encoder
from raysweep.models.enlarge import Enlargement, enlargement
from raysweep.models.lstm import LSTM, LSTMShape
from raysweep.models.shapes import Shape

#: The powers of r that are factors, but for 0.
POWERS = (1, -1, -2)

_LEFT_OUT = (
    "added layers have the gradient of {own}, which is left out of the trace; train it, or enlarge the width "
    "alone"
)


def enlarged(traces: InputTraces, model: nn.Module, shape: str | Shape | LSTMShape) -> InputTraces:
    """Return the inputs' values of `model` seen as one of `shape`, from its own `traces`.

    They equal those of `raysweep.models.enlarge(model, shape)` up to rounding.  Their spread by random test
    vectors is not known: that of `traces` is of another sum of the parameters' parts.  Raises `ConfigError`
    for a shape that cannot hold the model, or where an output bias that added layers would share is left out.
    """
    growth = enlargement(model, shape)
    powers = torch.tensor([_power(model, name) for name in traces.names], dtype=torch.float64)
    names, values = list(traces.names), traces.values * growth.factor**powers
    if growth.layers:
        own = _last_bias(model)
        if own not in names:
            raise ConfigError(_LEFT_OUT.format(own=own))
        have = _layers(model)
        gradient = values[:, names.index(own), None]
        added = [
            f"layers.{have + k}.{part}.bias" for k in range(growth.layers) for part in ("output", "down")
        ]
        # Behind the trained layers, so that groups come in the model's order.
        place = 1 + max(i for i, name in enumerate(names) if name.startswith("layers."))
        names[place:place] = added
        values = torch.cat([values[:, :place], gradient.expand(-1, len(added)), values[:, place:]], dim=1)
    spread = traces.spread if traces.drawn.kind == "exact" else None
    return replace(traces, names=tuple(names), values=values, spread=spread)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """Parts of the values of `n` inputs, from which their trace in any larger shape follows.

    `shape` is the model's own.  `powers` [n, len(POWERS)] are the parts of the values whose factors are those
    powers of r, and `last` [n] the part of the last layer's output bias, None where that is not measured.
    """

    shape: Shape | LSTMShape
    powers: Tensor
    last: Tensor | None

    @classmethod
    def of(cls, traces: InputTraces, model: nn.Module) -> Self | None:
        """Return the parts of a model's `traces`; None for a model that cannot be enlarged."""
        if not isinstance(model, Encoder | LSTM):
            return None
        powers = torch.tensor([_power(model, name) for name in traces.names])
        found = [traces.values[:, powers == power].sum(dim=1) for power in POWERS]
        own = _last_bias(model)
        last = traces.values[:, traces.names.index(own)] if own in traces.names else None
        return cls(shape=model.shape, powers=torch.stack(found, dim=1), last=last)

    def enlarged(self, values: Tensor, shape: str) -> Tensor:
        """Return the inputs' `values` [n], all parameters together, in a larger `shape` that is known to fit.

        Raises `ConfigError` for added layers where the output bias that they would share is not measured.
        """
        growth = Enlargement.between(self.shape, type(self.shape).parse(shape))
        factors = growth.factor ** torch.tensor(POWERS, dtype=torch.float64)
        found = values + self.powers @ (factors - 1)
        if not growth.layers:
            return found
        if self.last is None:
            raise ConfigError(_LEFT_OUT.format(own="the last layer's output bias"))
        return found + 2 * growth.layers / growth.factor * self.last


def _layers(model: nn.Module) -> int:
    """Return the number of a model's layers."""
    layers = model.get_submodule("layers")
    return len(list(layers.children()))


def _last_bias(model: nn.Module) -> str:
    """Return the name of the last layer's output bias, which an LSTM does not have."""
    return f"layers.{_layers(model) - 1}.down.bias"


def _power(model: nn.Module, name: str) -> int:
    """Return k where a parameter's squared gradient norm is r^k times as large in a model r times as wide."""
    module = model.get_submodule(name.rpartition(".")[0])
    if isinstance(module, nn.Embedding):
        return 1
    if isinstance(module, nn.LSTM) and "weight_" in name:
        return -2 if name.startswith("layers.0.") and "weight_ih" in name else 0
    if name == "decoder.bias" or (isinstance(module, nn.Linear) and name.endswith("weight")):
        return 0
    return -1
