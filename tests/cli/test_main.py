"""The end of the program's process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

#: A command that ends while other threads free tensors, which takes the interpreter's lock again and again.
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
@pytest.mark.parametrize("command", ["launch", "status"])
def test_threads_that_are_still_at_work_do_not_change_the_end(command: str, code: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, command, str(code)],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (code, "the end\n")
    # The first line of a launch comes before the imports, which take seconds.
    assert ended.stderr == ("reading the sweep and its records\n" if command == "launch" else "")


#: A command whose words are still in the buffer at its end.
SPEAKS = """
from raysweep.cli import __main__ as program, app

app.app = lambda *_, **__: print("words")
program.main()
"""


def test_words_that_cannot_be_written_at_the_end_are_an_error() -> None:
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", SPEAKS],
            stdout=full, stderr=subprocess.PIPE, env=buffered, text=True, timeout=120, check=False,
        )  # fmt: skip
    said = "raysweep: storage: No space left on device; make room and run this again\n"
    assert (ended.returncode, ended.stderr) == (4, said)


@pytest.mark.parametrize(
    ("line", "code"), [("--nothing 2>&-", 2), ("--version >&-", 0), ("kinds pcfg >&-", 0)]
)
def test_a_closed_stream_does_not_change_the_end(line: str, code: int) -> None:
    command = ["sh", "-c", f'exec "$0" -m raysweep.cli {line}', sys.executable]
    ended = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (code, "")
