"""A process of its own for a benchmark, with its threads fixed before anything numerical is loaded.

Every library reads its number of threads in its own way when it is imported.  So the environment is set for a
fresh process.  Where the system can, that process is also held to as many cores.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from raysweep.errors import RunFailedError

#: Read by OpenMP (torch), OpenBLAS and MKL (numpy), numba.
VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")


def call(module: str, request: Mapping[str, Any], *, threads: int, wrapper: Sequence[str] = ()) -> bytes:
    """Run `python -m module REQUEST FILE`, pass its standard error on, and return the content of FILE.

    `wrapper` is a command that runs the command after it.  Raises `RunFailedError` where the process fails.
    """
    environment = {**os.environ, **{name: str(threads) for name in VARIABLES}}
    # Peers use no network and print nothing about the processor.
    environment |= {"HF_HUB_OFFLINE": "1", "JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "2"}
    with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as folder:
        file = Path(folder) / "answer"
        command = [*wrapper, sys.executable, "-m", module, json.dumps(dict(request)), str(file)]
        code = subprocess.run(command, env=environment, stdout=sys.stderr, check=False).returncode
        if code != 0 or not file.exists():
            raise RunFailedError(f"bench: the process of {module} ended with code {code}; see above")
        return file.read_bytes()


def hold(threads: int) -> None:
    """Hold this process and its children to `threads` of its cores, where the system can."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
