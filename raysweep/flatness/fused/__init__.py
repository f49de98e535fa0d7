"""Norms of the gradient of every input by compiled kernels, for the models of `raysweep.models.fused`."""
