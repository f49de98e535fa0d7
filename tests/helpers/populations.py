"""Made-up checkpoints of runs with known effects of size, seed and step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from helpers.tables import arranged
from raysweep.evaluation.excess_loss import EXCESS_LOSS
from raysweep.evaluation.probe_metrics import PROBE
from raysweep.evaluation.trace import TRACE
from raysweep.sweep.tidy import cells


def population(
    *,
    sizes: int = 6,
    seeds: int = 2,
    steps: Sequence[int] = (500, 1000, 2000, 4000),
    tasks: Sequence[str] = ("A",),
    algorithms: Sequence[str] = ("adamw",),
    between: float = 0.0,
    within: float = 0.0,
    longer: float = 0.0,
    larger: float = 0.0,
    better: float = 0.0,
    faster: float = 0.0,
    noise: float = 0.01,
    lookup: float | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Return a tidy table.

    Accuracy falls with the loss, and by `between` and `within` with what is peculiar to the log trace of a
    configuration and of a checkpoint in its run.  `longer` and `larger` are gains by doubling, `better` is
    the gain of the first algorithm.  The loss falls with the power `faster` of the size.
    """
    draws = np.random.default_rng(seed)
    rows: list[dict[str, object]] = []
    for place in range(sizes):
        parameters = 1000 * 2**place
        for kind, algorithm in enumerate(algorithms):
            of_size = draws.normal()
            for number in range(seeds):
                head = {
                    "sweep": "demo",
                    "run_id": f"size{place}-{algorithm}-s{number}",
                    "model": f"size{place}",
                    "algorithm": algorithm,
                    "seed": number,
                    "parameters": parameters,
                }
                for step in steps:
                    own = draws.normal()
                    loss = 20 / step * np.exp(0.3 * draws.normal()) / 2 ** (faster * place)
                    accuracy = 0.7 - 0.2 * loss - 0.02 * (between * of_size + within * own)
                    accuracy += longer * np.log2(step / steps[0]) + larger * place
                    accuracy += better * (kind == 0)
                    trace = 100 * np.exp(loss + of_size + 0.5 * own)
                    found = [
                        EXCESS_LOSS.number(loss, standard_error=1e-4, n=4096),
                        TRACE.number(trace, standard_error=0.01 * trace, n=1024),
                    ]
                    for task in tasks:
                        value = accuracy + noise * draws.normal()
                        found.append(PROBE.number(value, standard_error=0.001, n=5, of={"task": task}))
                    rows += [head | {"step": step} | cells(metric) for metric in found]
    if lookup is not None:
        head = {"sweep": "demo", "run_id": "lookup_table-0", "algorithm": "lookup_table", "step": 0}
        rows += [head | cells(PROBE.number(lookup, standard_error=0.01, n=5, of={"task": t})) for t in tasks]
    return arranged(rows, ("sweep", "run_id", "model", "algorithm", "seed", "parameters", "step"))
