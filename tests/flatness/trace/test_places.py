"""Statistics of masked places: mean zero over a sentence, an honest and smaller standard error."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from raysweep.errors import DataError
from raysweep.flatness.trace.contrast import compare
from raysweep.flatness.trace.estimate import summarise
from raysweep.flatness.trace.fisher import draw_positions, fisher_trace, input_traces
from raysweep.flatness.trace.places import beside, place_statistics, places_of
from raysweep.flatness.trace.regression import CONTROL_INPUTS
from raysweep.languages.hmm import HMM
from raysweep.models.encoder import EncoderConfig

LANGUAGE = HMM.random(states=4, vocabulary=6, length=12, blocks=2, tasks=(2,))


@pytest.mark.parametrize("groups", [2, 3, 5, 7])
def test_the_mean_over_the_places_of_a_sentence_is_zero(groups):
    """And each statistic is an indicator less a share: by loops over places."""
    for words in range(1, 8):
        # The longest of seven words decides the groups.
        places = torch.tensor([[place, words] for place in range(words)] + [[6, 7]])
        found = place_statistics(places, groups)
        assert found.shape == (words + 1, groups - 1)
        assert found[:-1].mean(dim=0).abs().max() < 1e-15
        for place in range(words):
            for group in range(groups - 1):
                members = [t for t in range(words) if t * groups // 7 == group]
                wanted = (place in members) - len(members) / words
                assert found[place, group].item() == pytest.approx(wanted, abs=1e-15)


def test_there_are_as_many_groups_as_inputs_allow():
    places = torch.tensor([[3, 16]])
    control = torch.zeros(1, 4, dtype=torch.float64)

    def size(inputs, known):
        found = beside(None if known is None else known.expand(inputs, -1), places.expand(inputs, -1))
        return 0 if found is None else found.shape[1]

    # One coefficient is that of the weights.
    assert size(CONTROL_INPUTS * 2 - 1, None) == 0
    assert size(CONTROL_INPUTS * 2, None) == 1
    assert size(CONTROL_INPUTS * 6 - 1, control) == 4
    assert size(CONTROL_INPUTS * 10, control) == 9
    assert size(CONTROL_INPUTS * 1000, control) == 4 + 15
    assert beside(control, None) is control
    assert beside(None, None) is None


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
    assert np.sqrt(np.mean(errors**2)) / values.std(ddof=1) == pytest.approx(1, abs=0.4)
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


def test_who_has_none(untrained):
    """Given positions may be drawn in any way; labels are left as published."""
    model, ids = untrained
    ids = ids[:300]
    positions = draw_positions(ids, model.pad_id, seed=0)
    assert fisher_trace(model, ids, positions).places is None
    assert fisher_trace(model, ids, vectors="label").places is None
    assert fisher_trace(model, ids, vectors="exact").places is not None
    with pytest.raises(DataError, match="uniform=True is for one a sentence"):
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
