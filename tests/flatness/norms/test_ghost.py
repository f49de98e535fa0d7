"""Ghost norms against dense autograd, and what they refuse."""

import pytest
import torch
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.flatness.norms.ghost import GhostNorms
from raysweep.flatness.trace.fisher import fisher_trace, input_traces


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("length", [3, 12])  # short sentences take the Gram form, long ones the plain one
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_exact_trace_is_the_dense_one(make_model, make_ids, dense_traces, norm, length, dtype, tolerance):
    model = make_model(norm, dtype, length)
    ids, positions = make_ids(2 * length, length)
    # The oracle works in float64 on the same, perhaps rounded, weights.
    double = make_model(norm, torch.float64, length)
    double.load_state_dict(model.state_dict())
    truth = dense_traces(double, ids, positions)
    traces = input_traces(model, ids, positions, vectors="exact", batch=5)
    assert traces.names == tuple(name for name, _ in model.named_parameters())
    assert traces.values.dtype == torch.float64
    total = truth.sum(dim=1, keepdim=True)
    assert ((traces.values - truth).abs() / total).max() < tolerance
    assert ((traces.values.sum(1) - truth.sum(1)).abs() / total[:, 0]).max() < tolerance


def test_single_cotangents_match_autograd_parameter_by_parameter(make_model, make_ids, dense_jacobians):
    model = make_model("pre", length=6)
    ids, positions = make_ids(9, 6)
    cotangents = torch.randn(9, model.total_vocabulary, dtype=torch.float64)
    model.eval()
    with GhostNorms(model) as ghost:
        ghost.forward(ids, positions)
        norms = ghost.norms(cotangents, last=False)
        again = ghost.norms(2 * cotangents)
    for row, jacobian in enumerate(dense_jacobians(model, ids, positions)):
        truth = torch.stack([(cotangents[row] @ j).square().sum() for j in jacobian])
        torch.testing.assert_close(norms[row], truth, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(again, 4 * norms, rtol=1e-10, atol=1e-12)


class Shared(nn.Module):
    """Weights shared in every way: two tables, one matrix at several places and twice, tied decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.pad_id = 5
        self.first, self.second = nn.Embedding(8, 6), nn.Embedding(8, 6)
        self.second.weight = self.first.weight
        self.mix, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)
        self.twin = nn.Linear(6, 6, bias=False)
        self.twin.weight = self.mix.weight
        self.decoder = nn.Linear(6, 8)
        self.decoder.weight = self.first.weight

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.norm(self.first(ids) + torch.tanh(self.second(ids.flip(1))))
        x = self.mix(torch.tanh(self.mix(x)))
        x = self.norm(x.mean(dim=1) + x[torch.arange(len(ids)), positions])
        return self.decoder(torch.tanh(self.twin(x)))


def test_every_kind_of_sharing(dense_jacobians):
    torch.manual_seed(0)
    model = Shared().double()
    ids, positions = torch.randint(0, 5, (7, 4)), torch.randint(0, 4, (7,))
    cotangents = torch.randn(7, 8, dtype=torch.float64)
    with GhostNorms(model) as ghost:
        ghost.verify(ids[:2], positions[:2])
        ghost.forward(ids, positions)
        norms = ghost.norms(cotangents)
    for row, jacobian in enumerate(dense_jacobians(model, ids, positions)):
        truth = torch.stack([(cotangents[row] @ j).square().sum() for j in jacobian])
        torch.testing.assert_close(norms[row], truth, rtol=1e-10, atol=1e-12)


def test_frozen_parameters_are_left_out_and_named(make_model, make_ids):
    ids, positions = make_ids(6, 4)
    whole = fisher_trace(make_model(), ids, positions)
    model = make_model()
    model.decoder.bias.requires_grad_(False)
    model.layers[0].requires_grad_(False)
    part = fisher_trace(model, ids, positions)
    assert set(part.excluded) == {n for n, p in model.named_parameters() if not p.requires_grad}
    assert whole.excluded == ()
    left = whole.value - sum(whole.per_parameter[name].value for name in part.excluded)
    assert part.value == pytest.approx(left, rel=1e-12)
    assert "layers.0" not in part.per_group
    model.requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        fisher_trace(model, ids, positions)


def test_hooks_are_gone_afterwards(make_model, make_ids):
    model = make_model()
    fisher_trace(model, *make_ids(4, 4))
    assert not any(module._forward_hooks or "forward" in vars(module) for module in model.modules())
    model.train()
    out = model(*make_ids(4, 4))
    assert out.requires_grad


def test_projections_of_one_input_are_one_product(make_model, make_ids):
    model = make_model("post", length=6)
    ids, positions = make_ids(9, 6)
    with GhostNorms(model) as ghost:
        ghost.forward(ids, positions)
        taps = len(ghost._taps.outputs)
        ghost.norms(torch.randn(9, model.total_vocabulary, dtype=torch.float64))
    # Ids, positions, their norm; three products and two norms in the first layer; in the last one the query
    # is asked for elsewhere than key and value; two in the head and its norm.
    assert taps == 3 + (4 + 2) + (5 + 2) + 3


def test_a_parameter_without_a_part_has_norm_zero(make_model, make_ids, dense_traces):
    model = make_model()
    model.extra = nn.Linear(8, 8).double()
    ids, positions = make_ids(6, 4)
    part = fisher_trace(model, ids, positions, vectors="exact")
    assert part.method == "ghost norms"
    assert part.per_parameter["extra.weight"].value == 0
    assert part.value == pytest.approx(dense_traces(model, ids, positions).sum().item() / 6, rel=1e-9)
