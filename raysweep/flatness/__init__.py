"""How flat the loss is at a model: the trace of its Fisher matrix, by ghost norms."""

from raysweep.flatness.fisher import TraceEstimate, fisher_trace

__all__ = ["TraceEstimate", "fisher_trace"]
