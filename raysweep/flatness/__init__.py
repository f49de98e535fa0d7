"""Flatness of the loss at a model: the traces of its Fisher matrix and its Hessian, and other measures.

The names below are the public API.  The wings are `trace` (estimators of traces, their errors and contrasts),
`norms` and `fused` (per-input gradient norms, by hooks and by compiled passes), `curvature` (products,
eigenvalues, sharpness and scaled measures) and `theory` (Bartlett's identity, descent along a valley).
"""

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
