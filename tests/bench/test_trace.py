"""`raysweep bench trace`: peers agree, variances are those of the estimators, costs count accuracy."""

from __future__ import annotations

import pytest
import torch

from raysweep.bench import suites
from raysweep.bench.harness import UnavailableError
from raysweep.bench.peers.gradient_norms import naive, vectorised
from raysweep.bench.peers.hutchinson import Released, by_slopes, signs
from raysweep.bench.trace import ENTRIES
from raysweep.bench.trace.cases import Sizes, Spread, trace, units
from raysweep.bench.trace.subject import PEAKED, language, subject
from raysweep.flatness.fisher import input_traces


def test_a_millionth_is_worth_what_its_name_says() -> None:
    # 10⁴ inputs of relative variance 1 have a mean with a relative standard error of 1 %.
    assert units(10_000, 1.0) == 1_000_000
    assert units(10_000, 4.0) == 250_000


def test_cases_have_names_of_their_own() -> None:
    assert len({entry.key for entry in ENTRIES}) == len(ENTRIES) == 7
    assert [entry.key for entry in suites.entries("trace", ["lstm-64"])] == ["lstm-64"]


@pytest.mark.parametrize(("shape", "state"), [("64/1/2/256", "peaked"), ("64/2", "saturated")])
def test_peers_agree(shape: str, state: str) -> None:
    case = trace(shape, state, quick=True)  # type: ignore[arg-type]
    assert case.ours is not None
    case.ours.work()
    checked = []
    for peer in case.peers:
        try:
            found = peer.prepare().check()
        except UnavailableError:
            continue
        assert found.passed, f"{peer.name}: {found}"
        checked.append(peer.name)
    # The others need packages that are not always installed.
    assert {name[:2] for name in checked} >= {"50", "vm", "th"}


def test_logits_of_the_peaked_state_are_a_multiple() -> None:
    trained, peaked = (subject("16/1/1/32", state, True) for state in ("saturated", "peaked"))
    _, positions, masked = trained.inputs(5)
    a, b = (s.model(masked, positions) for s in (trained, peaked))
    torch.testing.assert_close(b, PEAKED * a, rtol=1e-5, atol=1e-5)
    assert language().max_length == masked.shape[1] == 16


def test_variances_are_those_of_single_draws() -> None:
    what = subject("16/1/1/32", "saturated", True)
    found = Spread.of(what, Sizes(ours=32, naive=1, batch=64, draws=60))
    ids, positions, _ = what.inputs(64)
    exact = input_traces(what.model, ids, positions, vectors="exact").values.sum(dim=1)
    mean = exact.mean()
    assert found.mean == pytest.approx(mean.item(), rel=0.05)
    assert found.between == pytest.approx((exact.var() / mean**2).item(), rel=0.3)
    for kind, own in (("rademacher", found.signs), ("label", found.label)):
        many = torch.stack(
            [
                input_traces(what.model, ids, positions, vectors=kind, seed=k + 1).values.sum(dim=1)
                for k in range(60)
            ]
        )
        assert own == pytest.approx(((many - exact).square().mean() / mean**2).item(), rel=0.3)


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
    # Hessian with the model's own probabilities as labels is the Gauss-Newton matrix.
    vector = signs(what.model, torch.Generator().manual_seed(0))
    released = Released(what.model)
    truth = by_slopes(what.model, masked, positions, vector).item()
    assert released.expected(masked, positions, vector).item() == pytest.approx(truth, rel=1e-4)
    generator = torch.Generator().manual_seed(1)
    drawn = torch.stack([released.product(masked, positions, vector, generator) for _ in range(300)])
    assert abs(drawn.mean().item() - truth) < 4 * drawn.std().item() / 300**0.5


def test_what_vmap_cannot_do_is_told() -> None:
    what = subject("16/1/1/32", "saturated", True)
    _, positions, masked = what.inputs(3)
    # The model asks whether there is padding, which no vectorised tensor can say.
    with pytest.raises(UnavailableError, match="vmap cannot differentiate it"):
        vectorised(what.model, masked, positions, torch.zeros(3, dtype=torch.long))
