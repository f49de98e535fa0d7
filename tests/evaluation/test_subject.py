"""Models and the look-up table as things to be evaluated."""

from types import SimpleNamespace

import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.evaluation import LookupTable, ModelSubject
from raysweep.languages.hmm import HMM
from raysweep.models.encoder import EncoderConfig
from raysweep.models.fused import encoder as fused_encoder
from raysweep.models.lstm import LSTMConfig


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


REPRESENTATIONS = ("concatenated", "mean", "masked word", "cls")


@pytest.mark.parametrize("shape", ["8/2/2/16", "8/2"])
@pytest.mark.parametrize("representation", REPRESENTATIONS)
def test_representations_are_those_of_each_sentence_alone(pcfg, sentences, representation, shape):
    """Against one sentence at a time, without padding, for every layer."""
    ids, _ = sentences
    config = EncoderConfig(shape=shape) if shape.count("/") == 3 else LSTMConfig(shape=shape)
    model = config.build(longer(pcfg), seed=0)
    subject = ModelSubject(pcfg, model, batch=7)
    found = subject.features(ids, representation, "all")
    assert len(found[0]) == 1 + len(model.layers)
    torch.testing.assert_close(subject.features(ids, representation), found[:, -1])

    def of_all_layers(x):
        """Return the states [L, T, D] of one sentence, from the layers themselves."""
        taken = []
        hooks = [
            layer.register_forward_hook(lambda layer, given, out: taken.append((given[0], out)))
            for layer in model.layers
        ]
        with torch.no_grad():
            last = model.encode(x)
        for hook in hooks:
            hook.remove()
        return torch.cat([taken[0][0], *(out for _, out in taken[:-1]), last])

    for row in range(0, 50, 3):
        real = ids[row : row + 1, : int(pcfg.lengths(ids)[row])]
        if representation == "cls":
            expected = of_all_layers(torch.cat([torch.tensor([[pcfg.cls_id]]), real], 1))[:, 0]
        elif representation == "mean":
            expected = of_all_layers(real).mean(1)
        else:
            expected = of_all_layers(real)
            if representation == "masked word":
                hidden = [real.clone() for _ in range(real.shape[1])]
                for t, masked in enumerate(hidden):
                    masked[0, t] = pcfg.mask_id
                    expected[:, t] = of_all_layers(masked)[:, t]
            expected = torch.nn.functional.pad(expected, (0, 0, 0, 4 - real.shape[1])).flatten(1)
        torch.testing.assert_close(found[row], expected, rtol=1e-4, atol=1e-5)


def test_words_are_masked_and_read_in_any_chunks(pcfg, sentences, monkeypatch):
    """Sentences are read in chunks of a few words, some without a late position."""
    ids, _ = sentences
    subject = ModelSubject(pcfg, EncoderConfig(shape="8/2/2/16").build(pcfg, seed=0))
    whole = subject.features(ids, "masked word")
    monkeypatch.setattr(fused_encoder, "CHUNK", 8)
    torch.testing.assert_close(subject.features(ids, "masked word"), whole, rtol=1e-4, atol=1e-5)


def longer(language):
    """Return a language like another one, but with sentences of one word more."""
    return SimpleNamespace(
        vocabulary_size=language.vocabulary_size, pad_id=language.pad_id, max_length=language.max_length + 1
    )


def test_what_a_model_does_not_have_is_named(pcfg, sentences, make_subject):
    with pytest.raises(ConfigError, match="representation: sentences of 4 words leave no place"):
        make_subject(pcfg).features(sentences[0], "cls")
    model = EncoderConfig(shape="8/2/2/16").build(pcfg, seed=0)
    model.layers = torch.nn.Sequential(*model.layers)
    with pytest.raises(ConfigError, match="layers: Encoder does not name its layers"):
        ModelSubject(pcfg, model).features(sentences[0], layers="all")
    with pytest.raises(ConfigError, match="representation: the look-up table"):
        LookupTable(pcfg).features(sentences[0], "cls")
    with pytest.raises(ConfigError, match="layers: the look-up table"):
        LookupTable(pcfg).features(sentences[0], layers="all")


def test_table_has_the_same_representation_for_masked_words_and_their_mean(pcfg, sentences):
    ids, _ = sentences
    table = LookupTable(pcfg)
    whole = table.features(ids)
    assert torch.equal(table.features(ids, "masked word"), whole)
    mean = whole.view(50, 4, 6).sum(1) / pcfg.lengths(ids)[:, None]
    torch.testing.assert_close(table.features(ids, "mean"), mean)


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
