"""Exact conditionals and sampling of PCFGs, beside other programs for the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from raysweep.bench.exact.distance import total_variation
from raysweep.bench.harness import Case, Contestant, Difference, Peer, Prepared, paired_ratio, shares
from raysweep.bench.products import share_of_gemm
from raysweep.bench.record import Figure
from raysweep.languages import PCFG
from raysweep.languages.pcfg import sparse
from raysweep.languages.pcfg.grammar import length_probabilities

#: What torch-struct gets for emissions of zero: small enough to vanish, large enough for float32.
FLOOR = 1e-20


def layered(quick: bool) -> Case:
    """Return the case of the paper's shape of grammar; all sentences have the language's own lengths."""
    language = PCFG.random()
    # The system takes larger tables back after each call, and clears them before the next.
    parts = language.sample(512 if quick else 16_384, seed=1).split(2048)
    ids = parts[0]
    few = evenly(language, ids, 4 if quick else 16)
    some = evenly(language, ids, 64 if quick else 512)

    def all_parts() -> None:
        # As an evaluation does: one call of a few milliseconds would show what peers leave of the caches.
        for part in parts:
            language.conditionals(part)

    work = Contestant(units=sum(map(len, parts)), work=all_parts)

    def inside_pass() -> Prepared:
        from raysweep.bench.peers import inside_pass

        rows = [row.numpy() for row in words_of(language, few)]
        return _prepared(
            language,
            few,
            lambda: [torch.from_numpy(p) for p in inside_pass.conditionals(language.grammar, rows)],
            tolerance=1e-6,
        )

    def numpy(dtype: DTypeLike) -> Prepared:
        from raysweep.bench.peers import inside_outside

        groups = by_length(language, some)

        def all_lengths() -> list[Tensor]:
            return [
                torch.from_numpy(p)
                for words in groups
                for p in inside_outside.by_rules(language.grammar, words.numpy(), dtype)
            ]

        return _prepared(language, some, all_lengths, tolerance=1e-6)

    def torch_struct(padded: bool) -> Prepared:
        from raysweep.bench.peers.torch_struct import TorchStruct

        peer = TorchStruct(language.grammar, floor=FLOOR)
        groups, lengths = words_of(language, few), language.lengths(few)
        filled = few.where(few != language.pad_id, 0)[:, : int(lengths.max())]

        def batch() -> list[Tensor]:
            found = peer.conditionals(filled, lengths)
            return [p[:n] for p, n in zip(found, lengths.tolist(), strict=True)]

        def one_by_one() -> list[Tensor]:
            return [peer.conditionals(words[None])[0] for words in groups]

        return _prepared(language, few, batch if padded else one_by_one, tolerance=1e-4)

    return Case(
        unit="sentence",
        ours=work,
        peers=[
            Peer(
                name="the paper's inside pass",
                goal=8000,
                prepare=inside_pass,
                note="V·T passes for each sentence, plain loops, compiled; "
                f"{len(few)} sentences of the language's lengths",
            ),
            Peer(
                name="numpy inside–outside",
                goal=250,
                prepare=partial(numpy, np.float64),
                note=f"float64, vectorised over sentences of one length; {len(some)} sentences",
            ),
            Peer(name="the same in float32", goal=2, prepare=partial(numpy, np.float32)),
            Peer(
                name="torch-struct",
                goal=50_000,
                prepare=partial(torch_struct, True),
                note=f"float32, one padded batch of {len(few)} sentences; zero emissions as {FLOOR:g}, "
                "without which its results are NaN",
            ),
            Peer(
                name="torch-struct, one by one",
                prepare=partial(torch_struct, False),
                note="the same without padding, its fastest on a CPU",
            ),
        ],
        rounds=3 if quick else 5,
        figures=lambda timing, peak: [
            *shares({"share of the time in compiled code": (sparse, ["write_conditionals"])}, all_parts),
            *(
                Figure(
                    name=f"time of {name} alone, by that of all", unit="", value=paired_ratio(part, all_parts)
                )
                for name, part in parts_alone(language, parts).items()
            ),
        ],
    )


def parts_alone(language: PCFG, parts: Sequence[Tensor]) -> dict[str, Callable[[], object]]:
    """Return what the conditionals of some batches take at least: the charts, and memory for the result."""
    engine, kind = language.engine_on(torch.device("cpu")), np.dtype(np.float32)
    assert isinstance(engine, sparse.SparseEngine)
    made = []
    for ids in parts:
        for words in by_length(language, ids):
            program = engine.program(words.shape[1])
            assert program is not None
            cells, _ = engine._mixture(program, kind)
            made.append(partial(engine._charts, program, words.numpy(), kind, outside=cells))
    result = np.empty((max(map(len, parts)), parts[0].shape[1], language.vocabulary_size), dtype=kind)

    def charts() -> None:
        for one in made:
            one()

    def filled() -> None:
        for ids in parts:
            result[: len(ids)].fill(0)

    return {"the charts": charts, "filling as much memory": filled}


def dense(quick: bool) -> Case:
    """Return the case of a grammar with every possible rule, on sentences of the longest length."""
    N, n = (8, 6) if quick else (50, 32)
    language = PCFG.random(structure="dense", nonterminals=N, max_length=n)
    V = language.vocabulary_size
    # Every string is a sentence of this grammar.
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(V, (64, n), generator=generator)
    work = partial(language.conditionals, ids)

    def numpy(dtype: DTypeLike) -> Prepared:
        from raysweep.bench.peers import inside_outside

        words = ids[:32]
        return _prepared(
            language,
            words,
            lambda: list(torch.from_numpy(inside_outside.by_pairs(language.grammar, words.numpy(), dtype))),
            tolerance=1e-6,
        )

    def torch_struct(batch: int) -> Prepared:
        from raysweep.bench.peers.torch_struct import TorchStruct

        peer = TorchStruct(language.grammar, floor=FLOOR)
        words = ids[:batch]
        return _prepared(language, words, lambda: list(peer.conditionals(words)), tolerance=1e-4)

    return Case(
        unit="sentence",
        ours=Contestant(units=len(ids), work=work),
        peers=[
            Peer(
                name="torch-struct",
                goal=200,
                prepare=partial(torch_struct, 4),
                note="float32, a batch of 4 sentences",
            ),
            Peer(
                name="torch-struct, one by one",
                prepare=partial(torch_struct, 1),
                note="its fastest on a CPU",
            ),
            Peer(
                name="numpy inside–outside",
                goal=4,
                prepare=partial(numpy, np.float64),
                note="float64, all pairs of symbols as matrix products, 32 sentences at a time",
            ),
            Peer(name="the same in float32", goal=2, prepare=partial(numpy, np.float32)),
        ],
        rounds=3 if quick else 5,
        figures=lambda timing, peak: [share_of_gemm(len(ids) * dense_flops(N, n, V), work, goal=0.55)],
    )


def sampling(quick: bool) -> Case:
    """Return the case of sampling: all sentences together, beside one after the other."""
    language = PCFG.random()
    ours, theirs = (4096, 500) if quick else (100_000, 2000)

    def nltk(cumulated: bool) -> Prepared:
        from raysweep.bench.peers.nltk_sampling import NLTKSampler

        sampler = NLTKSampler(language.grammar, cumulated=cumulated)
        n = 2000 if quick else 20_000

        def check() -> Difference:
            number = {word: k for k, word in enumerate(language.words)}
            theirs = [[number[word] for word in words] for words in sampler.sample(n, seed=0)]
            ours = [words.tolist() for words in words_of(language, language.sample(n, seed=0))]
            return sample_difference(language, theirs, ours)

        return Prepared(
            check=check, contestant=Contestant(units=theirs, work=lambda: sampler.sample(theirs, seed=1))
        )

    return Case(
        unit="sentence",
        ours=Contestant(units=ours, work=lambda: language.sample_latent(ours, seed=1)),
        peers=[
            Peer(
                name="NLTK productions, recursively",
                goal=300,
                prepare=partial(nltk, False),
                note="`random.choices` by the productions' probabilities; raysweep keeps the derivations too",
            ),
            Peer(
                name="the same, weights summed in advance",
                prepare=partial(nltk, True),
            ),
        ],
        rounds=3 if quick else 7,
    )


def evenly(language: PCFG, ids: Tensor, count: int) -> Tensor:
    """Return `count` of the sentences, sorted by length, with the same mix of lengths."""
    order = language.lengths(ids).argsort(stable=True)
    return ids[order[((torch.arange(count) + 0.5) / count * len(ids)).long()]]


def words_of(language: PCFG, ids: Tensor) -> list[Tensor]:
    """Return each sentence without its padding."""
    return [row[:n] for row, n in zip(ids, language.lengths(ids).tolist(), strict=True)]


def by_length(language: PCFG, ids: Tensor) -> list[Tensor]:
    """Return the sentences of each length n as a tensor [B, n], from the shortest on."""
    lengths = language.lengths(ids)
    return [ids[lengths == n, :n] for n in lengths.unique().tolist()]


def sample_difference(language: PCFG, a: list[list[int]], b: list[list[int]]) -> Difference:
    """Compare two samples of equal size: mean lengths with the language's, first words with each other.

    Sentences are independent, so the chi-square of first words is one of independent draws.
    """
    lengths = length_probabilities(language.grammar, language.max_length)[1]
    share, n = lengths / lengths.sum(), np.arange(language.max_length + 1)
    mean = float(share @ n)
    error = math.sqrt(float(share @ (n - mean) ** 2) / len(a))
    scores = [(float(np.mean([len(words) for words in sample])) - mean) / error for sample in (a, b)]
    size = language.vocabulary_size
    first, second = (np.bincount([words[0] for words in sample], minlength=size) for sample in (a, b))
    seen = first + second > 0
    freedom = int(seen.sum()) - 1
    square = float(((first - second)[seen] ** 2 / (first + second)[seen]).sum())
    scores.append((square - freedom) / math.sqrt(2 * freedom))
    return Difference(
        quantity="largest |z| of mean lengths and first words",
        value=max(abs(z) for z in scores),
        tolerance=4.5,
    )


def dense_flops(N: int, n: int, V: int) -> float:
    """Return the operations of inside and outside passes with all N^3 rules, and of the vectors of V.

    A cell of w words sums w-1 outer products and applies the rules once.  The outside pass takes twice as
    many products, and applies the rules once more.
    """
    cells = n * (n - 1) / 2
    splits = n * (n * n - 1) / 6
    return 2 * (3 * splits * N**2 + 2 * cells * N**3 + n * N * V)


def _prepared(language: PCFG, ids: Tensor, run: Callable[[], Sequence[Tensor]], tolerance: float) -> Prepared:
    """Return the peer whose `run` gives Pr(x_t = . | x_-t) [n, V] of each sentence of `ids`, in order."""
    truth = language.conditionals(ids).exp()
    lengths = language.lengths(ids).tolist()

    def check() -> Difference:
        found = run()
        return total_variation(
            [(p, truth[k, :n]) for k, (p, n) in enumerate(zip(found, lengths, strict=True))], tolerance
        )

    return Prepared(check=check, contestant=Contestant(units=len(ids), work=run))
