"""The fused training path of encoders, beside its equations written out sentence by sentence in float64."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from helpers import fused_oracle
from helpers.fused_oracle import LANGUAGE, SMALL, Oracle, assert_close, distance, draw
from raysweep.errors import DataError
from raysweep.languages import PCFG
from raysweep.models import LSTM, EncoderConfig, LSTMConfig, MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.encoder import Encoder
from raysweep.models.fused import encoder as fused
from raysweep.models.fused import kernels, sublayer
from raysweep.models.precision import multiplies_bfloat16

PRECISIONS = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def call_by_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the passes in one call, which test_whole.py compares with these."""
    monkeypatch.setattr(fused.EncoderWeights, "whole_for", lambda self, chunk: None)


def make(dropout: float = 0.0, language: PCFG = LANGUAGE, **options: Any) -> Encoder:
    options = {"shape": "32/2/3/48", **options}
    model = EncoderConfig(dropout=dropout, **options).build(language, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Weights large enough that attention, GELU and LayerNorm are far from linear, and no bias is zero.
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    return model.train()


class EncoderOracle(Oracle):
    """Logits of one sentence at a time, by the equations of `raysweep.models.encoder`."""

    def __init__(self, model: Encoder, seed: int) -> None:
        super().__init__(model, seed)
        self.model = model

    def norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, x.shape[-1:], self.p[f"{name}.weight"], self.p[f"{name}.bias"], 1e-5)

    def logits(self, ids: Tensor, row: int) -> Tensor:
        model, T = self.model, len(ids)
        D, H = model.width, model.shape.heads
        places = [row * model.max_length + t for t in range(T)]
        x = self.norm(self.p["token_embedding.weight"][ids] + self.p["position_embedding.weight"][:T],
                      "embedding_norm")  # fmt: skip
        x = self.dropped(x, 0, places, -(-D // 4))
        for k in range(model.shape.layers):
            name = f"layers.{k}"
            y = self.norm(x, f"{name}.attention_norm") if model.norm == "pre" else x
            q, key, v = (self.linear(y, f"{name}.{part}") for part in ("query", "key", "value"))
            heads = []
            for h in range(H):
                part = slice(h * D // H, (h + 1) * D // H)
                weights = (q[:, part] @ key[:, part].T / math.sqrt(D // H)).softmax(dim=-1)
                weights = self.dropped(
                    weights, 1 + 3 * k, [n * H + h for n in places], (model.max_length + 3) // 4
                )
                heads.append(weights @ v[:, part])
            mixed = self.linear(torch.cat(heads, dim=1), f"{name}.output")
            x = x + self.dropped(mixed, 2 + 3 * k, places, -(-D // 4))
            if model.norm == "post":
                x = self.norm(x, f"{name}.attention_norm")
            y = self.norm(x, f"{name}.mlp_norm") if model.norm == "pre" else x
            m = self.linear(F.gelu(self.linear(y, f"{name}.up")), f"{name}.down")
            x = x + self.dropped(m, 3 + 3 * k, places, -(-D // 4))
            if model.norm == "post":
                x = self.norm(x, f"{name}.mlp_norm")
        if model.norm == "pre":
            x = self.norm(x, "final_norm")
        t = self.norm(F.gelu(self.linear(x, "head_dense")), "head_norm")
        return t @ self.p["token_embedding.weight"].T + self.p["decoder.bias"]


def ours(model: Encoder, batch: Batch, seed: int, dtype: torch.dtype) -> tuple[float, dict[str, Tensor]]:
    return fused_oracle.ours(fused, model, batch, seed, dtype)


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_loss_and_gradients_are_those_of_the_equations(
    norm: str, mask: Any, dropout: float, dtype: torch.dtype
) -> None:
    model, batch = make(dropout, norm=norm), draw(mask)
    loss, gradients = ours(model, batch, 7, dtype)
    expected, wanted = EncoderOracle(model, 7).gradients(batch)
    low = dtype == torch.bfloat16
    assert loss == pytest.approx(expected, rel=2e-2 if low else 1e-5)
    assert_close(gradients, wanted, 1e-1 if low else 2e-5)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize(
    ("shape", "norm"), [("16/2/2/32", "pre"), ("16/4/2/32", "post"), ("24/1/1/48", "pre")]
)
@pytest.mark.parametrize("dtype", PRECISIONS)
def test_keys_and_values_change_nothing(
    dtype: torch.dtype, shape: str, norm: str, mask: Any, dropout: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever way the last layer attends, loss and gradients are the same up to rounding."""
    model, batch = make(dropout, shape=shape, norm=norm), draw(mask)
    attend, found = sublayer.Site.attend, []
    for way in (sublayer.Attention, sublayer.Gathering):

        def last(site: sublayer.Site, y: Any, way: Any = way) -> Any:
            return way(site, y, y[site.chunk.masked]) if site.some else attend(site, y)

        monkeypatch.setattr(sublayer.Site, "attend", last)
        found.append(ours(model, batch, 7, dtype))
    (loss, gradients), (other, others) = found
    low = dtype == torch.bfloat16
    assert loss == pytest.approx(other, rel=1e-2 if low else 1e-6)
    assert_close(gradients, others, 1e-1 if low else 2e-5)


@pytest.mark.parametrize("dtype", PRECISIONS)
def test_chunks_without_a_masked_word_add_nothing(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make(0.2), draw(0.3)
    kept = batch.index // batch.ids.shape[1] % 3 == 0
    some = replace(batch, index=batch.index[kept], targets=batch.targets[kept])
    expected, wanted = EncoderOracle(model, 7).gradients(some)
    low = dtype == torch.bfloat16
    for words in (10_000, 1):
        monkeypatch.setattr(fused, "CHUNK", words)
        loss, gradients = ours(model, some, 7, dtype)
        assert loss == pytest.approx(expected, rel=2e-2 if low else 1e-5)
        assert_close(gradients, wanted, 1e-1 if low else 2e-5)


@pytest.mark.parametrize(("mask", "way"), [("one", "Gathering"), (0.9, "Attention")])
def test_few_words_ask_without_keys_and_values(mask: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    used = []
    for name in ("Attention", "Gathering"):
        made = getattr(sublayer, name)
        monkeypatch.setattr(sublayer, name, lambda *a, made=made, name=name: used.append(name) or made(*a))
    ours(make(shape="16/2/1/32"), draw(mask), 7, torch.float32)
    assert set(used) == {way}


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("mask", ["one", 0.4, 0.9])
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", ["16/2/1/32", "20/2/2/32"])
def test_equal_words_in_equal_places_enter_once(
    shape: str, norm: str, mask: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, batch = make(language=SMALL, shape=shape, norm=norm), draw(mask, size=120, language=SMALL)
    words = model.total_vocabulary * int(batch.lengths.max())
    assert 2 * words <= batch.lengths.sum()
    embedded, embed = [], kernels.embed
    monkeypatch.setattr(kernels, "embed", lambda *a: (embedded.append(len(a[0])), embed(*a)))
    loss, gradients = ours(model, batch, 7, dtype)
    assert embedded == [words]
    expected, wanted = EncoderOracle(model, 7).gradients(batch)
    low = dtype == torch.bfloat16
    assert loss == pytest.approx(expected, rel=2e-2 if low else 1e-5)
    assert_close(gradients, wanted, 1e-1 if low else 2e-5)


@pytest.mark.parametrize("options", [
    {"shape": "16/1/1/32"}, {"shape": "10/1/2/14", "norm": "post"}, {"shape": "24/4/2/40"},
    {"shape": "16/1/1/32", "vocabulary": "faithful"}, {"shape": "16/2/2/32", "layer_norm_eps": 1e-5},
])  # fmt: skip
def test_shapes_that_fill_no_vector(options: dict[str, Any]) -> None:
    model, batch = make(0.1, **options), draw(size=9)
    loss, gradients = ours(model, batch, 7, torch.float32)
    expected, wanted = EncoderOracle(model, 7).gradients(batch)
    assert loss == pytest.approx(expected, rel=1e-5)
    assert_close(gradients, wanted, 5e-5)


@pytest.mark.parametrize("mask", ["one", 0.4])
def test_it_computes_what_the_module_does(mask: Any) -> None:
    model, batch = make(), draw(mask)
    assert model.masked_loss(batch, seed=0, dtype=torch.float32).grad_fn.name() == "_LossBackward"
    logits = model(batch.ids, batch.index) if batch.single else model.logits_at(batch.ids, batch.index)
    wanted = F.cross_entropy(logits, batch.targets, reduction="sum") / batch.count
    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(wanted, list(parameters.values()))
    loss, found = ours(model, batch, 0, torch.float32)
    assert loss == pytest.approx(wanted.item(), rel=1e-6)
    assert_close(found, dict(zip(parameters, gradients, strict=True)), 1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_bfloat16_rounds_about_as_autocast_does(norm: str) -> None:
    model, batch = make(norm=norm), draw(size=100)
    parameters = dict(model.named_parameters())
    loss = model.plain_loss(batch, dtype=torch.bfloat16)
    autocast = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))
    _, wanted = ours(model, batch, 0, torch.float32)
    _, found = ours(model, batch, 0, torch.bfloat16)
    assert distance(found, wanted) < 1.25 * distance(autocast, wanted)


def test_chunks_and_parts_add_up_with_dropout(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make(0.2), draw(0.3)
    loss, gradients = ours(model, batch, 7, torch.float32)
    for words in (1, 40, 100):
        monkeypatch.setattr(fused, "CHUNK", words)
        again, found = ours(model, batch, 7, torch.float32)
        assert again == pytest.approx(loss, rel=1e-6)
        assert_close(found, gradients, 1e-5)
    parts = [ours(model, part, 7, torch.float32) for part in batch.split(7)]
    assert len(parts) == 5
    assert sum(part for part, _ in parts) == pytest.approx(loss, rel=1e-6)
    assert_close({name: sum(g[name] for _, g in parts) for name in gradients}, gradients, 1e-5)


@pytest.mark.parametrize("kind", ["encoder", "lstm"])
def test_threads_share_the_chunks(kind: str) -> None:
    model = make(0.2) if kind == "encoder" else LSTMConfig(shape="16/2").build(LANGUAGE, seed=0).train()
    batch = draw(0.3)
    before = torch.get_num_threads()

    def gradients() -> tuple[float, dict[str, Tensor]]:
        loss = model.masked_loss(batch, seed=7, dtype=torch.float32)
        names, parameters = zip(*model.named_parameters(), strict=True)
        return loss.item(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))

    try:
        torch.set_num_threads(1)
        loss, wanted = gradients()
        torch.set_num_threads(3)
        again, found = gradients()
        twice, same = gradients()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert again == pytest.approx(loss, rel=1e-6)
    assert_close(found, wanted, 1e-5)
    # The same number of threads gives the same bits.
    assert twice == again
    assert all(torch.equal(same[name], gradient) for name, gradient in found.items())


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
    wanted = [F.cross_entropy(model(batch.ids, batch.index), batch.targets).item() for _ in range(200)]
    error = math.sqrt((np.var(found) + np.var(wanted)) / 200)
    assert abs(np.mean(found) - np.mean(wanted)) < 4 * error
    assert np.std(found) == pytest.approx(np.std(wanted), rel=0.3)


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_every_layernorm_has_its_own_epsilon(norm: str) -> None:
    """As in an enlarged model, where that of the embedding is another."""
    model, batch = make(norm=norm), draw(0.4)
    norms = [module for module in model.modules() if isinstance(module, torch.nn.LayerNorm)]
    for k, module in enumerate(norms, start=1):
        module.eps = 0.3 * k
    parameters = dict(model.named_parameters())
    expected = model.plain_loss(batch, dtype=torch.float32)
    wanted = dict(zip(parameters, torch.autograd.grad(expected, list(parameters.values())), strict=True))
    loss, found = ours(model, batch, 0, torch.float32)
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    assert_close(found, wanted, 1e-5)


@pytest.mark.parametrize("kind", [Encoder, LSTM])
def test_what_a_subclass_computes_is_what_is_trained(kind: type[MaskedLM]) -> None:
    model = make() if kind is Encoder else LSTMConfig(shape="16/2", dropout=0.0).build(LANGUAGE, seed=0)
    batch = draw()
    before = model.masked_loss(batch, seed=0, dtype=torch.float32).item()
    # Another temperature, the weights being the same.
    model.__class__ = type("Other", (kind,), {"head": lambda model, x: 3.0 * kind.head(model, x)})
    wanted = F.cross_entropy(model(batch.ids, batch.index), batch.targets).item()
    assert model.masked_loss(batch, seed=0, dtype=torch.float32).item() == pytest.approx(wanted, rel=1e-6)
    assert wanted != pytest.approx(before, rel=1e-3)


def test_gradients_are_given_out_once() -> None:
    model, batch = make(), draw()
    loss = model.masked_loss(batch, seed=0, dtype=torch.float32)
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="compute the loss again"):
        loss.backward()


def test_frozen_parameters_have_no_gradient() -> None:
    model, batch = make(), draw()
    model.position_embedding.weight.requires_grad_(False)
    model.layers[1].key.requires_grad_(False)
    model.masked_loss(batch, seed=0, dtype=torch.float32).backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    assert without == ["position_embedding.weight", "layers.1.key.weight", "layers.1.key.bias"]


@pytest.mark.parametrize("dtype", PRECISIONS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", [
    "token_embedding.weight", "layers.0.query.weight", "layers.1.key.bias", "layers.2.value.weight",
    "layers.0.up.bias", "layers.1.down.weight", "embedding_norm.weight", "final_norm.bias", "decoder.bias",
])  # fmt: skip
def test_what_is_not_finite_shows_in_the_loss(name: str, value: float, dtype: torch.dtype) -> None:
    model, batch = make(), draw()
    with torch.no_grad():
        dict(model.named_parameters())[name].view(-1)[:] = value
    assert not math.isfinite(fused.step(model, batch, seed=0, dtype=dtype).differentiable().item())


@pytest.mark.parametrize("wrong", ["behind its sentence", "twice", "of no sentence"])
def test_masked_words_that_are_not_there_are_refused(wrong: str) -> None:
    batch, model = draw(0.4), make()
    index = batch.index.clone()
    index[0] = {
        "behind its sentence": int(batch.lengths[0]),
        "twice": int(index[1]),
        "of no sentence": batch.ids.numel(),
    }[wrong]
    with pytest.raises(DataError, match=rf"1 of {len(index)} masked words stand behind a sentence, or twice"):
        ours(model, replace(batch, index=index), 0, torch.float32)


def test_words_and_positions_that_the_model_lacks_are_refused() -> None:
    model, batch = make(), draw()
    for field in ("ids", "targets"):
        for wrong in (-1, model.total_vocabulary):
            broken = getattr(batch, field).clone()
            broken.view(-1)[0] = wrong
            with pytest.raises(DataError, match=rf"{wrong} is none of the model's {model.total_vocabulary}"):
                model.masked_loss(Batch(**{**vars(batch), field: broken}), seed=0, dtype=torch.float32)
    long = make()
    long.max_length = 5
    with pytest.raises(DataError, match="but the model has 5"):
        long.masked_loss(batch, seed=0, dtype=torch.float32)


@pytest.mark.parametrize("pairs", [True, False])
def test_bfloat16_is_chosen_where_it_pays(pairs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = torch.device("cpu")
    monkeypatch.setattr("raysweep.models.base.multiplies_in_vectors", lambda: pairs)
    half = torch.bfloat16 if multiplies_bfloat16(device) else torch.float32
    assert make(shape="64/2/1/128").precision(device) == half
    assert make(shape="32/2/1/128").precision(device) == (half if pairs else torch.float32)
    assert make(shape="16/2/1/64").precision(device) == torch.float32
