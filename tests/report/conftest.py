"""Made-up tidy tables; nothing in them was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

from helpers.tables import arranged
from raysweep.evaluation.excess_loss import ENTROPY, EXCESS_LOSS
from raysweep.evaluation.probe_metrics import MAJORITY, PROBE
from raysweep.evaluation.trace import ENLARGED, TRACE
from raysweep.sweep.tidy import cells

HEAD = ("sweep", "run_id", "model", "algorithm", "seed", "algorithm.lr", "parameters", "step")


def tidy_table(
    *,
    models: Sequence[tuple[str, int]] = (("32/1/2/128", 14_000), ("64/1/2/256", 52_000)),
    seeds: Sequence[int] = (0, 1, 2),
    steps: Sequence[int] = (400, 800, 1600, 3200),
    tasks: Sequence[str] = ("A", "B"),
    rates: Sequence[float] = (0.001,),
    trace: bool = True,
    enlarged: bool = False,
    lookup: bool = True,
    loss_scale: float = 1.0,
) -> pd.DataFrame:
    """Excess loss and trace fall with steps and size, accuracy rises as the trace falls.

    With `enlarged` there is a trace in one space too, in which the smaller models are sharper still.
    """
    generator = np.random.default_rng(0)
    rows: list[dict[str, object]] = []
    for size, (model, parameters) in enumerate(models):
        for rate in rates:
            for seed in seeds:
                head = {
                    "sweep": "demo",
                    "run_id": f"{model.replace('/', '-')}-adamw-s{seed}-{rate}",
                    "model": model,
                    "algorithm": "adamw",
                    "seed": seed,
                    "algorithm.lr": rate,
                    "parameters": parameters,
                }
                for place, step in enumerate(steps):
                    loss = loss_scale * (40 / step / (1 + size) + abs(generator.normal(0, 0.001)))
                    flatness = 100 * np.exp(-0.3 * place - 0.2 * size + generator.normal(0, 0.05))
                    found = [
                        EXCESS_LOSS.number(loss, standard_error=0.02 * loss, n=4096),
                        ENTROPY.number(2.3, standard_error=0.004, n=4096),
                    ]
                    if trace:
                        found += [TRACE.number(flatness, standard_error=0.03 * flatness, n=1024)]
                    if enlarged:
                        larger = flatness * 2.0 ** (len(models) - 1 - size)
                        found += [ENLARGED.number(larger, standard_error=0.03 * larger, n=1024)]
                    for task in tasks:
                        accuracy = 0.9 - 0.0008 * flatness + generator.normal(0, 0.001)
                        found += [PROBE.number(accuracy, standard_error=0.001, n=5, of={"task": task})]
                        found += [MAJORITY.number(0.31, n=20_000, of={"task": task})]
                    rows += [head | {"step": step} | cells(metric) for metric in found]
    if lookup:
        head = {"sweep": "demo", "run_id": "lookup_table-0", "algorithm": "lookup_table", "step": 0}
        for task in tasks:
            rows.append(head | cells(PROBE.number(0.86, standard_error=0.001, n=5, of={"task": task})))
    return arranged(rows, HEAD)


@pytest.fixture(scope="session")
def table() -> Callable[..., pd.DataFrame]:
    return tidy_table
