"""Runs the tests of `interpreted_gpu_encoder.py`; no GPU is needed."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

TESTS = Path(__file__).with_name("interpreted_gpu_encoder.py")


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is made for Linux")
def test_kernels_compute_what_the_modules_do() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS)]
    done = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout
