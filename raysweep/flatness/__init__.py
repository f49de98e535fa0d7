"""How flat the loss is at a model: the trace of its Fisher matrix, by ghost norms."""

from raysweep.flatness.estimate import Contrast, TraceEstimate, compare
from raysweep.flatness.fisher import fisher_trace
from raysweep.flatness.huggingface import HuggingFaceMaskedLM

__all__ = ["Contrast", "HuggingFaceMaskedLM", "TraceEstimate", "compare", "fisher_trace"]
