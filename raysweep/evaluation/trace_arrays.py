"""The arrays of a shard of the Fisher trace (`TraceConfig.measure`), made and read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from raysweep.errors import ConfigError, RunFailedError
from raysweep.evaluation.base import Arrays
from raysweep.evaluation.notes import PREFIX
from raysweep.flatness.trace.contrast import Measured
from raysweep.flatness.trace.enlarged import Parts
from raysweep.flatness.trace.estimate import InputTraces
from raysweep.models.lstm import LSTMShape
from raysweep.models.shapes import Shape

#: Arrays of a shard that are not parameter groups.
OWN = ("weights", "control", "places", "spread", "enlarged/", "repeat/", "excluded/", PREFIX)


def group_means(found: Sequence[InputTraces]) -> dict[str, Tensor]:
    """Return the values [n] of each parameter group, averaged over repeats."""
    groups = [traces.by_group() for traces in found]
    return {name: torch.stack([g[name] for g in groups]).mean(dim=0) for name in groups[0]}


def whole_and_control(traces: InputTraces) -> Tensor:
    """Return each input's value and control statistics [n, 1+K]."""
    parts = [traces.values.sum(dim=1, keepdim=True)]
    return torch.cat(parts if traces.control is None else [*parts, traces.control], dim=1)


def spread_of(found: Sequence[InputTraces]) -> Tensor | None:
    """Return the covariance [n, 1+K, 1+K] by test vectors of the mean over repeats; None for one vector."""
    known = [traces.spread for traces in found if traces.spread is not None]
    if known:
        return torch.stack(known).mean(dim=0) / len(found)
    if len(found) == 1:
        return None
    # Without draws the repeats show the spread: they are draws on the same inputs.
    repeats = torch.stack([whole_and_control(traces) for traces in found])
    apart = repeats - repeats.mean(dim=0)
    return torch.einsum("rni,rnj->nij", apart, apart) / (len(found) - 1) / len(found)


def enlarged_arrays(found: Sequence[Parts | None]) -> Arrays:
    """Return the means over repeats of the parts that a larger shape takes; {} where there is none."""
    parts = [part for part in found if part is not None]
    if not parts:
        return {}
    # Every array of a shard has a row for each input, so the shape stands in each.
    shape = np.tile(np.array(parts[0].shape, dtype=np.int32), (len(parts[0].powers), 1))
    arrays = {
        "enlarged/shape": shape,
        "enlarged/powers": torch.stack([part.powers for part in parts]).mean(dim=0).numpy(),
    }
    last = [part.last for part in parts if part.last is not None]
    return arrays | ({"enlarged/last": torch.stack(last).mean(dim=0).numpy()} if last else {})


def inputs_of(shards: Sequence[Mapping[str, np.ndarray]], enlarged_to: str | None = None) -> Measured:
    """Return the values of all inputs of an evaluation's shards, in order, without any adjustment.

    With `enlarged_to`, a shape that holds the model, they are those of the model seen as one of that shape.
    Inputs and test vectors are those of every other model, so values in one shape make paired differences
    too.  Raises `RunFailedError` for values that are not finite, and `ConfigError` for a model that cannot be
    enlarged.
    """
    sums = [np.sum([a for name, a in s.items() if not name.startswith(OWN)], axis=0) for s in shards]
    plain, weights = np.concatenate(sums), np.concatenate([shard["weights"] for shard in shards])
    if not np.isfinite(plain).all():
        raise RunFailedError(
            f"trace is {plain.sum() / weights.sum()}: the model's gradients are not finite; look at its "
            "training loss, and lower the learning rate"
        )
    values = torch.from_numpy(plain)
    if enlarged_to is not None:
        values = _parts_of(shards).enlarged(values, enlarged_to)
    return Measured(values, torch.from_numpy(weights), *statistics_of(shards))


def statistics_of(shards: Sequence[Mapping[str, np.ndarray]]) -> tuple[Tensor | None, Tensor | None]:
    """Return `control` [n, K] and `places` [n, 2] of all inputs, None for one that a shard does not have."""
    control, places = (
        torch.from_numpy(np.concatenate([shard[name] for shard in shards]))
        if all(name in shard for shard in shards)
        else None
        for name in ("control", "places")
    )
    return control, places


def _parts_of(shards: Sequence[Mapping[str, np.ndarray]]) -> Parts:
    """Return what `enlarged_arrays` has put into all shards."""
    if "enlarged/shape" not in shards[0]:
        raise ConfigError("trace.enlarged_to: this model cannot be enlarged; leave it out")
    numbers = [int(number) for number in shards[0]["enlarged/shape"][0]]

    def joined(name: str) -> Tensor:
        return torch.from_numpy(np.concatenate([shard[f"enlarged/{name}"] for shard in shards]))

    return Parts(
        shape=Shape(*numbers) if len(numbers) == len(Shape._fields) else LSTMShape(*numbers),
        powers=joined("powers"),
        last=joined("last") if "enlarged/last" in shards[0] else None,
    )
