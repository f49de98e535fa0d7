"""The choice of an engine for a grammar and a device."""

from __future__ import annotations

import numpy as np
import torch

from raysweep.errors import ConfigError
from raysweep.languages.pcfg.chart import PlanEngine
from raysweep.languages.pcfg.engine import Engine, Name, dense_flops
from raysweep.languages.pcfg.grammar import Grammar

#: Speed of matrix products relative to instructions on single cells, in multiply-adds per second; it is
#: higher on a GPU, where small operations wait for each other.
_ADVANTAGE = {"cpu": 3.0, "cuda": 12.0}


def choose(grammar: Grammar, longest: int, device: torch.device) -> Name:
    """Return the engine for a grammar on a device, by the multiply-adds at the longest length alone.

    The dense engine is chosen where the plan has so many over all starts that matrix products over all
    symbols are cheaper, and an engine of the plan elsewhere.
    """
    if longest < 2:
        return "sparse" if device.type == "cpu" else "torch"
    symbols = len(grammar.symbols)
    live = grammar.probability > 0
    rules = int(live.sum())
    pairs = len(np.unique(grammar.left[live] * symbols + grammar.right[live]))
    spans, splits = longest * (longest - 1) // 2, longest * (longest**2 - 1) // 6
    sparse = 2 * (3 * pairs * splits + 2 * rules * spans)
    if sparse * _ADVANTAGE["cpu" if device.type == "cpu" else "cuda"] > dense_flops(symbols, longest)[1]:
        return "dense"
    return "sparse" if device.type == "cpu" else "torch"


def make_engine(grammar: Grammar, longest: int, device: torch.device, name: Name | None) -> Engine:
    """Make an engine, the one that `choose` gives where `name` is None.  Raises `ConfigError`."""
    name = name or choose(grammar, longest, device)
    # Kernels are imported where they are used: numba takes a third of a second.
    if name == "dense":
        from raysweep.languages.pcfg.dense import DenseEngine

        return DenseEngine(grammar, longest, device)
    if name == "torch":
        return PlanEngine(grammar, longest, device)
    if name != "sparse":
        raise ConfigError(f"engine: there is no '{name}'; there are sparse, torch, dense")
    if device.type != "cpu":
        raise ConfigError(f"engine: 'sparse' runs on a CPU, not on {device}; use torch or dense")
    from raysweep.languages.pcfg.sparse import SparseEngine

    return SparseEngine(grammar, longest, device)
