"""Training of encoders on a GPU by compiled passes over packed sentences; a processor has `models.fused`."""

import logging
from functools import cache
from importlib.util import find_spec

WIDEST = 128  # places of a row whose attention one program computes in registers

log = logging.getLogger(__name__)


@cache
def available() -> bool:
    """Return whether Triton, the compiler of the kernels, is installed: torch for GPUs brings it on Linux."""
    found = find_spec("triton") is not None
    if not found:
        log.warning(
            "Triton is not installed, so encoders train on this GPU by torch's kernels, which takes longer"
        )
    return found
