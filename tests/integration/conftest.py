"""The program `raysweep`, started as a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from helpers.real_sweeps import LONG, table, write

Command = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Command]:
    """Start `raysweep ...` as a program; whatever is still running at the end of the test is ended."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path, **kwargs: Any) -> subprocess.Popen[str]:
        environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200", **kwargs.pop("env", {})}
        environment.pop("RAY_ADDRESS", None)
        environment.pop("MLFLOW_TRACKING_URI", None)
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("raysweep")), *map(str, arguments)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            cwd=tmp_path,
            env=environment,
            **kwargs,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture
def raysweep(command: Command) -> Callable[..., tuple[int, str, str]]:
    """Run `raysweep ...` to its end; returns exit code, standard output, standard error."""

    def run(*arguments: str | Path, timeout: float = 900, **kwargs: Any) -> tuple[int, str, str]:
        process = command(*arguments, **kwargs)
        out, err = process.communicate(timeout=timeout)
        return process.returncode, out, err

    return run


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The storage of a launch of the long sweep that nothing disturbs; `expected` makes it."""
    return tmp_path_factory.mktemp("undisturbed")


@pytest.fixture
def expected(undisturbed: Path, raysweep: Callable[..., tuple[int, str, str]]) -> pd.DataFrame:
    """The tidy table of that launch, made once."""
    made = undisturbed / "table.parquet"
    if made.exists():
        return pd.read_parquet(made)
    file = write(undisturbed / "tiny.yaml", LONG)
    code, out, err = raysweep("launch", file, "--storage", undisturbed)
    assert code == 0, out + err
    return table(raysweep, file, undisturbed)
