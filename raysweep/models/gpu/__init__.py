"""Training of encoders on a GPU by compiled passes over packed sentences; a processor has `models.fused`."""

import logging
import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from sysconfig import get_paths

WIDEST = 128  # places of a row whose attention one program computes in registers
#: Most places of a row times the columns of a head: a program's queries, keys and values, in shared memory.
LARGEST = 8192

log = logging.getLogger(__name__)


@cache
def missing() -> str | None:
    """Return what kernels cannot be compiled without; None if nothing is missing."""
    if find_spec("triton") is None:
        return "Triton is not installed"
    if "CC" not in os.environ and not any(map(which, ("gcc", "clang"))):
        return "there is no C compiler, which Triton needs (gcc, clang or $CC)"
    if not Path(get_paths()["include"], "Python.h").is_file():
        return "Python's headers, which Triton needs, are not installed"
    return None


@cache
def available() -> bool:
    """Return whether kernels can be compiled, and warn if not."""
    if missing() is not None:
        log.warning("%s, so encoders train on this GPU by torch's kernels, which takes longer", missing())
    return missing() is None
