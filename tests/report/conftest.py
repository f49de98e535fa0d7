"""Made-up tidy tables; nothing in them was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd
import pytest

COLUMNS = (
    *("sweep", "run_id", "model", "algorithm", "seed", "algorithm.lr", "parameters"),
    *("step", "metric", "value", "standard_error", "n", "unit"),
)


def tidy_table(
    *,
    models: Sequence[tuple[str, int]] = (("32/1/2/128", 14_000), ("64/1/2/256", 52_000)),
    seeds: Sequence[int] = (0, 1, 2),
    steps: Sequence[int] = (400, 800, 1600, 3200),
    tasks: Sequence[str] = ("A", "B"),
    rates: Sequence[float] = (0.001,),
    trace: bool = True,
    lookup: bool = True,
    loss_scale: float = 1.0,
) -> pd.DataFrame:
    """Excess loss and trace fall with steps and size, accuracy rises as the trace falls."""
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
                        ("excess_loss", loss, 0.02 * loss, 4096, "nats"),
                        ("entropy", 2.3, 0.004, 4096, "nats"),
                    ]
                    if trace:
                        found += [("trace", flatness, 0.03 * flatness, 1024, "nats")]
                    for task in tasks:
                        accuracy = 0.9 - 0.0008 * flatness + generator.normal(0, 0.001)
                        found += [(f"probe/{task}", accuracy, 0.001, 5, "accuracy")]
                        found += [(f"majority/{task}", 0.31, None, 20_000, "accuracy")]
                    rows += [head | {"step": step} | dict(zip(COLUMNS[-5:], f, strict=True)) for f in found]
    if lookup:
        head = {"sweep": "demo", "run_id": "lookup_table-0", "algorithm": "lookup_table", "step": 0}
        for task in tasks:
            rows.append(
                head | dict(zip(COLUMNS[-5:], (f"probe/{task}", 0.86, 0.001, 5, "accuracy"), strict=True))
            )
    frame = pd.DataFrame(rows, columns=list(COLUMNS))
    whole, real = ("seed", "parameters", "step", "n"), ("value", "standard_error")
    return frame.astype(dict.fromkeys(whole, "Int64") | dict.fromkeys(real, "float64"))


@pytest.fixture(scope="session")
def table() -> Callable[..., pd.DataFrame]:
    return tidy_table
