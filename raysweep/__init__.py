"""raysweep: sweeps of language models at equal pre-training loss, and the flatness that tells them apart.

The names below are the public API.  Each is imported when first used, so that exact conditionals or a
Hessian trace need neither Ray nor MLflow.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from raysweep.version import __version__

if TYPE_CHECKING:
    from raysweep.cli.live import progress
    from raysweep.engine import Results, launch
    from raysweep.engine import open_results as open  # noqa: F401
    from raysweep.engine.tuner import tuner
    from raysweep.flatness import (
        Contrast,
        HessianEstimate,
        HuggingFaceMaskedLM,
        TraceEstimate,
        compare,
        fisher_trace,
        hessian_trace,
    )
    from raysweep.languages import Language
    from raysweep.languages.causal_lm import CausalLM
    from raysweep.languages.corpus import Corpus
    from raysweep.languages.dyck import Dyck
    from raysweep.languages.hmm import HMM
    from raysweep.languages.pcfg import PCFG
    from raysweep.models import from_huggingface, to_huggingface
    from raysweep.models.enlarge import enlarge
    from raysweep.sweep import Sweep, load_sweep, make_plan
    from raysweep.training import load_model

# `from raysweep import *` leaves Python's own `open` as it is.
__all__ = [
    "HMM",
    "PCFG",
    "CausalLM",
    "Contrast",
    "Corpus",
    "Dyck",
    "HessianEstimate",
    "HuggingFaceMaskedLM",
    "Language",
    "Results",
    "Sweep",
    "TraceEstimate",
    "__version__",
    "compare",
    "enlarge",
    "fisher_trace",
    "from_huggingface",
    "hessian_trace",
    "launch",
    "load_model",
    "load_sweep",
    "make_plan",
    "progress",
    "to_huggingface",
    "tuner",
]

_HOMES = {
    "HMM": "raysweep.languages.hmm",
    "PCFG": "raysweep.languages.pcfg",
    "CausalLM": "raysweep.languages.causal_lm",
    "Contrast": "raysweep.flatness",
    "Corpus": "raysweep.languages.corpus",
    "Dyck": "raysweep.languages.dyck",
    "HessianEstimate": "raysweep.flatness",
    "HuggingFaceMaskedLM": "raysweep.flatness",
    "Language": "raysweep.languages",
    "Results": "raysweep.engine",
    "Sweep": "raysweep.sweep",
    "TraceEstimate": "raysweep.flatness",
    "compare": "raysweep.flatness",
    "enlarge": "raysweep.models",
    "fisher_trace": "raysweep.flatness",
    "from_huggingface": "raysweep.models",
    "hessian_trace": "raysweep.flatness",
    "launch": "raysweep.engine",
    "load_model": "raysweep.training",
    "load_sweep": "raysweep.sweep",
    "make_plan": "raysweep.sweep",
    "open": "raysweep.engine:open_results",
    "progress": "raysweep.cli.live",
    "to_huggingface": "raysweep.models",
    "tuner": "raysweep.engine.tuner",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, _, own = _HOMES[name].partition(":")
        return getattr(importlib.import_module(module), own or name)
    raise AttributeError(f"module 'raysweep' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(_HOMES.keys() | set(__all__))
