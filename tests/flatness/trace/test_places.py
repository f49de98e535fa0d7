"""Statistics of masked places: mean zero over a sentence, an honest and smaller standard error."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from raysweep.errors import DataError
from raysweep.flatness.trace.contrast import compare
from raysweep.flatness.trace.estimate import summarise
from raysweep.flatness.trace.fisher import draw_positions, fisher_trace, input_traces
from raysweep.flatness.trace.hessian import hessian_trace
from raysweep.flatness.trace.places import all_statistics, groups_of, place_statistics, places_of
from raysweep.flatness.trace.regression import CONTROL_INPUTS, adjusted
from raysweep.languages.hmm import HMM
from raysweep.models.encoder import EncoderConfig

LANGUAGE = HMM.random(states=4, vocabulary=6, length=12, blocks=2, tasks=(2,))


def some_lengths(n: int, seed: int) -> torch.Tensor:
    """Lengths of up to 64 words and 8 in the mean, so that few are long."""
    drawn = np.random.default_rng(seed).geometric(1 / 8, size=n)
    return torch.from_numpy(np.minimum(drawn, 64))


def drawn_places(words: torch.Tensor, seed: int) -> torch.Tensor:
    """A place of each sentence, drawn uniformly, beside its length [n, 2]."""
    place = np.random.default_rng(seed).integers(0, words.numpy())
    return torch.stack([torch.from_numpy(place), words], dim=1)


@pytest.mark.parametrize("most", [2, 3, 5, 7, 40])
def test_the_mean_over_the_places_of_a_sentence_is_zero(most):
    """And each statistic is an indicator less a share: by loops over places."""
    words = some_lengths(500, 1)
    for length in sorted(set(words.tolist())):
        # The other sentences decide the groups.
        every = torch.tensor([[place, length] for place in range(length)])
        places = torch.cat([every, drawn_places(words, 0)])
        found = place_statistics(places, most)
        groups = groups_of(places[:, 1], most).tolist()
        assert found.shape == (len(places), max(groups))
        assert found[:length].mean(dim=0).abs().max() < 1e-15
        for place in range(length):
            for group in range(max(groups)):
                share = sum(g == group for g in groups[:length]) / length
                wanted = (groups[place] == group) - share
                assert found[place, group].item() == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize("most", [2, 5, 16, 64])
def test_each_group_has_enough_inputs(most):
    for seed in range(5):
        words = some_lengths(2000, seed)
        groups = groups_of(words, most)
        assert groups[0] == 0
        assert set((groups[1:] - groups[:-1]).tolist()) <= {0, 1}
        expected = torch.zeros(int(groups.max()) + 1, dtype=torch.float64)
        for length in words.tolist():
            for place in range(length):
                expected[groups[place]] += 1 / length
        assert len(expected) <= most
        assert expected.sum().item() == pytest.approx(len(words))
        assert expected.min() >= len(words) / most / 2 * (1 - 1e-6)
        assert len(expected) >= min(most, 16) / 2
    # Sentences of one length: each place is a group where there may be so many.
    assert torch.equal(groups_of(torch.full((7,), 16), 16), torch.arange(16))
    assert torch.equal(groups_of(torch.full((7,), 16), 400), torch.arange(16))


def test_rare_long_sentences_make_no_large_values():
    """If places explain nothing, statistics of them cost some percent of the variance at most."""
    ratios = []
    for seed in range(40):
        words = some_lengths(1024, seed)
        plain = torch.from_numpy(np.random.default_rng(seed).exponential(size=1024))
        known = all_statistics(None, drawn_places(words, seed))
        assert known.shape[1] > 5
        ratios.append((adjusted(plain, torch.ones(1024), known).var() / plain.var()).item())
    assert max(ratios) < 1.1
    assert np.mean(ratios) < 1.03


def test_there_are_as_many_groups_as_inputs_allow():
    places = torch.tensor([[3, 16]])
    control = torch.zeros(1, 4, dtype=torch.float64)

    def size(inputs, known):
        found = all_statistics(None if known is None else known.expand(inputs, -1), places.expand(inputs, -1))
        return 0 if found is None else found.shape[1]

    # One coefficient is that of the weights.
    assert size(CONTROL_INPUTS * 2 - 1, None) == 0
    assert size(CONTROL_INPUTS * 2, None) == 1
    assert size(CONTROL_INPUTS * 6 - 1, control) == 4
    assert size(CONTROL_INPUTS * 10, control) == 9
    assert size(CONTROL_INPUTS * 1000, control) == 4 + 15
    assert all_statistics(control, None) is control
    assert all_statistics(None, None) is None


@pytest.fixture(scope="module")
def untrained():
    """A model at initial weights, and sentences of 4 to 12 words."""
    model = EncoderConfig(shape="16/2/2/32", dropout=0.0).build(LANGUAGE, seed=0)
    ids = LANGUAGE.sample(40_000, seed=3)
    lengths = torch.randint(4, 13, (len(ids),), generator=torch.Generator().manual_seed(1))
    ids[torch.arange(12) >= lengths[:, None]] = LANGUAGE.pad_id
    return model, ids


def test_at_initial_weights_the_place_explains_most(untrained):
    """The spread of an input falls to less than half, and its standard error is that over repetitions."""
    model, ids = untrained
    size = 1000
    starts = range(0, len(ids), size)
    found = [fisher_trace(model, ids[s : s + size], seed=s, start=s) for s in starts]
    values, errors = (np.array([getattr(e, name) for e in found]) for name in ("value", "standard_error"))
    without = [
        fisher_trace(
            model,
            ids[s : s + size],
            draw_positions(ids[s : s + size], model.pad_id, seed=s, start=s),
            seed=s,
            start=s,
        )
        for s in starts
    ]
    plain = np.array([e.value for e in without])
    assert found[0].places is not None
    assert without[0].places is None
    assert torch.equal(found[0].plain, without[0].plain)
    assert np.mean([e.standard_error**2 for e in without]) > 2 * np.mean(errors**2)
    # Known to 11 % with 40 repetitions.
    assert np.sqrt(np.mean(errors**2)) / values.std(ddof=1) == pytest.approx(1, abs=0.3)
    assert abs((values - plain).mean()) < 4 * (values - plain).std(ddof=1) / np.sqrt(len(values))


def test_parts_add_up_and_pieces_join(untrained):
    model, ids = untrained
    ids = ids[:2000]
    whole = fisher_trace(model, ids)
    assert sum(part.value for part in whole.per_group.values()) == pytest.approx(whole.value, rel=1e-10)
    positions = draw_positions(ids, model.pad_id, seed=0)
    cuts = [0, 700, 1300, 2000]
    first, *others = [
        input_traces(model, ids[a:b], positions[a:b], start=a, uniform=True) for a, b in pairwise(cuts)
    ]
    for other in others:
        first = first.joined(other)
    assert torch.equal(first.places, places_of(ids, positions, model.pad_id))
    assert summarise(first).value == pytest.approx(whole.value, rel=1e-6)
    # What places explain does not depend on test vectors: the standard error with inputs held fixed has none.
    drawn = fisher_trace(model, ids, draws=2)
    bare = fisher_trace(model, ids, positions, draws=2)
    assert drawn.pool_standard_error == pytest.approx(bare.pool_standard_error, rel=0.1)


def test_the_fisher_part_of_a_hessian_trace_takes_places(untrained):
    """And the residual none: against the definition by hand, from the values of both parts."""
    model, ids = untrained
    ids = ids[:1000]
    positions = draw_positions(ids, model.pad_id, seed=0)
    found, bare = hessian_trace(model, ids), hessian_trace(model, ids, positions)
    traces = input_traces(model, ids, positions)
    places = places_of(ids, positions, model.pad_id)
    values = adjusted(traces.values.sum(dim=1), torch.ones(1000), all_statistics(traces.control, places))
    assert found.gauss_newton.value == pytest.approx(values.mean().item(), rel=1e-5)
    assert found.gauss_newton.standard_error == pytest.approx(values.std().item() / 1000**0.5, rel=1e-4)
    assert found.gauss_newton.standard_error < 0.8 * bare.gauss_newton.standard_error
    assert found.residual.value == pytest.approx(bare.residual.value, rel=1e-4)


def test_who_has_none(untrained):
    """Given positions may be drawn in any way; labels are left as published."""
    model, ids = untrained
    ids = ids[:300]
    positions = draw_positions(ids, model.pad_id, seed=0)
    assert fisher_trace(model, ids, positions).places is None
    assert fisher_trace(model, ids, vectors="label").places is None
    assert fisher_trace(model, ids, vectors="exact").places is not None
    with pytest.raises(DataError, match="with uniform=True give one a sentence"):
        input_traces(model, ids, positions[:, None], uniform=True)


def test_a_difference_takes_places_where_both_have_them(untrained):
    model, ids = untrained
    ids = ids[:2000]
    other = EncoderConfig(shape="16/2/2/32", dropout=0.0).build(LANGUAGE, seed=1)
    positions = draw_positions(ids, model.pad_id, seed=0)
    drawn = [fisher_trace(m, ids) for m in (model, other)]
    given = [fisher_trace(m, ids, positions) for m in (model, other)]
    [with_places], [without], [mixed] = compare(drawn), compare(given), compare([drawn[0], given[1]])
    assert with_places.standard_error < 0.8 * without.standard_error
    assert mixed.standard_error == pytest.approx(without.standard_error)
    assert mixed.difference == pytest.approx(without.difference)
