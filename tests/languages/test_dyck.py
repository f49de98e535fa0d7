"""The balanced-bracket language: its two distributions against enumeration, and the paper's encoding."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import pytest
import torch

from raysweep.errors import ConfigError, DataError
from raysweep.languages.describe import as_text, describe
from raysweep.languages.dyck import CLOSE, MOST_ROWS, OPEN, Dyck

MASK = 3


def balanced(T: int) -> list[tuple[int, ...]]:
    """All sentences, the slow way."""
    return [x for x in itertools.product((OPEN, CLOSE), repeat=T) if x.count(OPEN) == x.count(CLOSE)]


def g(x: tuple[int, ...]) -> int:
    return x.count(CLOSE) - x.count(OPEN)


@pytest.mark.parametrize("T", [2, 4, 6, 8])
def test_sentences_are_all_of_the_language(T: int) -> None:
    language = Dyck(length=T)
    ids = language.sentences()
    assert list(map(tuple, ids.tolist())) == balanced(T)
    assert language.log_prob(ids).exp().sum().item() == pytest.approx(1, abs=1e-13)


def test_samples_are_uniform() -> None:
    """Pearson's statistic over the 70 sentences of eight brackets at fixed n, standardised."""
    n, language = 70_000, Dyck(length=8)
    place = (language.sample(n, seed=2) * 2 ** torch.arange(8)).sum(dim=1)
    inside = (language.sentences() * 2 ** torch.arange(8)).sum(dim=1)
    counts = torch.bincount(place, minlength=256)[inside].double()
    assert counts.sum() == n
    z = (((counts - n / 70) ** 2 / (n / 70)).sum().item() - 69) / math.sqrt(2 * 69)
    assert abs(z) < 4.5


def test_long_samples_are_uniform_to_second_order() -> None:
    """Every bracket is fair, and two of them agree with probability (T/2 - 1) / (T - 1)."""
    n, T = 4000, 128
    ids = Dyck(length=T).sample(n, seed=3)
    assert (ids.sum(dim=1) == T // 2).all()
    z = (ids.double().mean(dim=0) - 0.5) * math.sqrt(4 * n)
    assert z.abs().max() < 4.5
    agree = (T / 2 - 1) / (T - 1)
    for gap in (1, 7, 64):
        share = (ids[:, gap:] == ids[:, :-gap]).double().mean(dim=0)
        assert ((share - agree).abs() * math.sqrt(n / (agree * (1 - agree)))).max() < 4.5


def test_one_hidden_bracket_is_certain() -> None:
    language = Dyck(length=128)
    ids = language.sample(50, seed=4)
    log_probs = language.conditionals(ids)
    assert (log_probs.gather(2, ids[:, :, None]) == 0).all()
    assert (log_probs.gather(2, 1 - ids[:, :, None]) == -math.inf).all()
    assert (language.sentence_entropy(ids) == 0).all()
    entropy = language.entropy(64)
    assert (entropy.value, entropy.standard_error) == (0, 0)


@pytest.mark.parametrize("T", [12, 128])
def test_hidden_brackets_are_counted(T: int) -> None:
    """Pr(<) at each hidden position is the share of the fillings that have a < there, as whole numbers."""
    language = Dyck(length=T)
    ids = language.sample(40, seed=5)
    mask = (
        torch.rand(ids.shape, generator=torch.Generator().manual_seed(1)) < torch.linspace(0, 1, 40)[:, None]
    )
    found = language.conditionals(ids, mask, dtype=torch.float64).exp()
    for row in range(40):
        hidden = int(mask[row].sum())
        missing = T // 2 - int((ids[row][~mask[row]] == OPEN).sum())
        assert found[row][~mask[row]].isnan().all()
        if hidden:
            fillings = math.comb(hidden, missing)
            opening = math.comb(hidden - 1, missing - 1) if missing else 0
            share = float(Fraction(opening, fillings))
            wanted = torch.tensor([share, 1 - share], dtype=torch.float64).expand(hidden, 2)
            torch.testing.assert_close(found[row][mask[row]], wanted, rtol=0, atol=1e-15)


def test_log_prob_of_long_sentences() -> None:
    language = Dyck(length=128)
    ids = language.sample(3, seed=0)
    ids[1, 0] = 1 - ids[1, 0]
    wanted = -math.log(math.comb(128, 64))
    assert language.log_prob(ids).tolist() == [wanted, -math.inf, wanted]
    assert wanted == pytest.approx(2 * math.lgamma(65) - math.lgamma(129), rel=1e-12)


@pytest.mark.parametrize("T", [2, 4, 6])
def test_population_is_every_masked_sentence_with_either_sign(T: int) -> None:
    language = Dyck(length=T)
    population = language.population()
    listed = [
        ((*x[:t], MASK, *x[t + 1 :]), sign, g(x[:t] + x[t + 1 :]))
        for x in balanced(T)
        for t in range(T)
        for sign in (1, -1)
    ]
    assert population.mask_signs is not None
    rows = zip(
        map(tuple, population.ids.tolist()),
        population.mask_signs.tolist(),
        population.targets.tolist(),
        strict=True,
    )
    assert list(rows) == listed
    assert len(set(listed)) == len(listed) == 2 * T * math.comb(T, T // 2)
    assert (population.weights == 1 / len(listed)).all()
    # Which bracket is masked is the target, and as often one as the other.
    hidden = language.sentences().flatten().repeat_interleave(2)
    assert torch.equal(population.targets, torch.where(hidden == OPEN, 1.0, -1.0).double())
    assert population.targets.sum() == 0


def test_masked_samples_are_of_the_population() -> None:
    """Pearson's statistic over the 240 encodings of six brackets, and the bookkeeping of slices."""
    n, language = 48_000, Dyck(length=6)
    drawn, population = language.sample_masked(n, seed=6), language.population()
    assert torch.equal(drawn.targets, language.mismatch(drawn.ids))
    assert drawn.weights.sum().item() == pytest.approx(1)
    base = 3.0 ** torch.arange(12)
    codes = [((language.encode_sum(e.ids, e.mask_signs) + 1) * base).sum(dim=1) for e in (drawn, population)]
    values, counts = torch.unique(codes[0], return_counts=True)
    assert torch.equal(values, torch.unique(codes[1]))
    assert len(values) == 240
    z = (((counts - n / 240) ** 2 / (n / 240)).sum().item() - 239) / math.sqrt(2 * 239)
    assert abs(z) < 4.5
    part = language.sample_masked(50, seed=6, start=1000)
    assert torch.equal(part.ids, drawn.ids[1000:1050])
    assert part.mask_signs is not None
    assert drawn.mask_signs is not None
    assert torch.equal(part.mask_signs, drawn.mask_signs[1000:1050])
    shown = language.sample(50, seed=6, start=1000)
    assert ((part.ids == shown) | (part.ids == MASK)).all()


def test_downstream_population_is_every_string() -> None:
    language = Dyck(length=6)
    population = language.downstream_population()
    strings = list(itertools.product((OPEN, CLOSE), repeat=6))
    assert list(map(tuple, population.ids.tolist())) == strings
    assert population.targets.tolist() == [g(x) for x in strings]
    assert (population.weights == 1 / 64).all()
    assert population.mask_signs is None
    inside = population.targets == 0
    assert torch.equal(population.ids[inside], language.sentences())


def test_downstream_samples_are_fair_and_independent() -> None:
    n, language = 64_000, Dyck(length=6)
    drawn = language.sample_downstream(n, seed=7)
    place = (drawn.ids * 2 ** torch.arange(5, -1, -1)).sum(dim=1)
    counts = torch.bincount(place, minlength=64).double()
    z = (((counts - n / 64) ** 2 / (n / 64)).sum().item() - 63) / math.sqrt(2 * 63)
    assert abs(z) < 4.5
    assert torch.equal(language.sample_downstream(10, seed=7, start=99).ids, drawn.ids[99:109])
    assert torch.equal(drawn.targets, language.mismatch(drawn.ids))


def test_encoding_is_the_paper_s() -> None:
    """Written out bracket by bracket: < at t is e_t, > is -e_t, a mask is its sign times e_(t+T)."""
    T, language = 4, Dyck(length=4)
    population = language.population()
    assert population.mask_signs is not None
    encoded = language.encode(population.ids, population.mask_signs)
    assert encoded.shape == (2 * T * 6, T, 2 * T)
    assert encoded.dtype == torch.float64
    for row, x in enumerate(population.ids.tolist()):
        for t, word in enumerate(x):
            wanted = torch.zeros(2 * T, dtype=torch.float64)
            if word == MASK:
                wanted[t + T] = population.mask_signs[row]
            else:
                wanted[t] = 1 if word == OPEN else -1
            assert torch.equal(encoded[row, t], wanted)
    total = language.encode_sum(population.ids, population.mask_signs)
    assert torch.equal(total, encoded.sum(dim=1))


@pytest.mark.parametrize("T", [2, 6, 8])
def test_target_is_linear_in_the_encoding(T: int) -> None:
    """g*(x) = -<1_T, [sum x_t]_1:T>; and two neurons give it from the sum on both distributions."""
    language = Dyck(length=T)
    for examples in (language.population(), language.downstream_population()):
        total = language.encode_sum(examples.ids, examples.mask_signs)
        assert torch.equal(-total[:, :T].sum(dim=1), examples.targets)
        neuron = torch.cat([torch.ones(T), torch.zeros(T)]).double()
        assert torch.equal((total @ -neuron).relu() - (total @ neuron).relu(), examples.targets)
        # Every token has norm 1 and its own direction.
        assert (total.norm(dim=1) - math.sqrt(T)).abs().max() < 1e-12


def test_rows_of_the_population_span_everything() -> None:
    """Lemma G.5: masked sentences with the mask at one position span the other brackets' coordinates."""
    language = Dyck(length=6)
    population = language.population()
    total = language.encode_sum(population.ids, population.mask_signs)
    assert torch.linalg.matrix_rank(total) == 12
    first = population.ids[:, 0] == MASK
    assert torch.linalg.matrix_rank(total[first][:, 1:6]) == 5


def test_what_cannot_be_encoded_is_named() -> None:
    language = Dyck(length=4)
    good = [0, 1, MASK, 1]
    for bad in ([0, 1, 2, 1], [MASK, 0, 1, MASK], [0, 1, -1, 1]):
        with pytest.raises(DataError, match=r"string 1: .*at most one mask"):
            language.encode(torch.tensor([good, bad]), torch.ones(2))
    with pytest.raises(DataError, match="mask_signs: missing"):
        language.encode(torch.tensor([good]))
    for signs in (torch.tensor([0.5]), torch.ones(2), torch.zeros(1)):
        with pytest.raises(DataError, match="mask_signs must be 1 or -1"):
            language.encode(torch.tensor([good]), signs)
    with pytest.raises(DataError, match=r"ids must be \[B, 4\]"):
        language.encode(torch.zeros(3, 5, dtype=torch.int64))


@pytest.mark.parametrize(
    ("call", "length", "message"),
    [
        ("sentences", 24, "24 brackets make 2704156 sentences"),
        ("population", 18, "18 brackets make 1750320 masked sentences"),
        ("downstream_population", 22, "22 brackets make 4194304 strings"),
    ],
)
def test_what_is_too_large_to_list_is_refused(call: str, length: int, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^length: {message}, and at most {MOST_ROWS} .*sample$"):
        getattr(Dyck(length=length), call)()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"length": 7}, r"^length: 7 is odd, .* even length$"),
        ({"length": 0}, r"^length: .*greater than or equal to 2"),
        ({"length": 2000}, r"^length: .*less than or equal to 1024"),
        ({"length": 4.0}, r"^length: .*integer"),
    ],
)
def test_configuration_makes_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Dyck(**fields)


def test_it_has_no_tasks_and_can_be_looked_at() -> None:
    language = Dyck(length=4)
    assert dict(language.tasks) == {}
    with pytest.raises(DataError, match="no task 'depth'; this language has none"):
        language.labels("depth", language.sample_latent(3, seed=0))
    facts = describe(language, sentences=64, examples=2)
    assert facts["entropy"]["value"] == 0
    text = facts["examples"][0]["text"]
    assert (len(text), text.count("<"), text.count(">")) == (4, 2, 2)
    assert text in as_text(facts)
