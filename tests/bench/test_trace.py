"""`raysweep bench trace`: peers agree, variances are those of the estimators, costs count accuracy."""

from __future__ import annotations

import pytest
import torch

from raysweep.bench import suites
from raysweep.bench.harness import UnavailableError
from raysweep.bench.peers.gradient_norms import naive, vectorised
from raysweep.bench.peers.hutchinson import Released, by_slopes, signs
from raysweep.bench.trace import ENTRIES
from raysweep.bench.trace.cases import excess_loss, residual_gain, trace
from raysweep.bench.trace.subject import PEAKED, Subject, drawn, language, stepper_of, subject
from raysweep.bench.trace.variance import Replicates, Spread, estimated, traces
from raysweep.flatness.trace.fisher import input_traces


def test_a_trace_is_to_one_percent() -> None:
    # 10⁴ inputs of relative variance 1 have a mean with a relative standard error of 1 %.
    assert traces(10_000, 1.0) == pytest.approx(1.0)
    # One draw of a very noisy peer is a small share, and is not rounded.
    assert traces(1, 333.0) == pytest.approx(1e-4 / 333)


def test_cases_have_names_of_their_own() -> None:
    assert len({entry.key for entry in ENTRIES}) == len(ENTRIES) == 7
    assert [entry.key for entry in suites.entries("trace", ["lstm-64"])] == ["lstm-64"]


@pytest.mark.parametrize(("shape", "state"), [("64/1/2/256", "peaked"), ("64/2", "saturated")])
def test_peers_agree(shape: str, state: str) -> None:
    case = trace(shape, state, quick=True)  # type: ignore[arg-type]
    assert case.ours is not None
    case.ours.work()
    checked, absent = [], []
    for peer in case.peers:
        try:
            prepared = peer.prepare()
        except UnavailableError as error:
            absent.append(str(error))
            continue
        found = prepared.check()
        assert found.passed, f"{peer.name}: {found}"
        assert prepared.contestant.units > 0
        checked.append(peer.name)
    assert len(checked) + len(absent) == 5
    # curvlinops comes with the extra `bench`, Opacus with the tests.
    assert all(reason.startswith("curvlinops cannot be imported") for reason in absent)


def test_logits_of_the_peaked_state_are_a_multiple() -> None:
    trained, peaked = (subject("16/1/1/32", state, True) for state in ("saturated", "peaked"))
    _, positions, masked = trained.inputs(5)
    a, b = (s.model(masked, positions) for s in (trained, peaked))
    torch.testing.assert_close(b, PEAKED * a, rtol=1e-5, atol=1e-5)
    assert language().max_length == masked.shape[1] == 16


def test_variances_are_those_of_single_draws() -> None:
    what = subject("16/1/1/32", "saturated", True)
    found = Spread.of(what, inputs=64, draws=60)
    ids, positions, _ = what.inputs(64, start=2_000_000)
    exact = input_traces(what.model, ids, positions, vectors="exact").values.sum(dim=1)
    mean = exact.mean()
    assert found.mean == pytest.approx(mean.item(), rel=0.05)
    assert found.between == pytest.approx((exact.var() / mean**2).item(), rel=0.3)
    many = torch.stack(
        [
            input_traces(what.model, ids, positions, vectors="label", seed=k + 1).values.sum(dim=1)
            for k in range(60)
        ]
    )
    assert found.label == pytest.approx(((many - exact).square().mean() / mean**2).item(), rel=0.3)


def test_replicates_tell_the_variance_of_an_input() -> None:
    what = subject("16/1/1/32", "saturated", True)
    # From 1,000 inputs on, each of the 16 places is a group of its own.
    found = Replicates.of(what, inputs=1024, seeds=12)
    ids, positions, _ = what.inputs(2048)
    one = estimated(what.model, ids, positions)
    assert found.variance == pytest.approx(2048 * one.relative_standard_error**2, rel=0.15)
    plain = input_traces(what.model, ids, positions).values.sum(dim=1)
    assert found.plain == pytest.approx((plain.var() / plain.mean() ** 2).item(), rel=0.15)
    assert found.plain > found.variance
    # The spread of twelve values has a relative error of a fifth.
    assert 0.5 < found.honesty < 2


def test_conditionals_as_labels_free_the_residual_of_noise_as_the_loss_falls() -> None:
    first = subject("16/1/1/32", "init", True)
    stepper = stepper_of(first.config, first.language, steps=300, batch_size=64)
    stepper.algorithm = stepper.algorithm.model_copy(update={"lr": 4e-3})
    for step, batch in enumerate(drawn(stepper, first.language, 300), start=1):
        stepper.update(batch, step)
    trained = Subject(
        language=first.language, model=stepper.model.eval(), earlier=first.model, config=first.config
    )
    assert excess_loss(trained, 64) < 0.05 < excess_loss(first, 64)
    assert residual_gain(trained, 64) > 5 * residual_gain(first, 64)


def test_peers_hold_the_definition() -> None:
    what = subject("16/1/1/32", "saturated", True)
    _, positions, masked = what.inputs(3)
    labels = torch.tensor([[0, 5], [1, 1], [7, 2]])
    norms = naive(what.model, masked, positions, labels)
    for row in range(3):
        what.model.zero_grad()
        log_f = what.model(masked[row : row + 1], positions[row : row + 1])[0].log_softmax(dim=-1)
        log_f[labels[row, 1]].backward()
        truth = sum(p.grad.square().sum() for p in what.model.parameters() if p.grad is not None)
        assert norms[row, 1].item() == pytest.approx(float(truth), rel=1e-4)
    what.model.zero_grad(set_to_none=True)
    # The Hessian with the model's own probabilities as labels is the Gauss-Newton matrix.
    vector = signs(what.model, torch.Generator().manual_seed(0))
    released = Released(what.model)
    truth = by_slopes(what.model, masked, positions, vector).item()
    assert released.expected(masked, positions, vector).item() == pytest.approx(truth, rel=1e-4)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([released.product(masked, positions, vector, generator) for _ in range(100)])
    assert abs(drawn.mean().item() - truth) < 4 * drawn.std().item() / 100**0.5


def test_what_vmap_cannot_do_is_told() -> None:
    what = subject("16/1/1/32", "saturated", True)
    _, positions, masked = what.inputs(3)
    # The model looks for padding, and vmap does not let it read a tensor.
    with pytest.raises(UnavailableError, match="vmap cannot differentiate it"):
        vectorised(what.model, masked, positions, torch.zeros(3, dtype=torch.long))
