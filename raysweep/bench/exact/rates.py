"""Work without a peer: entropies, labels, and a data set of a million sentences."""

from __future__ import annotations

import json
from collections.abc import Sequence

from raysweep.bench.harness import Case, Contestant, UnavailableError
from raysweep.bench.process import call
from raysweep.bench.record import Figure, Goal, Peak, Timing
from raysweep.languages import PCFG


def entropy(quick: bool) -> Case:
    """Return the case of the entropies of given sentences."""
    language = PCFG.random()
    ids = language.sample(512 if quick else 8192, seed=1)
    return Case(
        unit="sentence",
        ours=Contestant(units=len(ids), work=lambda: language.sentence_entropy(ids)),
        rounds=3 if quick else 7,
    )


def labels(quick: bool) -> Case:
    """Return the case of the labels of given sentences, for the three tasks."""
    language = PCFG.random()
    sample = language.sample_latent(512 if quick else 8192, seed=1)
    return Case(
        unit="sentence",
        ours=Contestant(
            units=len(sample.ids), work=lambda: [language.labels(task, sample) for task in language.tasks]
        ),
        rounds=3 if quick else 7,
    )


def million(quick: bool) -> Case:
    """Return the case of a whole data set, in a process of its own so that its memory can be measured."""
    try:
        open("/proc/self/status").close()
    except OSError as error:
        raise UnavailableError("this system has no /proc/self/status, which tells peak memory") from error

    def figures(timing: Timing | None, peak: Peak) -> Sequence[Figure]:
        import torch

        request = {"sentences": 20_000 if quick else 1_000_000, "threads": torch.get_num_threads()}
        found = json.loads(call("raysweep.bench.exact.million", request, threads=request["threads"]))
        scale = 1_000_000 / request["sentences"]
        return [
            Figure(
                name="CPU time for 10⁶ sentences",
                unit="s",
                value=found["cpu_seconds"] * scale,
                goal=Goal(sense="at most", value=30),
            ),
            Figure(name="wall time for 10⁶ sentences", unit="s", value=found["wall_seconds"] * scale),
            Figure(
                name="peak memory of the process",
                unit="GiB",
                value=found["peak_gib"],
                goal=Goal(sense="at most", value=2),
            ),
            Figure(name="entropy found", unit="nats", value=found["entropy"]),
            Figure(name="its standard error", unit="nats", value=found["standard_error"]),
        ]

    return Case(unit="sentence", figures=figures)
