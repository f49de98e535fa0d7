"""raysweep: sweeps of language models at equal pre-training loss, and the flatness that tells them apart.

The names below are the public API.  Each is imported when first used, so that exact conditionals or a
Hessian trace need neither Ray nor MLflow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysweep.engine import Results, launch
    from raysweep.engine.tuner import tuner
    from raysweep.flatness import TraceEstimate, fisher_trace
    from raysweep.languages import Language
    from raysweep.languages.causal_lm import CausalLM
    from raysweep.languages.dyck import Dyck
    from raysweep.languages.hmm import HMM
    from raysweep.languages.pcfg import PCFG
    from raysweep.sweep import Sweep, load_sweep
    from raysweep.training import load_model

__version__ = "0.1.0"

__all__ = [
    "HMM",
    "PCFG",
    "CausalLM",
    "Dyck",
    "Language",
    "Results",
    "Sweep",
    "TraceEstimate",
    "fisher_trace",
    "launch",
    "load_model",
    "load_sweep",
    "tuner",
]

_HOMES = {
    "HMM": "raysweep.languages.hmm",
    "PCFG": "raysweep.languages.pcfg",
    "CausalLM": "raysweep.languages.causal_lm",
    "Dyck": "raysweep.languages.dyck",
    "Language": "raysweep.languages",
    "Results": "raysweep.engine",
    "Sweep": "raysweep.sweep",
    "TraceEstimate": "raysweep.flatness",
    "fisher_trace": "raysweep.flatness",
    "launch": "raysweep.engine",
    "load_model": "raysweep.training",
    "load_sweep": "raysweep.sweep",
    "tuner": "raysweep.engine.tuner",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raysweep' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
