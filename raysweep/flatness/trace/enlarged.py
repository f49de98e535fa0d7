"""The Fisher trace of a trained encoder seen as a larger one, in closed form.

`raysweep.models.enlarge` makes a model r times as wide that computes the same.  Every gradient of the larger
model is then known from the small one's, and with it the trace, parameter by parameter and input by input:

    matrices ×1,    biases and LayerNorms ×1/r,    token and position embeddings ×r,    decoder's bias ×1

An added layer (pre-norm) has no gradient but in its two output biases.  Each is added to the residual stream
behind the trained layers, as is the last trained layer's own, so each has that one's gradient, and ×1/r.

Source: Liu, Xie, Li and Ma, "Same pre-training loss, better downstream" (ICML 2023), appendix B.4, for r = 2.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from raysweep.errors import ConfigError
from raysweep.flatness.trace.estimate import InputTraces
from raysweep.models.encoder import Encoder
from raysweep.models.enlarge import enlarge
from raysweep.models.shapes import Shape


def width_factor(model: nn.Module, shape: str | Shape) -> int:
    """Return r of the enlargement; raises `ConfigError` for a model or shape that has none."""
    if not isinstance(model, Encoder):
        raise ConfigError(
            f"enlarged_to: only encoders of raysweep are seen as larger ones, not a {type(model).__name__}; "
            "leave it out"
        )
    # The larger model is made without memory; `enlarge` raises the error for a shape that does not fit.
    return enlarge(copy.deepcopy(model).to("meta"), shape).width // model.width


def enlarged(traces: InputTraces, model: nn.Module, shape: str | Shape) -> InputTraces:
    """Return the inputs' values of `model` seen as an encoder of `shape`, from its own `traces`.

    They equal those of `raysweep.models.enlarge(model, shape)` up to rounding.  Their spread by random test
    vectors is not known: that of `traces` is of another sum of the parameters' parts.  Raises `ConfigError`
    for a shape that cannot hold the model, or where an output bias that added layers would share is left out.
    """
    factor = width_factor(model, shape)
    scale = torch.tensor([_scale(model, name, factor) for name in traces.names], dtype=torch.float64)
    names, values = list(traces.names), traces.values * scale
    have, want = _layers(model), Shape.parse(str(shape)).layers
    if want > have:
        own = f"layers.{have - 1}.down.bias"
        if own not in names:
            raise ConfigError(
                f"enlarged_to: added layers have the gradient of {own}, which is left out of the trace; "
                "train it, or enlarge the width alone"
            )
        gradient = values[:, names.index(own), None]
        added = [f"layers.{k}.{part}.bias" for k in range(have, want) for part in ("output", "down")]
        # Behind the trained layers, so that groups come in the model's order.
        place = 1 + max(i for i, name in enumerate(names) if name.startswith("layers."))
        names[place:place] = added
        values = torch.cat([values[:, :place], gradient.expand(-1, len(added)), values[:, place:]], dim=1)
    spread = traces.spread if traces.drawn.kind == "exact" else None
    return replace(traces, names=tuple(names), values=values, spread=spread)


def _layers(model: nn.Module) -> int:
    """Return the number of an encoder's layers."""
    layers = model.get_submodule("layers")
    return len(list(layers.children()))


def _scale(model: nn.Module, name: str, factor: int) -> float:
    """Return the factor of a parameter's squared gradient norm."""
    module = model.get_submodule(name.rpartition(".")[0])
    if isinstance(module, nn.Embedding):
        return float(factor)
    if name == "decoder.bias" or (isinstance(module, nn.Linear) and name.endswith("weight")):
        return 1.0
    return 1.0 / factor
