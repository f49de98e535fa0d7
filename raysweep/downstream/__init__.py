"""Transfer of a representation to downstream tasks: the linear probe."""

from raysweep.downstream.probe import ProbeResult, linear_probe

__all__ = ["ProbeResult", "linear_probe"]
