"""HMM against hmmlearn: scores and state posteriors."""

from __future__ import annotations

import itertools

import hmmlearn.hmm as hmmlearn
import numpy as np
import pytest
import torch

from raysweep.languages import HMM


def peer(language: HMM) -> object:
    model = hmmlearn.CategoricalHMM(n_components=language.states, init_params="", params="")
    model.n_features = language.vocabulary_size
    model.startprob_ = language.initial
    model.transmat_ = language.transition
    model.emissionprob_ = language.emission
    return model


@pytest.mark.parametrize(
    "fields",
    [
        {"states": 12, "vocabulary": 20, "length": 9, "blocks": 3, "concentration": 0.3},
        {"states": 8, "vocabulary": 16, "length": 8, "blocks": 1},
    ],
)
def test_scores_posteriors_and_labels(fields: dict[str, object]) -> None:
    language = HMM.random(seed=5, tasks=(2, 7), label="posterior", **fields)
    model = peer(language)
    sample = language.sample_latent(30, seed=2)
    found = language.state_posterior(sample.ids)
    scores = language.log_prob(sample.ids)
    for row, ids in enumerate(sample.ids.numpy()):
        score, posterior = model.score_samples(ids[:, None])
        assert abs(score - scores[row].item()) < 1e-10
        np.testing.assert_allclose(found[row].numpy(), posterior, rtol=0, atol=1e-10)
        for name in language.tasks:
            label = int(language.labels(name, sample)[row])
            assert label == int(posterior[int(name) - 1].argmax())


def test_conditionals_are_ratios_of_scores() -> None:
    language = HMM.random(seed=6, states=6, vocabulary=7, length=5, blocks=1, tasks=())
    model = peer(language)
    ids = language.sample(3, seed=0)
    found = language.conditionals(ids, dtype=torch.float64).exp()
    for row, t in itertools.product(range(3), range(5)):
        score = []
        for c in range(7):
            words = ids[row].clone()
            words[t] = c
            score.append(model.score(words.numpy()[:, None]))
        joint = np.exp(np.array(score) - max(score))
        np.testing.assert_allclose(found[row, t].numpy(), joint / joint.sum(), rtol=0, atol=1e-12)


def test_posterior_by_enumeration_of_states() -> None:
    language = HMM.random(seed=7, states=3, vocabulary=4, length=4, blocks=1, tasks=())
    ids = language.sample(5, seed=1)
    for row in range(5):
        truth = np.zeros((4, 3))
        for z in itertools.product(range(3), repeat=4):
            p = language.initial[z[0]] * language.emission[z[0], ids[row, 0]]
            for t in range(1, 4):
                p *= language.transition[z[t - 1], z[t]] * language.emission[z[t], ids[row, t]]
            truth[range(4), z] += p
        assert abs(np.log(truth[0].sum()) - language.log_prob(ids)[row].item()) < 1e-13
        truth /= truth.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(language.state_posterior(ids)[row].numpy(), truth, rtol=0, atol=1e-13)
