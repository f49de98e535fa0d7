"""How flat the loss is at a model: the traces of its Fisher matrix and its Hessian, and other measures."""

from raysweep.flatness.contrast import Contrast, compare
from raysweep.flatness.estimate import TraceEstimate
from raysweep.flatness.fisher import fisher_trace
from raysweep.flatness.hessian import HessianEstimate, hessian_trace
from raysweep.flatness.huggingface import HuggingFaceMaskedLM

__all__ = [
    "Contrast",
    "HessianEstimate",
    "HuggingFaceMaskedLM",
    "TraceEstimate",
    "compare",
    "fisher_trace",
    "hessian_trace",
]
