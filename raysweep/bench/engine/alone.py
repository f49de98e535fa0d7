"""Ray without raysweep: `python alone.py TRIALS FOLDER`, or `python alone.py kept TRIALS FOLDER`.

Ray Tune runs the trials at once on an embedded Ray with as many processors.  Each is a Train job of one
worker.  A worker imports torch and notes the moment as a file in `FOLDER`.  Then it waits for all others and
two seconds more, in which the memory of all processes can be measured.

`kept` writes to `FOLDER/kept`, as JSON, what a process that drives Tune keeps: the bytes of MLflow's client
with a store of its own, and those of each trial after the first hundred, of so many trials that do nothing.

This program imports nothing of raysweep.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
import ray.train
import ray.train.torch
from ray import tune

#: Seconds that a worker waits for the others, and then for the memory to be measured.
_OTHERS, _MEASURED = 120.0, 2.0


def run(trials: int, folder: Path) -> None:
    """Start Ray, let it do the trials, and return at their end."""

    def work(config: dict[str, Any]) -> None:
        import torch  # noqa: F401

        (folder / f"{config['trial']}.noted").write_text(str(time.time()))
        end = time.monotonic() + _OTHERS
        while len(list(folder.glob("*.noted"))) < trials and time.monotonic() < end:
            time.sleep(0.1)
        time.sleep(_MEASURED)

    def trial(config: dict[str, Any]) -> None:
        ray.train.torch.TorchTrainer(
            work,
            train_loop_config=config,
            scaling_config=ray.train.ScalingConfig(num_workers=1, resources_per_worker={"CPU": 1}),
            run_config=ray.train.RunConfig(storage_path=str(folder / "train"), name=str(config["trial"])),
        ).fit()

    ray.init(address="local", num_cpus=trials, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        # As in a launch of raysweep, the trials themselves take no processor.
        tune.with_resources(trial, {"CPU": 0, "memory": 1}),
        param_space={"trial": tune.grid_search(list(range(trials)))},
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0),
    ).fit()


def kept(trials: int, folder: Path, slots: int = 2, first: int = 100) -> None:
    """Write what MLflow's client takes, and each trial after the `first`; `trials` are more than these."""
    sizes = []

    class Look(tune.Callback):
        def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **_: Any) -> None:
            sizes.append(_resident())

    before = _resident()
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    from mlflow import MlflowClient

    store = MlflowClient(tracking_uri=f"sqlite:///{folder}/mlflow.db")
    store.create_run(store.create_experiment("alone"))
    client = _resident() - before
    ray.init(address="local", num_cpus=slots, include_dashboard=False, log_to_driver=False)
    tune.Tuner(
        tune.with_resources(lambda config: None, {"CPU": 0, "memory": 1}),
        param_space={"trial": tune.grid_search(list(range(trials)))},
        tune_config=tune.TuneConfig(max_concurrent_trials=slots, reuse_actors=True),
        run_config=tune.RunConfig(storage_path=str(folder / "tune"), verbose=0, callbacks=[Look()]),
    ).fit()
    each = (sizes[-1] - sizes[first - 1]) / (len(sizes) - first)
    (folder / "kept").write_text(json.dumps({"client": client, "trial": each}))


def _resident() -> int:
    """Return the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1] == "kept":
        kept(int(sys.argv[2]), Path(sys.argv[3]))
    else:
        run(int(sys.argv[1]), Path(sys.argv[2]))
