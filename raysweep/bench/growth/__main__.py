"""The process of a point: `python -m raysweep.bench.growth REQUEST FILE`; see `raysweep.bench.process`."""

from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

from raysweep.bench.process import hold

_STATUS = Path("/proc/self/status")
#: Calls that are timed at least, and at most.
_LEAST, _MOST = 3, 200


def kilobytes(name: str) -> int:
    """Return a line of this process's memory: `VmHWM` is the most so far, `VmRSS` that of now."""
    lines = _STATUS.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def main(key: str, value: int, seconds: float) -> dict[str, float]:
    """Return the measured point: CPU seconds are the median over calls of `seconds` together."""
    import torch

    from raysweep.bench.growth.axes import AXES
    from raysweep.training.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    load = next(axis for axis in AXES if axis.key == key).load(value)
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the most so far begins anew
    before = kilobytes("VmRSS")
    load.call()
    taken = 1024 * (kilobytes("VmHWM") - before)
    spent: list[float] = []
    while len(spent) < _LEAST or (sum(spent) < seconds and len(spent) < _MOST):
        began = time.process_time()
        load.call()
        spent.append(time.process_time() - began)
    return {
        "value": value,
        "operations": load.operations,
        "seconds": statistics.median(spent),
        "bytes": max(0, taken),
    }


if __name__ == "__main__":
    hold(1)
    request, file = json.loads(sys.argv[1]), Path(sys.argv[2])
    file.write_text(json.dumps(main(**request)), encoding="utf-8")
