"""Work without a peer: how fast entropies and labels are had, and what a million sentences cost."""

from __future__ import annotations

import json
from collections.abc import Sequence

from raysweep.bench.harness import Case, Contestant, UnavailableError
from raysweep.bench.process import call
from raysweep.bench.record import Figure, Goal, Peak, Timing
from raysweep.languages import PCFG


def entropy(quick: bool) -> Case:
    """Entropies of sentences that are at hand."""
    language = PCFG.random()
    ids = language.sample(512 if quick else 8192, seed=1)
    return Case(
        unit="sentence",
        ours=Contestant(units=len(ids), work=lambda: language.sentence_entropy(ids)),
        rounds=3 if quick else 7,
    )


def labels(quick: bool) -> Case:
    """The labels of the three tasks of sentences that are at hand."""
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
    """A whole data set in a process of its own, whose memory is then its own too."""
    try:
        open("/proc/self/status").close()
    except OSError as error:
        raise UnavailableError("peak memory is read from /proc/self/status, which is not there") from error

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
