"""The cost of commands on a sweep of thousands of runs, whose records are made up."""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from raysweep.bench.engine.made_up import MILESTONES, make_up, many
from raysweep.bench.harness import Case, Say
from raysweep.bench.record import Figure, Goal
from raysweep.errors import RunFailedError
from raysweep.sweep import load_sweep

#: Runs whose records are made up, and those of a quick case.
RUNS, QUICK_RUNS = 10_000, 50
#: Most CPU seconds of each command, and megabytes of the page of a report.
MOST = {"plan": 5.0, "status": 5.0, "export": 10.0, "report": 20.0}
MOST_PAGE = 5.0
#: What comes before a command of raysweep on Python's command line.
_CLI = ("-m", "raysweep.cli")
#: Python that asks the file system for the size and times of each run's identity and records, as commands do,
#: and prints how many there are.
_LIST = """
import os, sys
count = 0
for run in os.listdir(sys.argv[1]):
    os.stat(f"{sys.argv[1]}/{run}/run.json")
    opened = os.open(f"{sys.argv[1]}/{run}/records", os.O_RDONLY)
    with os.scandir(opened) as entries:
        count += 1 + len([entry.stat() for entry in entries])
    os.close(opened)
print(count)
"""
#: Tries of each command, whose median counts: that of one varies by a fifth.
TRIES = 3


def many_records(quick: bool, *, runs: int | None = None, say: Say = lambda line: None) -> Case:
    """Return the case of the commands that read the records of many runs."""
    return Case(
        unit="run", figures=lambda timing, peak: measured(runs or (QUICK_RUNS if quick else RUNS), say)
    )


def measured(runs: int, say: Say) -> list[Figure]:
    """Return the CPU time of each command on so many runs, and the size of the page of their report.

    The last figures are those of `import torch`, and of asking for the size and times of all records, which
    are parts of each command's.

    Raises `RunFailedError` where a plan does not find all runs done.
    """
    with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as name:
        folder = Path(name)
        file, storage = folder / "made-up.yaml", ("--storage", str(folder / "results"))
        file.write_text(json.dumps(many(runs)))
        sweep = load_sweep(file, storage=folder / "results")
        make_up(sweep)
        say(f"made up the records of {len(sweep.runs):,} runs")
        first, _ = _cpu_seconds(folder, *_CLI, "status", sweep.name, *storage)
        # What was written just before the first command is not in the index yet.
        _cpu_seconds(folder, *_CLI, "status", sweep.name, *storage)
        run = partial(_median, folder, *_CLI)
        page, table = folder / "report.html", folder / "table.parquet"
        spent = {
            "plan": run("plan", str(file), *storage, "--json"),
            "status": run("status", sweep.name, *storage),
            "export": run("export", sweep.name, *storage, "-o", str(table)),
            "report": run("report", sweep.name, *storage, "-o", str(page)),
        }
        bare, _ = _median(folder, "-c", "import torch")
        listing, _ = _median(folder, "-c", _LIST, str(sweep.ledger().runs_directory))
        done = json.loads(spent["plan"][1])["counts"]["done"]
        if done != len(sweep.runs):
            raise RunFailedError(f"bench engine: {done} of {len(sweep.runs)} made-up runs count as done")
        size = page.stat().st_size / 1e6
    of = f"{len(sweep.runs):,} runs × {len(MILESTONES)} milestones"
    for command, (seconds, _) in spent.items():
        say(f"{command} of {of}: {seconds:.1f} CPU-seconds")
    goals = {command: Goal(sense="at most", value=most) for command, most in MOST.items()}
    return [
        *(
            Figure(name=f"CPU time of {command}", unit="s", value=seconds, goal=goals[command])
            for command, (seconds, _) in spent.items()
        ),
        Figure(name="page of the report", unit="MB", value=size, goal=Goal(sense="at most", value=MOST_PAGE)),
        Figure(name="CPU time of a status without an index", unit="s", value=first),
        # All commands that read a sweep do both.
        Figure(name="CPU time of `import torch` alone", unit="s", value=bare),
        Figure(name="CPU time of listing all records alone", unit="s", value=listing),
    ]


def _median(folder: Path, *arguments: str) -> tuple[float, str]:
    """Return the median CPU seconds of a run of Python over `TRIES`, and what it printed last."""
    tries = [_cpu_seconds(folder, *arguments) for _ in range(TRIES)]
    return statistics.median(seconds for seconds, _ in tries), tries[-1][1]


def _cpu_seconds(folder: Path, *arguments: str) -> tuple[float, str]:
    """Run Python and return the CPU seconds of its processes, and what it printed.

    Its modules are compiled once, as those of an installed package are, by the first run at the latest.
    """
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    line: Sequence[str] = [sys.executable, *arguments]
    done = subprocess.run(line, cwd=folder, env=compiled, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RunFailedError(
            f"bench engine: python {' '.join(arguments)} ended with {done.returncode}: {done.stderr}"
        )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.stdout
