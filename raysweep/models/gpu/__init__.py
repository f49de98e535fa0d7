"""Training of encoders on a GPU by compiled passes over packed sentences; a processor has `models.fused`."""

from functools import cache
from importlib.util import find_spec

WIDEST = 128  # places of a row whose attention one program computes in registers


@cache
def available() -> bool:
    """Return whether the compiler of the kernels is installed: torch brings it where it supports GPUs."""
    return find_spec("triton") is not None
