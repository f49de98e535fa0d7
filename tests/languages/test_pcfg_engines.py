"""The engines of a PCFG: each equal to enumeration in float64, and what holds of one engine alone."""

from __future__ import annotations

import itertools
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysweep.compiled import tiles
from raysweep.errors import ConfigError, DataError
from raysweep.languages import PCFG
from raysweep.languages.base import Sample
from raysweep.languages.pcfg import Grammar, blocks
from raysweep.languages.pcfg.engine import Groups, dense_flops
from raysweep.languages.pcfg.engines import choose, make_engine

ENGINES = ("sparse", "torch", "dense")
GRAMMARS = Path(__file__).parent / "grammars"
CPU = torch.device("cpu")


def odd() -> PCFG:
    """Symbols that no sentence reaches or that make no sentence, a rule of probability zero, a word that is
    never emitted, a rule listed twice, and lengths with gaps: A makes 1, 2, 4 words, B one or three."""
    rules = [
        (0, 1, 1, 0.25),
        (0, 2, 1, 0.5),
        (0, 0, 3, 0.0),
        (1, 4, 4, 0.5),
        (2, 1, 4, 0.2),
        (2, 1, 4, 0.1),
        (3, 3, 3, 1.0),
        (5, 1, 2, 1.0),
    ]
    parent, left, right, probability = (np.array(column) for column in zip(*rules, strict=True))
    emission = np.zeros((6, 4))
    emission[0, 0], emission[1, :2], emission[2, 2], emission[4, :2] = 0.25, 0.25, 0.7, (1e-9, 1 - 1e-9)
    return PCFG(
        Grammar(
            symbols=tuple("SABXCU"),
            words=tuple("abcd"),
            root=np.array([0.9, 0.1, 0, 0, 0, 0]),
            parent=parent,
            left=left,
            right=right,
            probability=probability,
            emission=emission,
        ),
        max_length=5,
        spans=(3, 2),
    )


LANGUAGES: dict[str, Callable[[], PCFG]] = {
    "layered": lambda: PCFG.random(
        seed=1, roots=2, layers=2, symbols=3, rules=4, stop=0.3, words=3, vocabulary=4
    ),
    "never stopping": lambda: PCFG.random(
        seed=2, roots=3, layers=2, symbols=4, rules=3, stop=0.0, words=2, vocabulary=4
    ),
    "cut": lambda: PCFG.random(
        seed=3, roots=2, layers=2, symbols=3, rules=4, stop=0.3, words=3, vocabulary=4, max_length=3
    ),
    "dense": lambda: PCFG.random(seed=4, structure="dense", nonterminals=3, vocabulary=3, max_length=5),
    "one symbol": lambda: PCFG.random(
        seed=5, structure="dense", nonterminals=1, vocabulary=3, max_length=5, spans=(1, 1)
    ),
    "one word": lambda: PCFG.random(seed=6, structure="dense", nonterminals=4, vocabulary=3, max_length=1),
    "text": lambda: PCFG.from_rules(GRAMMARS / "dogs.pcfg", max_length=4),
    "odd": odd,
}


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> PCFG:
    return LANGUAGES[request.param]()


def table(language: PCFG, n: int) -> np.ndarray:
    """Pr(x) of all strings of n words, float64 [V, ..., V], by the definition."""
    grammar = language.grammar
    rules = list(
        zip(
            grammar.parent.tolist(),
            grammar.left.tolist(),
            grammar.right.tolist(),
            grammar.probability.tolist(),
            strict=True,
        )
    )

    @cache
    def derives(words: tuple[int, ...]) -> np.ndarray:
        if len(words) == 1:
            return grammar.emission[:, words[0]]
        out = np.zeros(len(grammar.symbols))
        for u in range(1, len(words)):
            first, second = derives(words[:u]), derives(words[u:])
            for a, b, c, p in rules:
                out[a] += p * first[b] * second[c]
        return out

    V = language.vocabulary_size
    kept = (grammar.lengths(language.max_length) @ grammar.root).sum()
    strings = itertools.product(range(V), repeat=n)
    return np.array([grammar.root @ derives(words) / kept for words in strings]).reshape([V] * n)


def truth(joint: np.ndarray, words: list[int], hidden: list[int], t: int) -> np.ndarray | None:
    """Pr(x_t = . | words not hidden) [V], None where those are impossible."""
    index = tuple(slice(None) if s in (*hidden, t) else word for s, word in enumerate(words))
    rest = joint[index]
    axes = [s for s in range(joint.ndim) if s in (*hidden, t)]
    found = rest.sum(axis=tuple(k for k, s in enumerate(axes) if s != t))
    return found / found.sum() if found.sum() > 0 else None


@pytest.mark.parametrize("engine", ENGINES)
def test_equals_enumeration(language: PCFG, engine: str) -> None:
    language = language.using(engine)
    V = language.vocabulary_size
    generator = torch.Generator().manual_seed(0)
    for n in range(1, language.max_length + 1):
        joint = table(language, n)
        strings = torch.tensor(list(itertools.product(range(V), repeat=n)))
        strings = strings[torch.randperm(len(strings), generator=generator)[:60]]
        log_prob = language.log_prob(strings)
        exact = torch.from_numpy(joint[tuple(strings.T.numpy())])
        torch.testing.assert_close(log_prob.exp(), exact, rtol=1e-12, atol=1e-14)
        assert torch.equal(log_prob == -torch.inf, exact == 0)
        masks = torch.rand(strings.shape, generator=generator) < 0.5
        for ids, mask in zip(strings, masks, strict=True):
            single = [truth(joint, ids.tolist(), [], t) for t in range(n)]
            if all(row is not None for row in single):
                found = language.conditionals(ids[None], dtype=torch.float64)[0].exp()
                np.testing.assert_allclose(found, np.stack(single), rtol=0, atol=1e-12)
                terms = torch.special.entr(torch.from_numpy(np.stack(single))).sum(dim=1)
                assert abs(language.sentence_entropy(ids[None])[0] - terms.mean()) < 1e-5
            else:
                with pytest.raises(DataError, match="sentence 0"):
                    language.conditionals(ids[None])
                with pytest.raises(DataError, match="sentence 0"):
                    language.sentence_entropy(ids[None])
            hidden = mask.nonzero()[:, 0].tolist()
            several = [truth(joint, ids.tolist(), hidden, t) for t in hidden]
            if hidden and all(row is not None for row in several):
                found = language.conditionals(ids[None], mask[None], dtype=torch.float64)[0].exp()
                np.testing.assert_allclose(found[hidden], np.stack(several), rtol=0, atol=1e-12)
                assert found[~mask].isnan().all()
                t = hidden[0]
                if single[t] is not None:
                    one = language.conditionals_at(ids[None], torch.tensor([t]))[0].exp()
                    np.testing.assert_allclose(one, single[t], rtol=0, atol=1e-6)


@pytest.mark.parametrize("label", ["inside", "posterior"])
def test_engines_agree(language: PCFG, label: str) -> None:
    language.label = label
    sample = language.sample_latent(300, seed=1)
    languages = [language.using(engine) for engine in ENGINES]
    mask = torch.rand(sample.ids.shape, generator=torch.Generator().manual_seed(1)) < 0.3
    for ids in (sample.ids, sample.ids[:0]):
        answers = [one.conditionals(ids, mask[: len(ids)], dtype=torch.float64).exp() for one in languages]
        for answer in answers[1:]:
            torch.testing.assert_close(answer, answers[0], rtol=0, atol=1e-12, equal_nan=True)
        answers = [one.sentence_entropy(ids) for one in languages]
        for answer in answers[1:]:
            torch.testing.assert_close(answer, answers[0], rtol=0, atol=1e-5)
        for task in language.tasks:
            part = Sample(ids=ids, latents={k: v[: len(ids)] for k, v in sample.latents.items()})
            answers = [one.labels(task, part) for one in languages]
            assert torch.equal(answers[1], answers[0])
            assert torch.equal(answers[2], answers[0])


@pytest.mark.parametrize("engine", ENGINES)
def test_float32_is_within_2e7_of_float64(engine: str) -> None:
    """Total variation on the default grammar, all positions in turn and several hidden at once."""
    language = PCFG.random(seed=0, engine=engine)
    exact = PCFG.random(seed=0, engine="sparse")
    ids = language.sample(300 if engine == "dense" else 2000, seed=3)
    real = ids != language.pad_id
    several = real & (torch.rand(ids.shape, generator=torch.Generator().manual_seed(2)) < 0.3)
    for mask, known in ((None, real), (several, several)):
        double = exact.conditionals(ids, mask, dtype=torch.float64)[known].exp()
        single = language.conditionals(ids, mask)[known].to(torch.float64).exp()
        assert ((double - single).abs().sum(dim=-1) / 2).max() <= 2e-7
    terms = torch.special.entr(exact.conditionals(ids, dtype=torch.float64).exp()).sum(dim=-1)
    entropy = torch.where(real, terms, 0.0).sum(dim=1) / real.sum(dim=1)
    assert (language.sentence_entropy(ids) - entropy).abs().max() < 1e-6


def test_sparse_answers_do_not_depend_on_the_batch() -> None:
    language = PCFG.random(seed=0, engine="sparse")
    sample = language.sample_latent(600, seed=4)
    ids = sample.ids
    mask = torch.rand(ids.shape, generator=torch.Generator().manual_seed(3)) < 0.2
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(4))

    def answers(rows: Tensor) -> list[Tensor]:
        part = Sample(ids=ids[rows], latents={k: v[rows] for k, v in sample.latents.items()})
        return [
            language.conditionals(ids[rows]),
            language.conditionals(ids[rows], mask[rows]),
            language.conditionals(ids[rows], dtype=torch.float64),
            language.sentence_entropy(ids[rows]),
            language.log_prob(ids[rows]),
            language.labels("B", part),
        ]

    whole = answers(torch.arange(len(ids)))
    for rows in (order, order[:37], order[:1], torch.arange(130, 259)):
        for one, all_of_them in zip(answers(rows), whole, strict=True):
            assert torch.equal(one.nan_to_num(nan=7.0), all_of_them[rows].nan_to_num(nan=7.0))


@pytest.mark.parametrize("symbols", [1, 3, 5, 10, 13])
def test_sentences_side_by_side_have_the_charts_of_torch(
    symbols: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    language = PCFG.random(
        structure="dense", nonterminals=symbols, vocabulary=6, max_length=17, engine="dense"
    )
    engine: Any = language.engine_on(CPU)
    generator, side = torch.Generator().manual_seed(symbols), blocks.SIDE
    for n in (1, 2, 6, 17):
        # Two passes that are full, and one that is in part empty.
        words = torch.randint(6, (2 * side + side // 2 + 1, n), generator=generator)
        words[torch.rand(words.shape, generator=generator) < 0.2] = 6
        answers = []
        for wide in (False, True):
            monkeypatch.setattr(tiles, "FAST", wide)
            if wide:
                parts = list(engine._passes(words, torch.float64))
                bounds = [(part.start, part.stop) for part in parts]
                assert bounds == [(0, side), (side, 2 * side), (2 * side, len(words))]
            answers.append(
                [
                    *engine.leaf_weights(words[:side], torch.float64),
                    # Behind a pass that is full, a rest that is too small for another.
                    engine.tops(words[: side + side // 4]),
                    engine.tops(words),
                    engine.tops(words, everything=True),
                    *(found for w in range(1, n + 1) for found in engine.prefixes(words, w)),
                ]
            )
        for one, other in zip(*answers, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=0)
        for dtype, rtol in ((torch.float64, 1e-13), (torch.float32, 1e-5)):
            for one, other in zip(
                engine.leaf_weights(words[: side // 2 + 1], dtype), answers[0][:3], strict=True
            ):
                torch.testing.assert_close(one.to(other.dtype), other[: len(one)], rtol=rtol, atol=0)


def test_sentences_side_by_side_do_not_depend_on_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "FAST", True)
    language = PCFG.random(structure="dense", nonterminals=7, vocabulary=6, max_length=9, engine="dense")
    engine, generator = language.engine_on(CPU), torch.Generator().manual_seed(0)
    side = blocks.SIDE
    words = torch.randint(6, (2 * side, 9), generator=generator)
    order = torch.randperm(2 * side, generator=generator)

    def answers(rows: Tensor) -> list[Tensor]:
        return [engine.tops(words[rows], everything=True), engine.prefixes(words[rows], 4)[0]]

    whole = answers(torch.arange(2 * side))
    for rows in (order, order[: side // 2 + 1], torch.arange(5, 2 * side - 2)):
        for one, all_of_them in zip(answers(rows), whole, strict=True):
            assert torch.equal(one, all_of_them[rows])


def test_sentences_are_side_by_side_where_that_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "FAST", True)
    language = PCFG.random(structure="dense", nonterminals=7, vocabulary=6, max_length=9, engine="dense")
    engine: Any = language.engine_on(CPU)

    def compiled(batch: int, threads: int = 1) -> bool:
        monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
        found: bool = engine._side_by_side(torch.zeros(batch, 9, dtype=torch.int64), torch.float32)
        return found

    side = blocks.SIDE
    batches = side // 2, side // 2 + 1, side, side + 1
    assert [compiled(batch) for batch in batches] == [False, True, True, False]
    assert [compiled(side, threads) for threads in (2, 3)] == [True, False]
    # Two charts of 128 rows, which take n cells of 12 vectors and up to 4096 bytes more, pairs, and words.
    least, most = (side * 4 * (2 * 128 * 128 * 12 + 12**2) + more * 4 * 128 * 4096 for more in (0, 1))
    words = [(2**27 - taken) // (side * 4 * 2 * 128) for taken in (least, most)]
    assert not blocks.fits(128, 7, words[0] + 1, torch.float32)
    assert blocks.fits(128, 7, words[1], torch.float32)
    assert not blocks.fits(128, 7, words[1], torch.float64)


@pytest.mark.parametrize("engine", ENGINES)
def test_charts_outside_float32s_range_are_computed_again(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rules of 1e-9 make 1e-54, which float32 does not hold, in the long sentence alone."""
    file = tmp_path / "rules"
    file.write_text("S -> S S [1e-9] | 'a' [0.3] | 'b' [0.7]")
    language = PCFG.from_rules(file, max_length=8, engine=engine)
    ids = torch.tensor([[0, 1, 2, 2, 2, 2, 2, 2], [0, 1, 0, 0, 1, 0, 1, 2]])
    again = []
    used = language.engine_on(CPU)
    compute = used.conditionals

    def spy(groups: Groups, words: Tensor, place: Tensor, out: Tensor) -> Tensor:
        if out.dtype == torch.float64:
            again.append(words.tolist())
        return compute(groups, words, place, out)

    monkeypatch.setattr(used, "conditionals", spy)
    expected = torch.tensor([0.3, 0.7]).expand(7, 2)
    found = language.conditionals(ids).exp()
    assert again == [[[0, 1, 0, 0, 1, 0, 1]]]
    torch.testing.assert_close(found[1, :7], expected, rtol=0, atol=1e-7)
    torch.testing.assert_close(found[0, :2], expected[:2], rtol=0, atol=1e-7)
    entropy = torch.special.entr(torch.tensor([0.3, 0.7], dtype=torch.float64)).sum()
    assert (language.sentence_entropy(ids) - entropy).abs().max() < 1e-6
    assert again[1:] == again[:1]
    mask = torch.zeros_like(ids, dtype=torch.bool)
    mask[1, [2, 5]] = True
    mask[0, 0] = True
    found = language.conditionals(ids, mask).exp()
    torch.testing.assert_close(found[mask], expected[:3], rtol=0, atol=1e-7)
    assert len(again) == 3
    assert torch.isfinite(language.log_prob(ids)).all()


@pytest.mark.parametrize("V", [5, 16, 43])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_mixing_against_plain_sums(V: int, dtype: str) -> None:
    """Symbols of many and of few words, positions not asked for, and vectors that words half fill."""
    from raysweep.languages.pcfg.mixing import Mixture, entropies, log_normalised, normalised

    rng = np.random.default_rng(V)
    # The second position has no symbol of many words.
    B, n, many, few = 37, 3, [0, 3, 3, 7], [0, 1, 3, 3]
    pair = 32 if dtype == "float32" else 16
    width = -(-V // pair) * pair
    emission = np.zeros((5, width), dtype=dtype)
    emission[:, :V] = rng.random((5, V)) * (rng.random((5, V)) < 0.6)
    symbols = np.array([4, 0, 1, 0, 1, 2, 3])
    word, value = rng.integers(V, size=3), rng.random(3).astype(dtype)
    mixture = Mixture(
        emission, emission.sum(axis=1, dtype=np.float64)[symbols], np.array(many), symbols * width,
        np.array(few), 7 + np.arange(3), word, value, np.array([(0, 0), (n, 7)]),
    )  # fmt: skip
    outside = (rng.random((B, 10)) * 10.0 ** rng.uniform(-8, 8, (B, 1))).astype(dtype)
    joint = np.zeros((B, n, V))
    for b, t in np.ndindex(B, n):
        for k in range(many[t], many[t + 1]):
            joint[b, t] += outside[b, k] * emission[symbols[k], :V].astype(float)
        for k in range(few[t], few[t + 1]):
            joint[b, t, word[k]] += float(outside[b, 7 + k]) * float(value[k])
    p = joint / joint.sum(axis=-1, keepdims=True)

    place = np.where(rng.random((B, n)) < 0.4, -1, rng.permutation(B * n).reshape(B, n))
    asked = place >= 0
    out, sound = np.full((B * n, V), np.nan, dtype=dtype), np.ones(B, dtype=bool)
    write = log_normalised if dtype == "float32" else normalised
    total = np.ones(B)
    write(outside, mixture, 0, total, place, 1e-30, out, sound)
    assert sound.all()
    assert np.isnan(np.delete(out, place[asked], axis=0)).all()
    found = out[place[asked]].astype(float)
    np.testing.assert_allclose(np.exp(found) if dtype == "float32" else found, p[asked], rtol=2e-6)
    # A sentence's answer depends on it alone, bit for bit.
    for b in range(B):
        alone = np.full_like(out, np.nan)
        write(outside[b : b + 1], mixture, 0, total[:1], place[b : b + 1], 1e-30, alone, sound[:1])
        mine = place[b][asked[b]]
        np.testing.assert_array_equal(alone[mine], out[mine])

    if dtype == "float32":
        entropy = np.empty(B)
        entropies(outside, mixture, 1e-30, entropy, sound)
        exact = -np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0).sum(axis=-1).mean(axis=-1)
        np.testing.assert_allclose(entropy, exact, atol=1e-6)
        assert sound.all()
    write(outside[:0], mixture, 0, total[:0], place[:0], 1e-30, out, sound[:0])
    outside[5], outside[6] = 0, 1e35
    everywhere = np.arange(B * n).reshape(B, n)
    write(outside, mixture, 0, total, everywhere, 1e-30, out, sound)
    assert np.nonzero(~sound)[0].tolist() == [5, 6]
    # Words that are shown must be possible; a sentence that shows none needs no probability.
    outside[5:7], everywhere[9, 1], everywhere[10, 0] = 1, -1, -1
    total[8:11] = 0, 1e-31, 1e31
    write(outside, mixture, 0, total, everywhere, 1e-30, out, sound)
    assert np.nonzero(~sound)[0].tolist() == [9, 10]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("V", [1, 5, 16, 43, 200])
def test_rows_of_padding_are_blank_and_no_others(V: int, dtype: str) -> None:
    from raysweep.languages.pcfg.mixing import blank

    rng = np.random.default_rng(V)
    for shift in range(17):
        space = np.zeros(40 * V + shift + 16, dtype=dtype)
        out = space[shift : shift + 40 * V].reshape(40, V)
        unknown = rng.random(40) < shift / 16
        wanted = space.copy()
        wanted[shift : shift + 40 * V].reshape(40, V)[unknown] = np.nan
        blank(out, unknown)
        np.testing.assert_array_equal(space, wanted)


def test_groups_of_a_batch_are_written_as_each_alone() -> None:
    """Also where later batches have lengths that the first did not have, in any order."""
    language = PCFG.random(seed=0, engine="sparse")
    ids = language.sample(300, seed=2)
    lengths, mask = language.lengths(ids), torch.rand(ids.shape) < 0.5
    alone = torch.full((*ids.shape, language.vocabulary_size), torch.nan)
    hidden = alone.clone()
    fresh = PCFG.random(seed=0, engine="sparse")
    for n in (9, 3, 16, *range(1, 17)):
        rows = (lengths == n).nonzero()[:, 0]
        alone[rows] = fresh.conditionals(ids[rows])
        hidden[rows] = fresh.conditionals(ids[rows], mask[rows])
    for found, expected in (
        (language.conditionals(ids), alone),
        (language.conditionals(ids, mask), hidden),
        (fresh.conditionals(ids), alone),
        (fresh.conditionals(ids.int()), alone),
    ):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_tables_of_a_grammar_may_be_in_any_order() -> None:
    language, ids = PCFG.random(seed=0, engine="sparse"), PCFG.random(seed=0).sample(20, seed=1)
    expected = language.conditionals(ids)
    grammar = replace(language.grammar, emission=np.asfortranarray(language.grammar.emission))
    engine = make_engine(grammar, language.max_length, CPU, "sparse")
    language._engines[CPU] = engine
    torch.testing.assert_close(language.conditionals(ids), expected, rtol=0, atol=0, equal_nan=True)


def test_choice_is_a_function_of_the_grammar() -> None:
    layered, dense = PCFG.random(seed=0), PCFG.random(seed=0, structure="dense", nonterminals=50)
    assert choose(layered.grammar, 16, CPU) == "sparse"
    assert choose(dense.grammar, 32, CPU) == "dense"
    assert choose(layered.grammar, 16, torch.device("cuda")) == "torch"
    assert choose(dense.grammar, 32, torch.device("cuda")) == "dense"
    for engine in ENGINES:
        forced = layered.using(engine)
        assert forced.engine_on(CPU).name == engine
        assert forced.fingerprint == layered.fingerprint
        assert pickle.loads(pickle.dumps(forced)).engine == engine  # noqa: S301
    assert layered.engine is None
    with pytest.raises(ConfigError, match="engine: there is no 'fast'"):
        layered.using("fast").log_prob(layered.sample(1, seed=0))
    with pytest.raises(ConfigError, match="engine: 'sparse' runs on a CPU, not on cuda"):
        make_engine(layered.grammar, 16, torch.device("cuda"), "sparse")


def test_flops_of_a_dense_grammar_are_the_formula() -> None:
    """Nothing can be left out where every rule exists, and all engines count the same work."""
    language = PCFG.random(seed=0, structure="dense", nonterminals=4, vocabulary=3, max_length=7)
    for n in range(2, 8):
        counts = {engine: language.using(engine).engine_on(CPU).flops(n) for engine in ENGINES}
        assert counts["sparse"] == counts["torch"] == counts["dense"] == dense_flops(4, n)
    layered = PCFG.random(seed=0)
    for n in range(2, 17):
        sparse, plan = (layered.using(engine).engine_on(CPU).flops(n) for engine in ("sparse", "torch"))
        assert 0 < sparse[1] <= plan[1]


def test_numba_is_imported_when_it_is_used() -> None:
    code = (
        "import sys, raysweep.languages as l; p = l.PCFG.random(seed=0); p.tasks; p.fingerprint;"
        "assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
