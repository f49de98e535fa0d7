"""The linear probe against what it must find, and against plain loops."""

import math
from itertools import pairwise

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from raysweep import seeding
from raysweep.downstream import AdamW, Chunk, Convex, adamw, linear_probe, probe
from raysweep.downstream.adamw import train_heads
from raysweep.downstream.lbfgs import principal_axes, solve
from raysweep.downstream.logistic import Inputs
from raysweep.downstream.projection import Projection, gather
from raysweep.errors import DataError, RunFailedError

SOLVERS = {"adamw": AdamW(epochs=40, steps=0), "convex": Convex()}
BOTH = pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)


def chunks(features, labels, start, stop, size=1024, chooses=None):
    return [
        Chunk(
            features=features[k : min(k + size, stop)],
            labels={t: y[k : min(k + size, stop)] for t, y in labels.items()},
            chooses=None if chooses is None else chooses[k : min(k + size, stop)],
        )
        for k in range(start, stop, size)
    ]


def run(features, labels, classes, *, train=2048, solver=SOLVERS["convex"], chooses=None, **options):
    options = {"projection": 64, "seeds": 3, "sizes": [train], **options}
    return linear_probe(
        [chunks(features, labels, 0, train, chooses=chooses)],
        chunks(features, labels, train, len(features)),
        classes,
        solver=solver,
        **options,
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


def noisy(features, classes, seed):
    """Labels that no head can predict for sure."""
    logits = 1.5 * scores(features, classes, seed)
    draws = -torch.rand(logits.shape, generator=torch.Generator().manual_seed(seed + 1)).log().neg().log()
    return (logits + draws).argmax(1)


@pytest.mark.parametrize("solver", [AdamW(epochs=300, steps=0), Convex(l2=(1e-3,))], ids=SOLVERS)
def test_separable_labels_are_found(gaussian, solver):
    margin = scores(gaussian, 1, 1)[:, 0]
    far = margin.abs() > 1.0
    labels = {"easy": (margin > 0).long()[far]}
    result = run(gaussian[far], labels, {"easy": 2}, train=1024, solver=solver)["easy"]
    assert result.accuracy.shape == (1, 1, 3)
    assert result.accuracy.min() > 0.995
    assert result.n == int(far.sum()) - 1024
    assert result.majority < 0.6


@BOTH
def test_random_labels_are_not(gaussian, solver):
    labels = {"noise": (torch.rand(3072, generator=torch.Generator().manual_seed(2)) < 0.3).long()}
    result = run(gaussian, labels, {"noise": 2}, solver=solver)["noise"]
    truth = 1 - labels["noise"][2048:].double().mean().item()
    assert result.majority == pytest.approx(truth, abs=1e-12)
    assert abs(result.accuracy.mean() - result.majority) < 4 * math.sqrt(0.3 * 0.7 / 1024)


@pytest.mark.parametrize("solver", [AdamW(steps=2000), Convex()], ids=SOLVERS)
def test_agrees_with_scikit_learn_on_the_features(gaussian, solver):
    """With its own intercept and default settings, so that only accuracies are comparable."""
    labels = noisy(gaussian, 4, 3)
    plain = ((gaussian - gaussian.mean(0)) / gaussian.std(0).clamp_min(1e-3)).numpy()
    peer = LogisticRegression(max_iter=1000).fit(plain[:2048], labels[:2048])
    reference = peer.score(plain[2048:], labels[2048:])
    assert 0.6 < reference < 0.95
    result = run(gaussian, {"t": labels}, {"t": 4}, solver=solver)["t"]
    assert result.accuracy.mean().item() == pytest.approx(reference, abs=0.015)
    bare = run(gaussian, {"t": labels}, {"t": 4}, solver=solver, projection=None, seeds=1)["t"]
    assert bare.accuracy.item() == pytest.approx(reference, abs=0.006)


@BOTH
def test_tasks_and_seeds_train_as_if_alone(gaussian, solver):
    classes = {"a": 3, "b": 6}
    labels = {t: noisy(gaussian, c, c) for t, c in classes.items()}
    together = run(gaussian, labels, classes, solver=solver)
    for task in labels:
        alone = run(gaussian, {task: labels[task]}, {task: classes[task]}, seeds=1, solver=solver)[task]
        assert 0.5 < together[task].accuracy.mean() < 0.95
        # The products are batched otherwise, so a sentence on the boundary may fall to either side.
        same = together[task].predicted[0, 0, 0] == alone.predicted[0, 0, 0]
        assert (~same).sum() <= 5
        assert len(set(together[task].accuracy.flatten().tolist())) > 1


@BOTH
def test_a_size_gives_the_same_head_alone_and_in_a_curve(gaussian, solver):
    # Near to the minimum, where the ways of two solves end at the same place.
    solver = solver if isinstance(solver, AdamW) else Convex(tolerance=1e-5)
    labels = {"t": noisy(gaussian, 3, 5)}
    curve = run(gaussian, labels, {"t": 3}, solver=solver, sizes=[100, 700, 2048])["t"]
    assert curve.accuracy.shape == (1, 3, 3)
    means = curve.accuracy.mean(dim=2)[0]
    assert means[0] < means[1] <= means[2] + 0.01
    for k, size in enumerate((100, 700)):
        train, test = chunks(gaussian, labels, 0, size), chunks(gaussian, labels, 2048, 3072)
        one = linear_probe(
            [train], test, {"t": 3}, sizes=[size], solver=solver, projection=64, seeds=3,
            statistics=gaussian[:1024],
        )["t"]  # fmt: skip
        assert (one.predicted[:, 0] != curve.predicted[:, k]).sum() <= 10


@BOTH
def test_layers_are_probed_as_if_alone(gaussian, solver):
    labels = {"t": noisy(gaussian, 3, 5)}
    other = gaussian.flip(1) * torch.linspace(0, 2, 24)
    both = run(torch.stack([gaussian, other], 1), labels, {"t": 3}, solver=solver, sizes=[256, 2048])["t"]
    assert both.accuracy.shape == (2, 2, 3)
    for k, features in enumerate((gaussian, other)):
        alone = run(features, labels, {"t": 3}, solver=solver, sizes=[256, 2048])["t"]
        assert (alone.predicted[0] != both.predicted[k]).sum() <= 20


@BOTH
def test_without_a_projection_seeds_share_the_inputs(gaussian, solver):
    labels = {"t": noisy(gaussian, 3, 5)}
    result = run(gaussian, labels, {"t": 3}, solver=solver, projection=None)["t"]
    first, *others = result.predicted[0, 0]
    # Only AdamW has an order of the sentences.
    assert all(torch.equal(first, other) for other in others) == isinstance(solver, Convex)
    assert result.accuracy.std() < 0.01


@BOTH
@pytest.mark.parametrize("projection", [None, 64])
def test_seeds_may_have_training_sets_of_their_own(gaussian, solver, projection):
    labels = {"t": noisy(gaussian, 3, 5)}
    test = chunks(gaussian, labels, 2048, 3072)
    sets = [(0, 600), (600, 1200), (1200, 1800)]
    options = {"solver": solver, "sizes": [100, 600], "projection": projection, "standardize": False}
    own = linear_probe(
        [chunks(gaussian, labels, *part, size=250) for part in sets], test, {"t": 3}, seeds=3, **options
    )["t"]
    for k, part in enumerate(sets):
        alone = linear_probe([chunks(gaussian, labels, *part)], test, {"t": 3}, seeds=3, **options)["t"]
        assert (alone.predicted[0, :, k] != own.predicted[0, :, k]).sum() <= 10


@pytest.mark.parametrize("sets", [1, 2])
def test_the_span_of_a_projection_holds_its_inputs(gaussian, sets):
    """With two layers, and with a training set for each seed."""
    project = Projection(seeds=2, seed=9, width=64, standardize=True)
    layers = torch.stack([gaussian[:400], gaussian[400:800] ** 3], dim=1)
    labels = torch.zeros(400, dtype=torch.long)
    given = [[Chunk(features=part, labels={"t": labels[: len(part)]})] for part in layers.chunk(sets)]
    inputs = gather(given, ["t"], project, sentences=400 // sets)
    assert inputs.span.shape == (4, 65, 25)
    found = torch.linalg.lstsq(inputs.span, inputs.x.mT).solution
    torch.testing.assert_close(inputs.span @ found, inputs.x.mT, rtol=0, atol=1e-4)


@pytest.mark.parametrize("width", [None, 16, 24])
def test_a_projection_to_few_columns_spans_nothing_that_is_known(gaussian, width):
    project = Projection(seeds=2, seed=9, width=width, standardize=True)
    project(gaussian[:100, None])
    assert project.span(1) is None


@pytest.mark.parametrize("projection", [None, 64])
def test_training_by_adamw_does_not_ask_which_sentences_choose(gaussian, projection):
    labels = {"t": noisy(gaussian, 3, 5)}
    chooses = torch.arange(3072) % 5 == 0
    options = {"solver": AdamW(epochs=2, steps=0), "train": 200, "projection": projection, "seeds": 2}
    plain, chosen = (
        run(gaussian, labels, {"t": 3}, chooses=given, **options)["t"] for given in (None, chooses)
    )
    torch.testing.assert_close(chosen.gap, plain.gap)
    assert torch.equal(chosen.predicted, plain.predicted)


@pytest.mark.parametrize(("width", "n", "turned"), [(16, 700, 0), (64, 700, 1), (64, 20, 0)])
def test_axes_are_sought_where_they_save_operations(gaussian, width, n, turned, monkeypatch):
    """64 inputs of 24 features have a rank of 25; batches of few sentences are not worth another look."""
    calls = []
    monkeypatch.setattr(adamw, "principal_axes", lambda given: calls.append(1) or principal_axes(given))
    project = Projection(seeds=2, seed=9, width=width, standardize=True)
    x, y = project(gaussian[:n, None]), torch.zeros(2, n, 1, dtype=torch.long)
    train_heads(Inputs(x=x, y=y, span=project.span(1)), [3], AdamW(epochs=1, steps=0), seeds=2, seed=9)
    assert len(calls) == turned


@pytest.mark.parametrize("width", [16, 64])
def test_training_takes_the_steps_of_autograd_and_adamw(gaussian, width):
    """A plain loop with nn.Linear and cross_entropy, from the same inputs and order."""
    labels = torch.stack([scores(gaussian, 3, 5).argmax(1), scores(gaussian, 5, 6).argmax(1)], 1)[:700]
    project = Projection(seeds=2, seed=9, width=width, standardize=True)
    x = project(gaussian[:700, None])
    settings = AdamW(epochs=3, steps=0, learning_rate=1e-2, batch_size=128, weight_decay=0.1)
    inputs = Inputs(x=x, y=labels.expand(2, -1, -1), span=project.span(1))
    found = train_heads(inputs, [3, 5], settings, seeds=2, seed=9)
    assert (found[:, 0, 3:] == 0).all()
    for s in range(2):
        heads = [torch.nn.Linear(width + 1, c, bias=False) for c in (3, 5)]
        for head in heads:
            torch.nn.init.zeros_(head.weight)
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
        for k, (head, c) in enumerate(zip(heads, (3, 5), strict=True)):
            torch.testing.assert_close(found[s, k, :c], head.weight, rtol=1e-3, atol=1e-4)


def test_small_training_sets_take_steps_and_not_epochs():
    assert AdamW(epochs=3, steps=0, batch_size=100).epochs_of(1000) == 3
    assert AdamW(epochs=3, steps=100, batch_size=100).epochs_of(1000) == 10
    assert AdamW(epochs=3, steps=100, batch_size=100).epochs_of(50) == 100


def test_the_gap_of_adamw_shrinks_with_its_steps(gaussian):
    labels = {"t": noisy(gaussian, 3, 5)}
    gaps = [
        run(gaussian, labels, {"t": 3}, solver=AdamW(epochs=1, steps=steps), sizes=[512, 2048])["t"].gap
        for steps in (20, 200, 2000)
    ]
    assert all((low < high).all() for high, low in pairwise(gaps))
    assert gaps[0].min() > 0.1
    # The least objective itself is known to 0.03 nats.
    assert gaps[2].max() < 0.06
    convex = run(gaussian, labels, {"t": 3}, solver=Convex(tolerance=1e-3), sizes=[512, 2048])["t"]
    assert 0 < convex.gap.max() <= 1e-3


def test_small_training_sets_are_solved_nearer_to_their_minimum(gaussian):
    labels, sizes = {"t": noisy(gaussian, 3, 5)}, [64, 512, 2048]
    found = run(gaussian, labels, {"t": 3}, solver=Convex(), sizes=sizes)["t"].gap[0]
    for gaps, size in zip(found, sizes, strict=True):
        assert 0 < gaps.max() <= 0.03 * size / 8192
    # The bound itself would be met far earlier.
    early = run(gaussian, labels, {"t": 3}, solver=Convex(tolerance=0.03 * 8192 / 64), sizes=sizes)["t"].gap[
        0
    ]
    assert early[0].min() > 0.03 * 64 / 8192


def test_seeds_with_the_same_inputs_have_one_least_objective(gaussian, monkeypatch):
    """Three equal training sets are not known to be one, and give the same gaps by three solves a layer."""
    labels = {"t": noisy(gaussian, 3, 5)}
    groups = []

    def counted(inputs, *arguments, **options):
        groups.append(len(inputs.x))
        return solve(inputs, *arguments, **options)

    monkeypatch.setattr(probe, "solve", counted)
    layers = torch.stack([gaussian, gaussian.flip(1) * torch.linspace(0, 2, 24)], 1)
    train, test = chunks(layers, labels, 0, 512), chunks(layers, labels, 2048, 3072)
    one, three = (
        linear_probe(
            sets, test, {"t": 3}, sizes=[100, 512], solver=AdamW(epochs=1, steps=20), seeds=3, projection=None
        )["t"].gap
        for sets in ([train], [train] * 3)
    )
    assert groups == [2, 6]
    torch.testing.assert_close(one, three, rtol=1e-4, atol=1e-5)


def test_the_penalty_is_chosen_on_sentences_that_the_head_does_not_see(gaussian):
    """Against scikit-learn, one by one; then the head is trained on all sentences."""
    labels = {"t": noisy(gaussian[:, :], 3, 5)}
    candidates = (0.1, 10.0, 1000.0)
    chooses = torch.rand(3072, generator=torch.Generator().manual_seed(1)) < 0.2
    sizes = [64, 512]
    result = run(
        gaussian, labels, {"t": 3}, chooses=chooses, sizes=sizes, train=512, seeds=2,
        solver=Convex(l2=candidates, tolerance=1e-5),
    )["t"]  # fmt: skip
    x = Projection(seeds=2, seed=0, width=64, standardize=True)(gaussian[:512, None]).numpy()
    y = labels["t"].numpy()
    for s in range(2):
        for b, size in enumerate(sizes):
            fits, holds = (~chooses[:size]).numpy(), chooses[:size].numpy()
            losses = []
            for l2 in candidates:
                peer = LogisticRegression(C=1 / l2, fit_intercept=False, max_iter=5000, tol=1e-8)
                peer.fit(x[s, :size][fits], y[:size][fits])
                log_probs = peer.predict_log_proba(x[s, :size][holds])
                losses.append(-log_probs[range(holds.sum()), y[:size][holds]].mean())
            assert result.l2[0, b, s] == candidates[losses.index(min(losses))]
    fixed = run(
        gaussian, labels, {"t": 3}, sizes=sizes, train=512, seeds=2,
        solver=Convex(l2=(result.l2[0, 1, 0].item(),), tolerance=1e-5),
    )["t"]  # fmt: skip
    assert (fixed.predicted[0, 1, 0] != result.predicted[0, 1, 0]).sum() <= 1


def test_the_gap_is_that_of_the_candidates_too(gaussian):
    """A penalty so small that the rounding of gradients is above the tolerance, and which is not chosen.

    On the 24 sentences that choose, these labels cost 0.8 nats with the other one, and 1.3 with this.
    """
    labels = {"t": (torch.rand(3072, generator=torch.Generator().manual_seed(10)) < 0.3).long()}
    chooses = torch.rand(3072, generator=torch.Generator().manual_seed(1)) < 0.2
    result = run(
        gaussian, labels, {"t": 2}, chooses=chooses, train=128, seeds=1, solver=Convex(l2=(1e-15, 10.0))
    )["t"]
    assert result.l2.tolist() == [[[10.0]]]
    assert result.gap.item() > 0.03
    alone = run(gaussian, labels, {"t": 2}, train=128, seeds=1, solver=Convex(l2=(10.0,)))["t"]
    assert alone.gap.item() <= 0.03


def test_there_must_be_sentences_to_choose_on(gaussian):
    labels = {"t": noisy(gaussian, 3, 5)}
    solver = Convex(l2=(1.0, 10.0))
    for chooses in (torch.zeros(3072, dtype=torch.bool), torch.ones(3072, dtype=torch.bool)):
        with pytest.raises(DataError, match="none or all choose l2"):
            run(gaussian, labels, {"t": 3}, solver=solver, chooses=chooses)
    with pytest.raises(DataError, match="not given sentences on which to choose"):
        run(gaussian, labels, {"t": 3}, solver=solver)


def test_standard_error_over_test_sentences(gaussian):
    labels = {"t": noisy(gaussian, 3, 5)}
    result = run(gaussian, labels, {"t": 3})["t"]
    right = (result.predicted[0, 0] == labels["t"][2048:]).double().mean(0)
    assert result.sentence_error.item() == pytest.approx(right.std().item() / 32)
    share = result.accuracy.mean().item()
    # Seeds err on the same sentences, so several tell hardly more than one.
    assert 0.8 < result.sentence_error.item() / math.sqrt(share * (1 - share) / 1024) <= 1


@BOTH
def test_deterministic_and_keyed_by_seed(gaussian, solver):
    labels = {"t": scores(gaussian, 3, 5).argmax(1)}
    labels["t"][::3] = 0
    first, again, other = (
        run(gaussian, labels, {"t": 3}, seed=seed, solver=solver)["t"].predicted for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_chunks_do_not_matter_beyond_the_first(gaussian):
    labels = {"t": scores(gaussian, 3, 5).argmax(1)}
    results = []
    for cut in (1024, 512):
        train = chunks(gaussian, labels, 0, 1024) + chunks(gaussian, labels, 1024, 2048, cut)
        test = chunks(gaussian, labels, 2048, 3072, cut)
        found = linear_probe([train], test, {"t": 3}, sizes=[2048], solver=Convex(), projection=64, seeds=2)
        results.append(found["t"].accuracy)
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=2 / 1024)


def test_standardising_is_affine_invariance(gaussian):
    labels = {"t": scores(gaussian, 3, 5).argmax(1)}
    moved = gaussian * torch.logspace(1, -1, 24) - 3
    a, b = (run(f, labels, {"t": 3}, solver=Convex(tolerance=1e-3))["t"] for f in (gaussian, moved))
    torch.testing.assert_close(a.accuracy, b.accuracy, rtol=0, atol=1.5 / 1024)
    raw = run(gaussian, labels, {"t": 3}, standardize=False)["t"]
    assert raw.accuracy.mean() < a.accuracy.mean() - 0.05


def test_projection_keeps_lengths():
    features = torch.randn(512, 1, 200, generator=torch.Generator().manual_seed(0))
    projected = Projection(seeds=4, seed=0, width=512, standardize=True)(features)
    assert projected.shape == (4, 512, 513)
    assert (projected[:, :, 512] == 1).all()
    projected = projected[:, :, :512]
    assert projected.square().mean().item() == pytest.approx(1.0, abs=0.03)
    correlation = torch.corrcoef(torch.stack([projected[0].flatten(), projected[1].flatten()]))[0, 1]
    assert abs(correlation) < 0.05


def test_what_cannot_be_probed(gaussian):
    labels = {"t": torch.zeros(3072, dtype=torch.long)}
    options = {"solver": Convex(), "projection": 8, "sizes": [64]}
    with pytest.raises(DataError, match="given 0 training sentences, and not 64"):
        linear_probe([[]], [], {"t": 2}, **options)
    with pytest.raises(DataError, match="given 60 training sentences, and not 64"):
        linear_probe([chunks(gaussian, labels, 0, 60)], [], {"t": 2}, **options)
    with pytest.raises(DataError, match="given 80 training sentences, and not 64"):
        linear_probe([chunks(gaussian, labels, 0, 80)], [], {"t": 2}, **options)
    with pytest.raises(DataError, match="no test sentences"):
        linear_probe([chunks(gaussian, labels, 0, 64)], [], {"t": 2}, **options)
    broken = gaussian.clone()
    broken[2500, 3] = math.nan
    with pytest.raises(RunFailedError, match="not finite"):
        run(broken, labels, {"t": 2})
