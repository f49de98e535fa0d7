"""Architectures that ghost norms do not know are measured all the same, and it is said."""

import logging
import re

import pytest
import torch
from torch import Tensor, nn

from raysweep.errors import ConfigError, RunFailedError
from raysweep.flatness.trace.fisher import fisher_trace, input_traces


def replace(model: nn.Module, name: str, module: nn.Module) -> nn.Module:
    setattr(model, name, module.double())
    return model


class Scaled(nn.Linear):
    """A linear layer that is not a plain one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Functional(nn.Module):
    """A tied decoder that bypasses the module which owns the weight."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.inner, self.pad_id = model, model.pad_id

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        # The table has a visible use as well, so that only the comparison with autograd can tell.
        logits = self.inner(ids, positions)
        return logits + logits @ self.inner.token_embedding.weight @ self.inner.token_embedding.weight.T


class Mixing(Functional):
    """Rows that see one another."""

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        logits = self.inner(ids, positions)
        return logits + logits.mean(dim=0)


class Bare(Functional):
    """A parameter that belongs to no known kind of module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        self.gain = nn.Parameter(torch.full((), 1.5, dtype=torch.float64))

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.gain * self.inner(ids, positions)


class Convolution(nn.Module):
    """Another architecture: a convolution over the words, which vmap can differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.pad_id = 5
        self.table = nn.Embedding(8, 6)
        self.mix = nn.Conv1d(6, 6, kernel_size=3, padding=1)
        self.out = nn.Linear(6, 8)

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        words = self.table(ids) * (ids != self.pad_id)[:, :, None]
        x = torch.tanh(self.mix(words.transpose(1, 2)).transpose(1, 2))
        index = positions[:, None, None].expand(-1, 1, 6)
        return self.out(x.gather(1, index)[:, 0])


CHANGES = [
    (lambda m: replace(m, "head_dense", Scaled(8, 8)), "head_dense: .*no known ghost norm"),
    (lambda m: replace(m, "head_norm", nn.GroupNorm(1, 8)), "head_norm: .*GroupNorm.*no known ghost norm"),
    (Functional, "uses inner.token_embedding.weight otherwise"),
    (Bare, "the model itself: "),
]


@pytest.mark.parametrize(("change", "reason"), CHANGES)
def test_what_is_not_covered_is_differentiated_singly(
    make_model, make_ids, dense_traces, caplog, change, reason
):
    torch.manual_seed(0)
    model = change(make_model())
    ids, positions = make_ids(6, 4)
    with caplog.at_level(logging.WARNING, logger="raysweep.flatness"):
        traces = input_traces(model, ids, positions, vectors="exact")
    truth = dense_traces(model, ids, positions)
    torch.testing.assert_close(traces.values, truth, rtol=1e-9, atol=1e-12)
    assert traces.method == "one gradient at a time"
    assert len(caplog.records) == 1
    for text in (traces.reason, caplog.text):
        assert re.search(reason, text)


def test_an_unknown_parameter_is_found_however_small_its_share(make_model, make_ids):
    class Nearly(Bare):
        def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
            return self.inner(ids, positions) * (1 + 1e-6 * self.gain)

    ids, positions = make_ids(6, 4)
    traces = input_traces(Nearly(make_model()), ids, positions, vectors="exact")
    share = traces.values[:, traces.names.index("gain")].sum() / traces.values.sum()
    assert 0 < share < 1e-10
    assert "the model itself: parameters of a Nearly" in traces.reason


def test_another_architecture_is_vectorised(make_ids, dense_traces, caplog):
    torch.manual_seed(0)
    model = Convolution().double()
    ids, positions = make_ids(12, 4)
    estimate = fisher_trace(model, ids, positions, vectors="exact")
    assert estimate.method == "vmap"
    assert "mix: parameters of a Conv1d" in estimate.reason
    truth = dense_traces(model, ids, positions)
    torch.testing.assert_close(estimate.per_input, truth.sum(dim=1), rtol=1e-9, atol=1e-12)
    assert estimate.value == pytest.approx(truth.sum().item() / 12, rel=1e-9)
    assert "vmap" in caplog.text


def test_rows_that_see_one_another_have_no_trace(make_model, make_ids):
    with pytest.raises(ConfigError, match="depend on the other inputs of the batch"):
        fisher_trace(Mixing(make_model()), *make_ids(8, 4))


def test_gradients_must_be_finite(make_model, make_ids):
    model = Bare(make_model())
    with torch.no_grad():
        model.gain.fill_(torch.nan)
    with pytest.raises(RunFailedError, match="not finite"):
        fisher_trace(model, *make_ids(8, 4))
