"""Models and the look-up table as things to be evaluated."""

import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.evaluation import LookupTable, ModelSubject
from raysweep.languages.hmm import HMM
from raysweep.models.encoder import EncoderConfig


@pytest.fixture(scope="module")
def sentences(pcfg):
    ids = pcfg.sample(50, seed=3)
    lengths = pcfg.lengths(ids)
    assert len(lengths.unique()) > 2
    return ids, torch.arange(50) % lengths


@pytest.mark.parametrize("batch", [1, 7, 64])
def test_model_gives_what_it_gives_alone(pcfg, sentences, make_subject, batch):
    ids, positions = sentences
    subject = make_subject(pcfg, batch=batch)
    log_probs, features = subject.log_probs(ids, positions), subject.features(ids)
    assert log_probs.shape == (50, 6)
    assert log_probs.dtype == torch.float64
    assert features.shape == (50, 4 * 8)
    for row in range(50):
        real = ids[row : row + 1, : int(pcfg.lengths(ids)[row])]
        masked = real.clone()
        masked[0, positions[row]] = pcfg.mask_id
        with torch.no_grad():
            logits = subject.model(masked, positions[row : row + 1])
            hidden = subject.model.encode(real).flatten()
        expected = logits.double().log_softmax(-1)[0, :6]
        torch.testing.assert_close(log_probs[row], expected, rtol=0, atol=1e-5)
        torch.testing.assert_close(features[row, : len(hidden)], hidden, rtol=1e-4, atol=1e-5)
        assert (features[row, len(hidden) :] == 0).all()


def test_model_leaves_probability_to_special_tokens_where_it_does(pcfg, sentences, make_subject):
    total = make_subject(pcfg).log_probs(*sentences).exp().sum(-1)
    assert (total < 1).all()


def test_model_is_put_into_evaluation_mode(pcfg, sentences):
    model = EncoderConfig(shape="8/2/2/16", dropout=0.5).build(pcfg, seed=0).train()
    subject = ModelSubject(pcfg, model)
    assert torch.equal(subject.features(sentences[0]), subject.features(sentences[0]))
    assert not model.training


def test_table_is_the_exact_conditionals(pcfg, sentences):
    ids, positions = sentences
    exact = pcfg.conditionals(ids)
    table = LookupTable(pcfg)
    rows = torch.arange(50)
    torch.testing.assert_close(
        table.log_probs(ids, positions).exp(), exact[rows, positions].exp().double(), rtol=0, atol=1e-6
    )
    features = table.features(ids).view(50, 4, 6)
    real = ids != pcfg.pad_id
    torch.testing.assert_close(features[real], exact[real].exp(), rtol=0, atol=0)
    torch.testing.assert_close(features[real].sum(-1), torch.ones(int(real.sum())), rtol=0, atol=1e-5)
    assert (features[~real] == 0).all()


@pytest.mark.parametrize(
    ("other", "message"),
    [({"vocabulary": 7}, "vocabulary_size 6, its language 7"), ({"length": 6}, "takes 5 positions")],
)
def test_model_of_another_language_is_refused(hmm, other, message):
    fields = {"states": 4, "vocabulary": 6, "length": 5, "blocks": 2, "tasks": (2, 4)}
    model = EncoderConfig(shape="8/2/2/16").build(hmm, seed=0)
    with pytest.raises(ConfigError, match=message):
        ModelSubject(HMM.random(**{**fields, **other}), model)
