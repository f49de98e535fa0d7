"""How flat the loss is at a model: the traces of its Fisher matrix and its Hessian, and other measures."""

from raysweep.flatness.huggingface import HuggingFaceMaskedLM
from raysweep.flatness.trace.contrast import Contrast, compare
from raysweep.flatness.trace.estimate import TraceEstimate
from raysweep.flatness.trace.fisher import fisher_trace
from raysweep.flatness.trace.hessian import HessianEstimate, hessian_trace

__all__ = [
    "Contrast",
    "HessianEstimate",
    "HuggingFaceMaskedLM",
    "TraceEstimate",
    "compare",
    "fisher_trace",
    "hessian_trace",
]
