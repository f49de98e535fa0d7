"""Machine code of the kernels: the process that compiles it and those that load it round alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import hashlib
import numpy as np
from raysweep.flatness.fused.kernels import matrix

random = np.random.default_rng(0)
lengths = random.integers(1, 12, 300)
starts = np.concatenate([[0], lengths.cumsum()])
for inputs, outputs in ((64, 192), (64, 64), (256, 64)):
    a, d = (random.standard_normal((starts[-1], n)).astype(np.float32) for n in (inputs, outputs))
    weight, bias = np.empty((2, 1, len(lengths)))
    matrix(a, d, starts, weight, bias)
    print(hashlib.sha256(weight.tobytes() + bias.tobytes()).hexdigest())
"""


def test_a_kernel_from_the_disk_rounds_like_the_one_that_was_compiled(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    said = [
        subprocess.run(
            [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
        ).stdout
        for _ in range(2)
    ]
    assert len(said[0].split()) == 3
    assert said[0] == said[1]
    assert list(tmp_path.rglob("kernels.matrix*.kernel"))
