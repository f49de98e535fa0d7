"""LSTMs by ghost norms: both directions, several layers, weights shared over time."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from raysweep.flatness.evaluating import evaluating
from raysweep.flatness.norms.ghost import GhostNorms
from raysweep.flatness.trace.fisher import fisher_trace, input_traces
from raysweep.models.lstm import LSTMConfig


def make_lstm(length: int, dtype: torch.dtype = torch.float64) -> nn.Module:
    language = SimpleNamespace(vocabulary_size=5, pad_id=5, max_length=length)
    return LSTMConfig(shape="6/2").build(language, seed=2).to(dtype)


@pytest.mark.parametrize("length", [1, 4, 12])  # long sentences take the plain form, short ones Gram's
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_exact_trace_is_the_dense_one(make_ids, dense_traces, length, dtype, tolerance):
    model, double = make_lstm(length, dtype), make_lstm(length)
    double.load_state_dict(model.state_dict())
    ids, positions = make_ids(2 * length, length)
    truth = dense_traces(double, ids, positions)
    traces = input_traces(model, ids, positions, vectors="exact", batch=5)
    assert traces.method == "ghost norms"
    assert traces.names == tuple(name for name, _ in model.named_parameters())
    assert sum("hh" in name for name in traces.names) == 8
    total = truth.sum(dim=1, keepdim=True)
    assert ((traces.values - truth).abs() / total).max() < tolerance


class Stacked(nn.Module):
    """PyTorch's own ways of an LSTM: layers, directions, no biases, time in front, final states."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.pad_id = 5
        self.table = nn.Embedding(8, 4)
        self.lstm = nn.LSTM(4, 3, **options)
        ways = 2 if self.lstm.bidirectional else 1
        self.out = nn.Linear(3 * ways, 8)
        self.end = nn.Linear(6 * ways * self.lstm.num_layers, 8)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        x = self.table(ids)
        x, (h, c) = self.lstm(x if self.lstm.batch_first else x.transpose(0, 1))
        x = x if self.lstm.batch_first else x.transpose(0, 1)
        states = torch.cat([h, c]).transpose(0, 1).flatten(1)
        return self.out(x[torch.arange(len(ids)), positions]) + self.end(states)


@pytest.mark.parametrize(
    "options",
    [
        {"batch_first": True},
        {"num_layers": 2, "bidirectional": True},
        {"num_layers": 2, "bidirectional": True, "batch_first": True, "bias": False},
    ],
)
def test_torchs_own_options(dense_traces, options):
    torch.manual_seed(0)
    model = Stacked(**options).double()
    ids, positions = torch.randint(0, 5, (6, 5)), torch.randint(0, 5, (6,))
    traces = input_traces(model, ids, positions, vectors="exact")
    assert traces.method == "ghost norms"
    torch.testing.assert_close(traces.values, dense_traces(model, ids, positions), rtol=1e-9, atol=1e-12)


def test_logits_are_those_of_the_model(make_ids):
    model = make_lstm(6).eval()
    ids, positions = make_ids(9, 6)
    with GhostNorms(model) as ghost:
        logits = ghost.forward(ids, positions)
    torch.testing.assert_close(logits, model(ids, positions), rtol=1e-12, atol=1e-12)


def test_initial_states_are_not_known(make_ids, dense_traces):
    class Started(Stacked):
        def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
            states = torch.ones(2, 1, len(ids), 3, dtype=torch.float64).unbind()
            x, _ = self.lstm(self.table(ids), states)
            return self.out(x[torch.arange(len(ids)), positions])

    torch.manual_seed(0)
    model = Started(batch_first=True).double()
    ids, positions = make_ids(4, 4)
    estimate = fisher_trace(model, ids, positions, vectors="exact")
    assert "more than one tensor" in estimate.reason
    assert estimate.value == pytest.approx(dense_traces(model, ids, positions).sum().item() / 4, rel=1e-9)


def test_cudnn_is_left_out_only_while_a_recurrent_model_is_measured():
    before = torch.backends.cudnn.enabled
    with evaluating(make_lstm(3)):
        assert not torch.backends.cudnn.enabled
    assert torch.backends.cudnn.enabled == before
    with evaluating(nn.Linear(1, 1)):
        assert torch.backends.cudnn.enabled == before
