"""Ray without raysweep: `python -m raysweep.bench.engine.alone TRIALS FOLDER`.

An embedded Ray of as many processors, whose Tune has so many trials at once, each a Train job of one worker.
The worker imports torch and notes the moment, as a file of `FOLDER`; then it waits, so that the memory of all
can be measured.  Nothing of raysweep runs, so no launch of the same shape starts sooner or takes less, unless
it starts Ray's processes in another way.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysweep.bench.launching import last_words, start
from raysweep.errors import RunFailedError
from raysweep.processes import Watch

#: Seconds that a worker waits.
_WAIT = 5.0


@dataclass(frozen=True)
class Alone:
    """Seconds from the start to the first worker's note, the peak of the memory (GiB), the most processes."""

    first_step: float
    memory: float
    processes: int


def measure(trials: int) -> Alone:
    """Start Ray with so many trials at once, and measure it.  Raises `RunFailedError` where it fails."""
    with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as place:
        folder = Path(place)
        began = time.time()
        process = start(
            (sys.executable, "-m", "raysweep.bench.engine.alone", str(trials), place), folder / "log"
        )
        watch = Watch(process.pid, period=1.0, memory=True)
        watch.start()
        try:
            code = process.wait()
        finally:
            process.kill()
            watch.close()
        noted = [float(note.read_text()) for note in folder.glob("*.noted")]
        if code != 0 or len(noted) != trials:
            raise RunFailedError(f"bench engine: Ray alone ended with {code}: {last_words(folder / 'log')}")
        return Alone(
            first_step=min(noted) - began,
            memory=max(sample.memory for sample in watch.samples) / 2**30,
            processes=max(sample.processes for sample in watch.samples),
        )


def _run(trials: int, folder: Path) -> None:
    import ray
    import ray.train
    import ray.train.torch
    from ray import tune

    def work(config: Mapping[str, Any]) -> None:
        import torch  # noqa: F401

        (folder / f"{config['trial']}.noted").write_text(str(time.time()))
        time.sleep(_WAIT)

    def trial(config: dict[str, Any]) -> None:
        ray.train.torch.TorchTrainer(
            work,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(storage_path=str(folder / "train"), name=str(config["trial"])),
        ).fit()

    ray.init(address="local", num_cpus=trials, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        tune.with_resources(trial, {"CPU": 0, "memory": 1}),
        param_space={"trial": tune.grid_search(list(range(trials)))},
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    ).fit()


if __name__ == "__main__":
    _run(int(sys.argv[1]), Path(sys.argv[2]))
