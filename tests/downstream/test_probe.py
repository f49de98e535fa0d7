"""The linear probe against what it must find, and against a convex solver."""

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raysweep.downstream import linear_probe
from raysweep.errors import DataError, RunFailedError


def chunks(features, labels, start, stop, size=1024):
    return [
        (features[k : min(k + size, stop)], {t: y[k : min(k + size, stop)] for t, y in labels.items()})
        for k in range(start, stop, size)
    ]


def run(features, labels, classes, *, train=2048, **options):
    options = {"projection": 64, "epochs": 40, "seeds": 3, **options}
    return linear_probe(
        chunks(features, labels, 0, train), chunks(features, labels, train, len(features)), classes, **options
    )


@pytest.fixture(scope="module")
def gaussian():
    """Features [3072, 24] of very different scales and offsets, one of them constant."""
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(3072, 24, generator=generator)
    features = features * torch.logspace(-2, 2, 24) + 5
    features[:, 7] = 0.1
    return features


def scores(features, classes, seed):
    plain = (features - features.mean(0)) / features.std(0).clamp_min(1e-3)
    return plain @ torch.randn(24, classes, generator=torch.Generator().manual_seed(seed))


def test_separable_labels_are_found(gaussian):
    margin = scores(gaussian, 1, 1)[:, 0]
    far = margin.abs() > 1.0
    labels = {"easy": (margin > 0).long()[far]}
    result = run(gaussian[far], labels, {"easy": 2}, train=1024, epochs=300)["easy"]
    assert result.accuracy.shape == (3,)
    assert result.accuracy.min() > 0.995
    assert result.n == int(far.sum()) - 1024
    assert result.majority < 0.6


def test_random_labels_are_not(gaussian):
    labels = {"noise": (torch.rand(3072, generator=torch.Generator().manual_seed(2)) < 0.3).long()}
    result = run(gaussian, labels, {"noise": 2}, train=2048)["noise"]
    truth = 1 - labels["noise"][2048:].double().mean().item()
    assert result.majority == pytest.approx(truth, abs=1e-12)
    assert abs(result.mean - result.majority) < 4 * math.sqrt(0.3 * 0.7 / 1024)


def test_agrees_with_a_convex_solver(gaussian):
    logits = 1.5 * scores(gaussian, 4, 3)
    draws = -torch.rand(logits.shape, generator=torch.Generator().manual_seed(4)).log().neg().log()
    labels = (logits + draws).argmax(1)
    plain = ((gaussian - gaussian.mean(0)) / gaussian.std(0).clamp_min(1e-3)).numpy()
    solver = LogisticRegression(max_iter=1000).fit(plain[:2048], labels[:2048])
    reference = solver.score(plain[2048:], labels[2048:])
    result = run(gaussian, {"t": labels}, {"t": 4}, epochs=100)["t"]
    assert 0.6 < reference < 0.95
    assert result.mean == pytest.approx(reference, abs=0.015)


def test_tasks_and_seeds_train_as_if_alone(gaussian):
    labels = {"a": scores(gaussian, 3, 5).argmax(1), "b": scores(gaussian, 6, 6).argmax(1)}
    classes = {"a": 3, "b": 6}
    # Noise on the labels keeps the accuracies away from one, where any two would agree.
    for y, c in zip(labels.values(), classes.values(), strict=True):
        flip = torch.rand(3072, generator=torch.Generator().manual_seed(c)) < 0.3
        y[flip] = torch.randint(0, c, (int(flip.sum()),), generator=torch.Generator().manual_seed(c))
    together = run(gaussian, labels, classes)
    alone = {t: run(gaussian, {t: labels[t]}, {t: classes[t]}, seeds=1)[t] for t in labels}
    for task in labels:
        assert 0.5 < together[task].mean < 0.9
        # The products are batched otherwise, so a sentence on the boundary may fall to either side.
        assert abs(together[task].accuracy[0] - alone[task].accuracy[0]) <= 2 / 1024
        assert len(set(together[task].accuracy.tolist())) > 1
    assert math.isnan(alone["a"].std)


def test_training_takes_the_steps_of_autograd_and_adamw(gaussian):
    """A plain loop with nn.Linear and cross_entropy, from the same projection and order."""
    from raysweep import seeding
    from raysweep.downstream.probe import _Projection, _train_heads

    labels = torch.stack([scores(gaussian, 3, 5).argmax(1), scores(gaussian, 5, 6).argmax(1)], 1)[:700]
    x = _Projection(2, 9, 16, True)(gaussian[:700])
    options = {"seed": 9, "epochs": 3, "learning_rate": 1e-2, "batch_size": 128, "weight_decay": 0.1}
    weight, bias = _train_heads(x, labels, [3, 5], **options)
    for s in range(2):
        heads = [torch.nn.Linear(16, c) for c in (3, 5)]
        for head in heads:
            torch.nn.init.zeros_(head.weight)
            torch.nn.init.zeros_(head.bias)
        optimizer = torch.optim.AdamW([p for h in heads for p in h.parameters()], lr=1e-2, weight_decay=0.1)
        order = seeding.generator(9, "probe-order", s)
        for _ in range(3):
            for pick in torch.randperm(700, generator=order).split(128):
                optimizer.zero_grad()
                sum(
                    torch.nn.functional.cross_entropy(head(x[s, pick]), labels[pick, k])
                    for k, head in enumerate(heads)
                ).backward()
                optimizer.step()
        torch.testing.assert_close(weight[s], torch.cat([h.weight for h in heads]), rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(bias[s, 0], torch.cat([h.bias for h in heads]), rtol=1e-3, atol=1e-4)


def test_deterministic_and_keyed_by_seed(gaussian):
    labels = {"t": scores(gaussian, 3, 5).argmax(1)}
    labels["t"][::3] = 0
    first, again, other = (run(gaussian, labels, {"t": 3}, seed=seed)["t"].accuracy for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_chunks_do_not_matter_beyond_the_first(gaussian):
    labels = {"t": scores(gaussian, 3, 5).argmax(1)}
    results = []
    for cut in (1024, 512):
        train = [(gaussian[:1024], {"t": labels["t"][:1024]})]
        train += chunks(gaussian, labels, 1024, 2048, cut)
        test = chunks(gaussian, labels, 2048, 3072, cut)
        results.append(linear_probe(train, test, {"t": 3}, projection=64, epochs=10, seeds=2)["t"].accuracy)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=2 / 1024)


def test_standardising_is_affine_invariance(gaussian):
    labels = {"t": scores(gaussian, 3, 5).argmax(1)}
    moved = gaussian * torch.logspace(1, -1, 24) - 3
    a, b = (run(f, labels, {"t": 3})["t"] for f in (gaussian, moved))
    torch.testing.assert_close(a.accuracy, b.accuracy, rtol=0, atol=3 / 1024)
    raw = run(gaussian, labels, {"t": 3}, standardize=False)["t"]
    assert raw.mean < a.mean - 0.05


def test_projection_keeps_lengths():
    from raysweep.downstream.probe import _Projection

    features = torch.randn(512, 200, generator=torch.Generator().manual_seed(0))
    projected = _Projection(4, 0, 512, True)(features)
    assert projected.shape == (4, 512, 512)
    assert projected.square().mean().item() == pytest.approx(1.0, abs=0.03)
    correlation = torch.corrcoef(torch.stack([projected[0].flatten(), projected[1].flatten()]))[0, 1]
    assert abs(correlation) < 0.05


def test_what_cannot_be_probed(gaussian):
    labels = {"t": torch.zeros(3072, dtype=torch.long)}
    with pytest.raises(DataError, match="no training sentences"):
        linear_probe([], [], {"t": 2})
    with pytest.raises(DataError, match="no test sentences"):
        linear_probe(chunks(gaussian, labels, 0, 64, 64), [], {"t": 2}, epochs=1, projection=8)
    broken = gaussian.clone()
    broken[2500, 3] = math.nan
    with pytest.raises(RunFailedError, match="not finite"):
        run(broken, labels, {"t": 2})
