"""The fused training path of LSTMs, beside their equations written out word by word in float64."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import fused_oracle
from helpers.fused_oracle import LANGUAGE, Oracle, assert_close, distance, draw
from raysweep.algorithms import AdamWConfig
from raysweep.errors import DataError
from raysweep.models import LSTM, LSTMConfig
from raysweep.models.batch import Batch
from raysweep.models.fused import lstm as fused
from raysweep.models.fused import recurrent
from raysweep.models.precision import multiplies_bfloat16
from raysweep.training import World
from raysweep.training.config import PretrainConfig
from raysweep.training.step import Stepper

PRECISIONS = [torch.float32, torch.bfloat16]


def make(dropout: float = 0.0, shape: str = "24/3", **options: Any) -> LSTM:
    model = LSTMConfig(shape=shape, dropout=dropout, **options).build(LANGUAGE, seed=0)
    assert isinstance(model, LSTM)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Weights large enough that gates and cells are far from linear, and no bias is zero.
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.4)
    return model.train()


def ours(model: LSTM, batch: Batch, seed: int, dtype: torch.dtype) -> tuple[float, dict[str, Tensor]]:
    return fused_oracle.ours(fused, model, batch, seed, dtype)


def modules_own(model: LSTM, batch: Batch, dtype: torch.dtype) -> tuple[float, dict[str, Tensor]]:
    loss = model.plain_loss(batch, dtype=dtype)
    names, parameters = zip(*model.named_parameters(), strict=True)
    return loss.item(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


class LSTMOracle(Oracle):
    """Logits of one sentence at a time, a word at a time: Hochreiter and Schmidhuber (1997) as in PyTorch."""

    def __init__(self, model: LSTM, seed: int) -> None:
        super().__init__(model, seed)
        self.model = model

    def read(self, x: Tensor, name: str, times: list[int]) -> Tensor:
        """Return what a direction makes of words x [T, D], read in the order `times`."""
        p = self.p
        H = x.shape[1] // 2
        h = c = torch.zeros(H, dtype=torch.float64)
        out: dict[int, Tensor] = {}
        for t in times:
            pre = p[f"{name}.weight_ih_l0"] @ x[t] + p[f"{name}.bias_ih_l0"]
            pre = pre + p[f"{name}.weight_hh_l0"] @ h + p[f"{name}.bias_hh_l0"]
            i, f, g, o = pre.split(H)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            out[t] = h
        return torch.stack([out[t] for t in range(len(times))])

    def logits(self, ids: Tensor, row: int) -> Tensor:
        T, D = len(ids), self.model.width
        places = [row * self.model.max_length + t for t in range(T)]
        x = self.dropped(self.p["token_embedding.weight"][ids], 0, places, -(-D // 4))
        for k in range(self.model.shape.layers):
            sides = (("left_to_right", list(range(T))), ("right_to_left", list(reversed(range(T)))))
            x = torch.cat(
                [
                    self.dropped(
                        self.read(x, f"layers.{k}.{name}", times), 1 + 2 * k + side, places, -(-D // 2 // 4)
                    )
                    for side, (name, times) in enumerate(sides)
                ],
                dim=1,
            )
        return x @ self.p["token_embedding.weight"].T + self.p["decoder.bias"]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", ["one", 0.4])
def test_loss_and_gradients_are_those_of_the_equations(mask: Any, dropout: float, dtype: torch.dtype) -> None:
    model, batch = make(dropout), draw(mask)
    loss, gradients = ours(model, batch, 7, dtype)
    expected, wanted = LSTMOracle(model, 7).gradients(batch)
    low = dtype == torch.bfloat16
    assert loss == pytest.approx(expected, rel=2e-2 if low else 1e-5)
    assert_close(gradients, wanted, 1e-1 if low else 2e-5)


@pytest.mark.parametrize("options", [
    {"shape": "2/1"}, {"shape": "10/1"}, {"shape": "12/2"}, {"shape": "40/2"}, {"shape": "70/1"},
    {"shape": "16/1", "vocabulary": "faithful"},
])  # fmt: skip
def test_shapes_that_fill_no_vector(options: dict[str, Any]) -> None:
    model, batch = make(0.1, **options), draw(size=9)
    loss, gradients = ours(model, batch, 7, torch.float32)
    expected, wanted = LSTMOracle(model, 7).gradients(batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert_close(gradients, wanted, 2e-5)


@pytest.mark.parametrize("mask", ["one", 0.4])
def test_it_computes_what_the_module_does(mask: Any) -> None:
    model, batch = make(), draw(mask)
    assert model.masked_loss(batch, seed=0, dtype=torch.float32).grad_fn.name() == "_LossBackward"
    expected, wanted = modules_own(model, batch, torch.float32)
    loss, found = ours(model, batch, 0, torch.float32)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert_close(found, wanted, 1e-5)


def test_without_training_nothing_is_dropped() -> None:
    model, batch = make(0.3), draw()
    expected, wanted = modules_own(model.eval(), batch, torch.float32)
    loss, found = ours(model, batch, 0, torch.float32)
    assert loss == pytest.approx(expected, rel=1e-6)
    assert_close(found, wanted, 1e-5)
    assert ours(model.train(), batch, 0, torch.float32)[0] != pytest.approx(expected, rel=1e-3)


def test_in_float64_it_is_the_modules_own() -> None:
    model, batch = make().double(), draw()
    assert not model.fused
    loss = model.masked_loss(batch, seed=0, dtype=torch.float32)
    expected, _ = LSTMOracle(model, 0).gradients(batch)
    assert loss.item() == pytest.approx(expected, rel=1e-12)


def test_bfloat16_rounds_about_as_autocast_does() -> None:
    model, batch = make(), draw(size=100)
    # oneDNN has no LSTM in bfloat16 for processors without instructions for it; torch's own loop does.
    with torch.backends.mkldnn.flags(enabled=multiplies_bfloat16(torch.device("cpu"))):
        _, autocast = modules_own(model, batch, torch.bfloat16)
    _, wanted = ours(model, batch, 0, torch.float32)
    _, found = ours(model, batch, 0, torch.bfloat16)
    assert distance(found, wanted) < 1.25 * distance(autocast, wanted)


def test_chunks_and_parts_add_up_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make(0.2), draw(0.3)
    loss, gradients = ours(model, batch, 7, torch.float32)
    for words in (1, 40, 100):
        monkeypatch.setattr(fused, "CHUNK", words * model.width)
        again, found = ours(model, batch, 7, torch.float32)
        assert again == pytest.approx(loss, rel=1e-6)
        assert_close(found, gradients, 1e-5)
    parts = [ours(model, part, 7, torch.float32) for part in batch.split(7)]
    assert len(parts) == 5
    assert sum(part for part, _ in parts) == pytest.approx(loss, rel=1e-6)
    assert_close({name: sum(g[name] for _, g in parts) for name in gradients}, gradients, 1e-5)


def test_sentences_without_a_masked_word_add_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make(0.2), draw(0.3)
    width = batch.ids.shape[1]
    kept = batch.index // width % 3 == 0
    some = Batch(**{**vars(batch), "index": batch.index[kept], "targets": batch.targets[kept]})
    expected, wanted = LSTMOracle(model, 7).gradients(some)
    # The second time there are chunks with no masked word at all.
    for words in (10_000, 1):
        monkeypatch.setattr(fused, "CHUNK", words * model.width)
        loss, gradients = ours(model, some, 7, torch.float32)
        assert loss == pytest.approx(expected, rel=1e-5)
        assert_close(gradients, wanted, 2e-5)


@pytest.mark.parametrize("mask", ["one", 0.4])
def test_two_micro_batches_are_one_update(mask: Any) -> None:
    def stepper(micro_batch: int | None) -> Stepper:
        config = PretrainConfig(steps=3, batch_size=12, mask=mask, micro_batch=micro_batch)
        return Stepper(
            make(0.2), AdamWConfig(), language=LANGUAGE, pretrain=config, seed=0, world=World(),
            device=torch.device("cpu"),
        )  # fmt: skip

    whole, parts = stepper(None), stepper(6)
    batch = draw(mask, size=12)
    losses = [one._backward(batch, 2, None) for one in (whole, parts)]
    torch.testing.assert_close(*losses)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-7)
    for each in (whole, parts):
        each.optimizer.zero_grad()
        each.update(batch, 2)
    for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_gradients_share_no_memory() -> None:
    model, batch = make(), draw()
    model.masked_loss(batch, seed=0, dtype=torch.float32).backward()
    gradients = sorted((p.grad for p in model.parameters()), key=Tensor.data_ptr)
    assert all(g.is_contiguous() for g in gradients)
    assert all(one.data_ptr() + one.nbytes <= other.data_ptr() for one, other in pairwise(gradients))


def test_dropout_is_keyed_and_of_its_rate() -> None:
    model, batch = make(0.3), draw()
    first, same, other = (ours(model, batch, seed, torch.float32) for seed in (1, 1, 2))
    assert first[0] == same[0]
    assert all(torch.equal(first[1][name], same[1][name]) for name in first[1])
    assert first[0] != other[0]
    # The mean over many seeds is that of the network's own masks: the loss with the module's dropout.
    found = [
        fused.step(model, batch, seed=s, dtype=torch.float32).differentiable().item() for s in range(200)
    ]
    torch.manual_seed(0)
    with torch.no_grad():
        wanted = [F.cross_entropy(model(batch.ids, batch.index), batch.targets).item() for _ in range(200)]
    error = math.sqrt((np.var(found) + np.var(wanted)) / 200)
    assert abs(np.mean(found) - np.mean(wanted)) < 4 * error
    assert np.std(found) == pytest.approx(np.std(wanted), rel=0.3)


def test_frozen_parameters_have_no_gradient() -> None:
    model, batch = make(), draw()
    layer = model.layers[1]
    layer.left_to_right.bias_hh_l0.requires_grad_(False)
    layer.right_to_left.weight_ih_l0.requires_grad_(False)
    model.masked_loss(batch, seed=0, dtype=torch.float32).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == ["layers.1.left_to_right.bias_hh_l0", "layers.1.right_to_left.weight_ih_l0"]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [
    "token_embedding.weight", "layers.0.left_to_right.weight_ih_l0", "layers.1.right_to_left.weight_hh_l0",
    "layers.2.left_to_right.bias_ih_l0", "layers.0.right_to_left.bias_hh_l0", "decoder.bias",
])  # fmt: skip
def test_what_is_not_finite_shows_in_the_loss_as_in_the_modules(
    name: str, value: float, dtype: torch.dtype
) -> None:
    model, batch = make(), draw()
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[:] = value
    # Gates with infinite biases are open or shut, which is no error.
    expected = model.plain_loss(batch, dtype=torch.float32).item()
    loss = fused.step(model, batch, seed=0, dtype=dtype).differentiable().item()
    assert math.isfinite(loss) == math.isfinite(expected)
    if math.isnan(value):
        assert not math.isfinite(loss)
    if math.isfinite(expected):
        assert loss == pytest.approx(expected, rel=1e-5 if dtype == torch.float32 else 2e-2)


def test_words_and_positions_that_the_model_lacks_are_refused() -> None:
    model, batch = make(), draw()
    for field in ("ids", "targets"):
        for wrong in (-1, model.total_vocabulary):
            broken = getattr(batch, field).clone()
            broken.view(-1)[0] = wrong
            with pytest.raises(DataError, match=rf"{wrong} is none of the model's {model.total_vocabulary}"):
                model.masked_loss(Batch(**{**vars(batch), field: broken}), seed=0, dtype=torch.float32)
    model.max_length = 5
    with pytest.raises(DataError, match="but the model has 5"):
        model.masked_loss(batch, seed=0, dtype=torch.float32)


def test_gates_are_accurate_everywhere() -> None:
    x = np.concatenate([np.linspace(-100, 100, 4001), np.geomspace(1e-7, 1, 200), [0.0]]).astype(np.float32)
    exact = x.astype(np.float64)
    sigmoid = np.array([recurrent.sigmoid(v) for v in x], dtype=np.float64)
    tanh = np.array([recurrent.tanh(v) for v in x], dtype=np.float64)
    assert np.abs(sigmoid - 1 / (1 + np.exp(-exact))).max() < 2e-7
    small = exact >= -50
    assert np.abs(sigmoid * (1 + np.exp(-exact)) - 1)[small].max() < 4e-7
    assert (sigmoid[~small] == 0).all()
    assert np.abs(tanh - np.tanh(exact)).max() < 2e-7
    assert np.isnan(recurrent.sigmoid(np.float32(np.nan)))
    assert np.isnan(recurrent.tanh(np.float32(np.nan)))


def test_bfloat16_is_chosen_where_it_pays() -> None:
    device = torch.device("cpu")
    fast = torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    assert make(shape="32/1").precision(device) == fast
    assert make(shape="24/1").precision(device) == torch.float32
