"""Exact conditionals of hidden Markov models, beside the forward-backward passes of other libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch

from raysweep.bench.exact.distance import total_variation
from raysweep.bench.harness import (
    Case,
    Contestant,
    Difference,
    Peer,
    Prepared,
    cheapest,
    paired_ratio,
    seconds,
)
from raysweep.bench.products import share_of_gemm
from raysweep.bench.record import Figure, Peak, Timing
from raysweep.compiled import kernel
from raysweep.compiled.simd import BYTES, LANES
from raysweep.languages import HMM
from raysweep.languages.hmm import kernels


def dense(quick: bool) -> Case:
    """Return the case of one block, in which every state can move to and emit everything."""
    return _case(quick, blocks=1)


def blocks(quick: bool) -> Case:
    """Return the case of ten blocks, which is the default."""
    return _case(quick, blocks=10)


def flops(language: HMM) -> float:
    """Return the operations for a sentence of one block: both passes and the vectors of V."""
    S, T, V = language.states, language.max_length, language.vocabulary_size
    return 2.0 * (2 * (T - 1) * S * S + T * S * V)


def parts_alone(language: HMM, sentences: int) -> dict[str, Callable[[], object]]:
    """Return calls of the parts of the work on sentences of one block that no program can leave out.

    These are the products with transitions and emissions, the logarithms, and the result written once.  Words
    are taken so many at a time as the kernel does, and each part is one call, as the work is.
    """
    S, T, V = language.states, language.max_length, language.vocabulary_size
    tiles = -(-sentences // LANES)
    # The vectors of LANES sentences stand side by side, as in the kernels, and begin as vectors do.
    space = torch.ones((2 * S + 2 * V) * LANES + BYTES // 4)
    first = -space.data_ptr() % BYTES // 4
    x, out, p, logs = (
        part.view(-1, LANES).numpy()
        for part in space[first : first + (2 * S + 2 * V) * LANES].split([LANES * k for k in (S, S, V, V)])
    )
    step, word = np.full((S, S), 1 / S, dtype=np.float32), np.full((V, S), 1 / V, dtype=np.float32)
    result = torch.empty(sentences, T, V)

    return {
        "matrix products": partial(_products, tiles, T, step, word, x, out, p),
        "logarithms": partial(_logarithms, tiles * T, p, logs),
        "writing the result": result.zero_,
    }


@kernel(error_model="numpy")
def _products(tiles, T, step, word, x, out, p):  # type: ignore[no-untyped-def]
    """Do the products of tiles of sentences."""
    for _ in range(tiles):
        for _ in range(2 * (T - 1)):
            kernels.product(step, x, out)
        for _ in range(T):
            for c in range(0, len(p), kernels.WORDS):
                kernels.product(word[c:], x, p[c : c + kernels.WORDS])


@kernel(error_model="numpy")
def _logarithms(times, p, out):  # type: ignore[no-untyped-def]
    """Compute the logarithms of p [V, LANES] some times."""
    for _ in range(times):
        for c in range(0, len(p), kernels.WORDS):
            some = slice(c, c + kernels.WORDS)
            kernels.logarithms(p[some].reshape(-1), out[some].reshape(-1))


def _case(quick: bool, blocks: int) -> Case:
    language = HMM.random(blocks=blocks)
    ids = language.sample(128 if quick else 2048, seed=1)
    some = ids[: 32 if quick else 512]
    work = partial(language.conditionals, ids)
    truth = work().exp()

    def hmmlearn(posteriors: bool) -> Prepared:
        from raysweep.bench.peers.hmm import HMMLearn

        peer, words = HMMLearn(language), some.numpy()
        found = partial(peer.conditionals, words)

        def check() -> Difference:
            return total_variation([(torch.from_numpy(found()), truth[: len(some)])], 1e-6)

        work = partial(peer.posteriors, words) if posteriors else found
        return Prepared(check=check, contestant=Contestant(units=len(some), work=work))

    def dynamax() -> Prepared:
        from raysweep.bench.peers.hmm import Dynamax

        peer, words = Dynamax(language), ids.numpy()

        def found(batch: int) -> list[np.ndarray]:
            return [peer.conditionals(words[k : k + batch]) for k in range(0, len(words), batch)]

        batches = [len(words) >> k for k in range(5)]
        batch = cheapest(batches, lambda batch: seconds(partial(found, batch)))

        def check() -> Difference:
            return total_variation([(torch.from_numpy(np.concatenate(found(batch))), truth)], 1e-5)

        return Prepared(
            check=check,
            contestant=Contestant(units=len(ids), work=partial(found, batch)),
            note=f"{batch} sentences at a time, the best of {', '.join(map(str, batches))}",
        )

    def figures(timing: Timing | None, peak: Peak) -> Sequence[Figure]:
        # With several blocks most of these operations are with zeros, and are left out.
        if blocks > 1:
            return []
        return [
            share_of_gemm(len(ids) * flops(language), work, goal=0.55),
            *(
                Figure(name=f"time of {name} alone, by that of all", unit="", value=paired_ratio(part, work))
                for name, part in parts_alone(language, len(ids)).items()
            ),
        ]

    return Case(
        unit="sentence",
        ours=Contestant(units=len(ids), work=work),
        peers=[
            Peer(
                name="hmmlearn, scaling",
                goal=8,
                prepare=partial(hmmlearn, False),
                note="float64: posteriors, and conditionals computed from them",
            ),
            Peer(
                name="hmmlearn, scaling: posteriors alone",
                prepare=partial(hmmlearn, True),
                note="float64; less work than raysweep does",
            ),
            Peer(
                name="dynamax",
                goal=2,
                prepare=dynamax,
                note="float32: compiled filters in both directions",
            ),
        ],
        rounds=3 if quick else 9,
        figures=figures,
    )
