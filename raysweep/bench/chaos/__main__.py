"""The process of a campaign: `python -m raysweep.bench.chaos REQUEST FILE`; see `raysweep.bench.process`."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path

import torch

from raysweep.bench.chaos import volume
from raysweep.bench.chaos.campaign import run
from raysweep.bench.chaos.summary import summary, work_of
from raysweep.bench.environment import environment, measure_peak
from raysweep.bench.record import Record, save


def main(kills: int, seconds: float, seed: int, small_volume: bool) -> Record:
    """Run a campaign and return its record."""

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    torch.set_num_threads(1)
    peak = measure_peak(quick=True)
    with tempfile.TemporaryDirectory() as logs, volume.folder(small_volume=small_volume) as folder:
        passes = run(
            folder,
            kills=kills,
            seconds=seconds,
            seed=seed,
            small_volume=small_volume,
            log=Path(logs) / "launch.log",
            say=say,
        )
    return Record(
        suite="chaos",
        quick=False,
        environment=environment(1),
        peak=peak,
        cases=(summary(passes, work=work_of(passes, seed)),),
        passes=tuple(passes),
    )


if __name__ == "__main__":
    # The launch and the file system end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    save(main(**json.loads(sys.argv[1])), Path(sys.argv[2]))
