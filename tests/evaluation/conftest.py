"""Tiny languages and models, and how an evaluation is run whole."""

import pytest
import torch

from raysweep.evaluation import ModelSubject
from raysweep.evaluation.run import run_evaluation
from raysweep.languages.hmm import HMM
from raysweep.languages.pcfg import PCFG
from raysweep.models.encoder import EncoderConfig


@pytest.fixture(scope="session")
def hmm():
    """Words of other blocks have probability zero."""
    return HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2, 4), label="posterior")


@pytest.fixture(scope="session")
def pcfg():
    """Sentences of different lengths."""
    return PCFG.random(roots=2, layers=2, symbols=3, rules=3, words=4, vocabulary=6, stop=0.4)


@pytest.fixture(scope="session")
def make_subject():
    """Return a maker of subjects whose predictions are far from uniform."""

    def make(language, *, seed=0, **options):
        model = EncoderConfig(shape="8/2/2/16").build(language, seed=seed)
        with torch.no_grad():
            for parameter in model.parameters():
                noise = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
                parameter.add_(noise, alpha=0.3)
        return ModelSubject(language, model, **options)

    return make


@pytest.fixture(scope="session")
def run():
    """Return a function that measures all shards that are wanted and gives the metrics by name."""

    def metrics(evaluation, subject):
        return {metric.name: metric for metric in run_evaluation(evaluation, subject).metrics}

    return metrics
