"""raysweep: among language models with the same pre-training loss, which transfers better, and does flatness tell?

The names below are the public API.  Each is imported when first used, so that exact conditionals or a
Hessian trace need neither Ray nor MLflow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_HOMES = {
    "PCFG": "raysweep.languages.pcfg",
    "HMM": "raysweep.languages.hmm",
    "Language": "raysweep.languages",
    "fisher_trace": "raysweep.flatness",
    "TraceEstimate": "raysweep.flatness",
    "load_sweep": "raysweep.sweep",
    "Sweep": "raysweep.sweep",
    "launch": "raysweep.engine",
    "tuner": "raysweep.engine",
    "Results": "raysweep.engine",
}

__all__ = [*_HOMES, "__version__"]

if TYPE_CHECKING:
    from raysweep.engine import Results, launch, tuner
    from raysweep.flatness import TraceEstimate, fisher_trace
    from raysweep.languages import Language
    from raysweep.languages.hmm import HMM
    from raysweep.languages.pcfg import PCFG
    from raysweep.sweep import Sweep, load_sweep


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raysweep' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
