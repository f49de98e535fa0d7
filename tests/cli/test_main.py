"""The end of the program's process."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: A launch that ends while other threads free tensors, which takes the interpreter's lock again and again.
PROGRAM = """
import sys, threading
import numpy as np, torch
from raysweep.cli import __main__ as program, app
from raysweep.engine import forks

def free():
    while True:
        torch.from_numpy(np.zeros(1))

def main():
    for _ in range(4):
        threading.Thread(target=free, daemon=True).start()
    print("the end")
    sys.exit(int(sys.argv[2]))

forks.begin_early = lambda arguments: None
app.main = main
program.main()
"""


@pytest.mark.parametrize("code", [0, 3, 130])
def test_threads_that_are_still_at_work_do_not_change_the_end_of_a_launch(code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, "launch", str(code)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (code, "the end\n")
    # The first line comes before the imports, which take seconds.
    assert ended.stderr == "reading the sweep and its records\n"
