"""The online code against plain loops, and against what it must say of labels."""

import math
from itertools import pairwise

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raysweep.downstream import AdamW, Chunk, Convex, linear_probe
from raysweep.downstream.online_code import portions
from raysweep.downstream.projection import Projection


@pytest.fixture(scope="module")
def data():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(600, 12, generator=generator)
    logits = 2 * features @ torch.randn(12, 3, generator=generator)
    drawn = -torch.rand(logits.shape, generator=generator).log().neg().log()
    return features, {
        "read": (logits + drawn).argmax(1),
        "noise": torch.randint(0, 3, (600,), generator=generator),
    }


def code(data, solver, seeds=2, **options):
    features, labels = data
    train = Chunk(features=features[:500], labels={t: y[:500] for t, y in labels.items()})
    test = Chunk(features=features[500:], labels={t: y[500:] for t, y in labels.items()})
    options = {"sizes": [500], "projection": 20, "code": True, **options}
    classes = dict.fromkeys(labels, 3)
    found = linear_probe([[train]], [test], classes, solver=solver, seeds=seeds, **options)
    return {task: result.code_length for task, result in found.items()}


def test_portions_double_and_end_with_all():
    assert portions(500) == [31, 62, 125, 250, 500]
    assert portions(10) == [10]
    ends = portions(1 << 20)
    assert (ends[0], ends[-1], len(ends)) == (1 << 10, 1 << 20, 11)


def test_lengths_are_those_of_scikit_learn_portion_by_portion(data):
    features, labels = data
    found = code(data, Convex(tolerance=1e-6))
    x = Projection(seeds=2, seed=0, width=20, standardize=True)(features[:500, None]).double().numpy()
    ends = [31, 62, 125, 250, 500]
    for task, y in labels.items():
        y = y.numpy()
        for s in range(2):
            total = 31 * math.log(3)
            for first, last in pairwise(ends):
                peer = LogisticRegression(fit_intercept=False, max_iter=5000, tol=1e-9)
                peer.fit(x[s, :first], y[:first])
                log_probs = peer.predict_log_proba(x[s, first:last])
                total -= log_probs[range(last - first), y[first:last]].sum()
            assert found[task][0, s].item() == pytest.approx(total, rel=1e-3)


@pytest.mark.parametrize("solver", [Convex(), AdamW(epochs=1, steps=300)], ids=["convex", "adamw"])
def test_labels_that_can_be_read_are_shorter(data, solver):
    found = code(data, solver)
    uniform = 500 * math.log(3)
    assert (found["read"] < 0.75 * uniform).all()
    assert (found["noise"] > 0.98 * uniform).all()


def test_sizes_of_the_probe_do_not_matter(data):
    one, several = (
        code(data, Convex(tolerance=1e-5)),
        code(data, Convex(tolerance=1e-5), sizes=[100, 250, 500]),
    )
    for task in one:
        torch.testing.assert_close(one[task], several[task], rtol=1e-3, atol=0)


def test_few_labels_are_coded_uniformly(data):
    features, labels = data
    chunk = Chunk(features=features[:20], labels={t: y[:20] for t, y in labels.items()})
    options = {"sizes": [20], "projection": None, "seeds": 1, "solver": Convex(), "code": True}
    found = linear_probe([[chunk]], [chunk], {"noise": 3}, **options)
    assert found["noise"].code_length.tolist() == [[pytest.approx(20 * math.log(3))]]
