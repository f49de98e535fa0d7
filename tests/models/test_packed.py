"""Sentences side by side in rows: where they stand, and that the loss and its gradient stay what they are."""

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from helpers import training_fakes
from raysweep.errors import DataError
from raysweep.languages import HMM, PCFG
from raysweep.models import EncoderConfig, gpu
from raysweep.models.batch import Batch
from raysweep.models.dropout import Dropout
from raysweep.models.encoder import Encoder
from raysweep.models.packed import Packing, Rows, pack, row_width
from raysweep.registry import algorithms
from raysweep.training import World, checkpoint_directory, pretrain
from raysweep.training import recorded as recording
from raysweep.training.config import PretrainConfig
from raysweep.training.data import batches
from raysweep.training.step import Stepper

LANGUAGE = PCFG.random(seed=3)
MASKS = ["one", 0.4]


def first_fit_decreasing(lengths: list[int], width: int) -> list[list[int]]:
    """Return the lengths in each row, one sentence after the other put into the first row that has room."""
    rows: list[list[int]] = []
    for length in sorted(lengths, reverse=True):
        for row in rows:
            if sum(row) + length <= width:
                row.append(length)
                break
        else:
            rows.append([length])
    return rows


@pytest.mark.parametrize(
    ("low", "high", "count", "width"),
    [
        (1, 16, 300, 128),
        (2, 3, 1, 128),
        (1, 128, 200, 128),
        (100, 128, 9, 128),
        (5, 5, 77, 16),
        (1, 9, 60, 9),
    ],
)
def test_packing_is_first_fit_decreasing(low: int, high: int, count: int, width: int) -> None:
    lengths = np.random.default_rng(count).integers(low, high + 1, count)
    found = pack(lengths, width)
    rows: list[list[int]] = [[] for _ in range(found.filled)]
    taken = np.zeros(found.rows * width, dtype=int)
    for start, length in zip(found.starts, lengths, strict=True):
        assert start % width + length <= width
        taken[start : start + length] += 1
        rows[start // width].append(int(length))
    assert taken.max() == 1
    assert [Counter(row) for row in rows] == [
        Counter(row) for row in first_fit_decreasing(lengths.tolist(), width)
    ]
    assert found.words == lengths.sum() == taken.sum()
    assert found.waste == pytest.approx(1 - taken.mean())


def test_few_numbers_of_rows_occur() -> None:
    rows = [Packing(np.array([0]), 128, filled, 1).rows for filled in range(1, 4097)]
    assert all(filled <= found <= filled * 17 / 16 for filled, found in enumerate(rows, start=1))
    assert rows == sorted(rows)
    assert len(set(rows[2048:])) == 16


def test_a_batch_of_the_paper_wastes_little() -> None:
    config = PretrainConfig(steps=1, batch_size=4096)
    batch = next(batches(LANGUAGE, config, seed=0, first=1, last=1))
    # Long rows are filled to the last place but for a few.
    wide = pack(batch.lengths.numpy(), 128)
    assert wide.filled * 128 - wide.words < 128
    found = pack(batch.lengths.numpy(), row_width(LANGUAGE.max_length))
    # Short ones are filled but for a place or two; the rest of the waste is the rounding of their number.
    assert found.filled * found.width < 1.02 * found.words
    assert found.waste < 1 / 16


def make(dropout: float = 0.0, language: Any = LANGUAGE, **options: Any) -> Encoder:
    options = {"shape": "16/2/2/24", **options}
    model = EncoderConfig(dropout=dropout, **options).build(language, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Weights large enough that attention, GELU and LayerNorm are far from linear, and no bias is zero.
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=generator) * 0.2)
    return model.train()


def draw(mask: Any = "one", size: int = 33, language: Any = LANGUAGE) -> Batch:
    config = PretrainConfig(steps=1, batch_size=size, mask=mask)
    return next(batches(language, config, seed=5, first=1, last=1))


def gradients(model: Encoder, loss: Tensor) -> tuple[float, dict[str, Tensor]]:
    names, parameters = zip(*model.named_parameters(), strict=True)
    return loss.item(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


def assert_equal_to_padded(model: Encoder, batch: Batch) -> dict[str, Tensor]:
    """Compare with the path of every model, one row a sentence, in float64; return its gradients."""
    model.double()
    loss, wanted = gradients(model, model.plain_loss(batch, dtype=torch.float32))
    again, found = gradients(model, model.packed_loss(batch, seed=0, dtype=torch.float32))
    assert again == pytest.approx(loss, rel=1e-12)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-10, msg=name)
    return wanted


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("shape", ["16/2/2/24", "12/1/1/20"])
def test_loss_and_gradients_are_those_of_padded_rows(shape: str, norm: str, mask: Any) -> None:
    batch = draw(mask)
    assert len(batch.lengths.unique()) > 5
    wanted = assert_equal_to_padded(make(shape=shape, norm=norm), batch)
    # A key's bias moves all scores of a query alike, so its gradient is nothing but rounding.
    assert all(g.abs().max() > 1e-4 for name, g in wanted.items() if not name.endswith("key.bias"))


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("longest", [1, 9, 130])
def test_sentences_of_every_length(longest: int, several: bool) -> None:
    language = training_fakes.Walk(vocabulary_size=9, max_length=longest)
    lengths = torch.arange(1, longest + 1)
    ids = torch.randint(0, 9, (longest, longest), generator=torch.Generator().manual_seed(0))
    ids = ids.masked_fill(torch.arange(longest) >= lengths[:, None], language.pad_id)
    # The last word of each, or the last and the middle one, which may be the same.
    masked = torch.stack([lengths - 1, lengths // 2], dim=1)[:, : 1 + several]
    ids.scatter_(1, masked, language.mask_id)
    index = (masked + torch.arange(longest)[:, None] * longest).unique() if several else masked[:, 0]
    batch = Batch(
        ids=ids,
        index=index,
        targets=torch.arange(len(index)) % 9,
        lengths=lengths,
        count=len(index),
        rows=range(longest),
        single=not several,
    )
    assert_equal_to_padded(make(language=language, shape="8/2/2/12"), batch)


def test_parts_and_halves_of_a_batch() -> None:
    model = make().double()
    for mask in MASKS:
        batch = draw(mask)
        whole = model.packed_loss(batch, seed=0, dtype=torch.float32)
        parts = [model.packed_loss(part, seed=0, dtype=torch.float32) for part in batch.split(10)]
        assert len(parts) == 4
        torch.testing.assert_close(torch.stack(parts).sum(), whole, rtol=1e-12, atol=0)
    arguments = training_fakes.arguments(model={"dropout": 0.0}, algorithm={"kind": "sam"})
    stepper = Stepper(
        arguments["model"].build(arguments["language"], seed=0), arguments["algorithm"],
        language=arguments["language"], pretrain=arguments["pretrain"], seed=0, world=World(),
        device=torch.device("cpu"),
    )  # fmt: skip
    batch = next(batches(arguments["language"], arguments["pretrain"], seed=0, first=1, last=1))
    for half in (0, 1):
        assert_equal_to_padded(stepper.model, stepper._half(batch, half))


def test_recomputed_activations_are_the_same() -> None:
    model, batch = make(0.3), draw(0.4)
    found = []
    for model.checkpointing in (False, True):
        torch.manual_seed(0)
        found.append(gradients(model, model.packed_loss(batch, seed=0, dtype=torch.float32)))
    assert found[0][0] == found[1][0]
    assert all(torch.equal(found[0][1][name], found[1][1][name]) for name in found[0][1])


def test_dropout_is_that_of_padded_rows_in_the_mean() -> None:
    model, batch = make(0.3, shape="8/2/1/12"), draw(size=4)
    found, wanted = [], []
    for seed in range(100):
        torch.manual_seed(seed)
        found.append(model.packed_loss(batch, seed=0, dtype=torch.float32).item())
        wanted.append(model.plain_loss(batch, dtype=torch.float32).item())
    error = math.sqrt((np.var(found) + np.var(wanted)) / 100)
    assert abs(np.mean(found) - np.mean(wanted)) < 4 * error
    assert np.std(found) == pytest.approx(np.std(wanted), rel=0.3)
    model.eval()
    assert model.packed_loss(batch, seed=0, dtype=torch.float32).item() == pytest.approx(
        model.plain_loss(batch, dtype=torch.float32).item(), rel=1e-5
    )


def test_attention_weights_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make(0.3), draw()
    # Nothing else is.
    monkeypatch.setattr(Dropout, "forward", lambda module, x: x)
    losses = set()
    for seed in range(3):
        torch.manual_seed(seed)
        losses.add(model.packed_loss(batch, seed=0, dtype=torch.float32).item())
    assert len(losses) == 3


def test_sentences_that_are_too_long_are_refused() -> None:
    model, batch = make(), draw()
    model.max_length = 5
    with pytest.raises(DataError, match="but the model has 5; build it for a language"):
        model.packed_loss(batch, seed=0, dtype=torch.float32)


def test_a_gpu_packs_and_a_processor_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = make().double(), draw()
    asked: list[Batch] = []
    monkeypatch.setattr(
        Encoder, "packed_loss", lambda model, words, seed, dtype: asked.append(words) or torch.zeros(())
    )
    assert not model.packs
    model.masked_loss(batch, seed=0, dtype=torch.float32)
    assert asked == []
    monkeypatch.setattr(Encoder, "packs", True)
    model.masked_loss(batch, seed=0, dtype=torch.float32)
    assert asked == [batch]


def on(device: str, batch: Batch) -> Batch:
    moved = {name: getattr(batch, name).to(device) for name in ("ids", "index", "targets")}
    return Batch(**{**vars(batch), **moved})


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_gradients_on_a_gpu_are_those_of_padded_rows(norm: str, mask: Any) -> None:
    assert_gradients_on("cuda", norm, mask)


def assert_gradients_on(device: str, norm: str, mask: Any) -> None:
    """Compare packed rows in float32 on `device` with padded ones in float64 on the processor."""
    model, batch = make(norm=norm, shape="64/2/2/96"), draw(mask, size=300)
    found = model.to(device).masked_loss(on(device, batch), seed=0, dtype=torch.float32)
    loss, slopes = gradients(model, found)
    model.to("cpu").double()
    wanted, expected = gradients(model, model.plain_loss(batch, dtype=torch.float32))
    assert loss == pytest.approx(wanted, rel=1e-5)
    whole = math.sqrt(sum(float(g.square().sum()) for g in expected.values()))
    for name, gradient in expected.items():
        scale = whole if name.endswith("key.bias") else float(gradient.norm())
        assert float((slopes[name].cpu().double() - gradient).norm()) <= 1e-4 * scale, name


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape", ["64/2/2/96", "128/1/2/512", "192/3/1/768"]
)  # the second has the largest heads
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_compiled_passes_round_as_little_as_the_modules(
    norm: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare gradients in bfloat16, by the kernels and by the modules, with those in float64."""
    model, batch = make(norm=norm, shape=shape), draw(0.4, size=300)
    wanted, expected = gradients(model.double(), model.plain_loss(batch, dtype=torch.float32))
    model.float().to("cuda")
    found = {}
    for name in ("kernels", "modules"):
        if name == "modules":
            monkeypatch.setattr(gpu, "available", lambda: False)
        loss, slopes = gradients(model, model.masked_loss(on("cuda", batch), seed=0, dtype=torch.bfloat16))
        assert loss == pytest.approx(wanted, rel=1e-2)
        apart = {p: float((slopes[p].cpu().double() - g).norm()) for p, g in expected.items()}
        found[name] = {p: apart[p] / float(g.norm()) for p, g in expected.items() if "key.bias" not in p}
    for name, error in found["kernels"].items():
        assert error <= 1.5 * found["modules"][name] + 1e-3, name


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_wide_rows_have_kernels_too(dropout: float) -> None:
    language = PCFG.random(seed=3, max_length=40)
    model, batch = make(dropout, language, shape="64/1/2/96").to("cuda"), draw(0.4, 200, language)
    assert model._rows(batch).width == 128
    losses = [
        model.masked_loss(on("cuda", batch), seed=0, dtype=dtype).item()
        for dtype in (torch.bfloat16, torch.bfloat16, torch.float32)
    ]
    assert losses[0] == losses[1]
    assert losses[0] == pytest.approx(losses[2], rel=0.1 if dropout else 0.01)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("language", [PCFG.random(seed=3), HMM.random(seed=2)], ids=["pcfg", "hmm"])
@pytest.mark.parametrize("replace", ["mask", "bert"])
def test_a_gpu_draws_what_a_processor_draws(language: Any, mask: Any, replace: Any) -> None:
    config = PretrainConfig(steps=30, batch_size=700, mask=mask, sentences=5000, replace=replace)
    found, wanted = (
        list(batches(language, config, seed=4, first=3, last=30, device=device)) for device in ("cuda", "cpu")
    )
    for mine, other in zip(found, wanted, strict=True):
        assert mine.ids.is_cuda
        assert mine.lengths.device.type == "cpu"
        for name in ("ids", "index", "targets", "lengths"):
            assert torch.equal(getattr(mine, name).cpu(), getattr(other, name)), name
        assert (mine.count, mine.rows, mine.single) == (other.count, other.rows, other.single)


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
def test_nothing_waits_for_the_gpu(mask: Any) -> None:
    model, batch = make(0.1).to("cuda"), on("cuda", draw(mask, size=300))
    for mode in ("default", "error"):
        # What is set up at first use may wait.
        torch.cuda.set_sync_debug_mode(mode)
        try:
            model.masked_loss(batch, seed=0, dtype=torch.bfloat16).backward()
        finally:
            torch.cuda.set_sync_debug_mode("default")


def train(device: str, precision: str, steps: int = 20, **algorithm: Any) -> tuple[Stepper, list[float]]:
    """Train a small encoder without dropout; return the loss of every step."""
    config = PretrainConfig(steps=steps, batch_size=256, mask=0.15, precision=precision)
    where = torch.device(device)
    stepper = Stepper(
        EncoderConfig(shape="32/2/2/64", dropout=0.0).build(LANGUAGE, seed=0),
        algorithms.decode({"kind": "adamw", "warmup_steps": 10, **algorithm}),
        language=LANGUAGE,
        pretrain=config,
        seed=0,
        world=World(),
        device=where,
    )
    drawn = batches(LANGUAGE, config, seed=0, first=1, last=steps, device=where)
    losses = [stepper.update(batch, step) for step, batch in enumerate(drawn, start=1)]
    return stepper, torch.stack(losses).tolist()


ALGORITHMS = [{}, {"kind": "sgd", "lr": 0.1, "momentum": 0.9}, {"kind": "sam"}, {"kind": "muon"}]


@pytest.mark.gpu
@pytest.mark.parametrize("options", ALGORITHMS, ids=lambda options: options.get("kind", "adamw"))
def test_a_gpu_trains_as_a_processor_does(options: dict[str, Any]) -> None:
    _, wanted = train("cpu", "float32", **options)
    assert wanted[0] - wanted[-1] > 0.04
    stepper, found = train("cuda", "float32", **options)
    assert stepper.model.packs
    assert all(group["fused"] for group in stepper.optimizer.param_groups if "fused" in group)
    # Muon iterates in bfloat16 whatever the precision.
    assert found == pytest.approx(wanted, abs=1e-3 if options.get("kind") == "muon" else 1e-4)
    if stepper.model.precision(torch.device("cuda")) == torch.bfloat16:
        stepper, found = train("cuda", "auto", **options)
        assert stepper.dtype == torch.bfloat16
        assert found == pytest.approx(wanted, abs=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_recorded_steps_are_plain_steps(norm: str) -> None:
    """Train with large batches, whose sums have many terms, twice with recorded steps and once without."""
    config = PretrainConfig(steps=40, batch_size=3000)
    drawn = list(batches(LANGUAGE, config, seed=0, first=1, last=40, device="cuda"))

    def trained(recorded: bool) -> tuple[list[float], list[Tensor]]:
        stepper = Stepper(
            EncoderConfig(shape="64/1/2/256", norm=norm).build(LANGUAGE, seed=0),
            algorithms.decode({"kind": "adamw", "warmup_steps": 10, "clip_norm": 1.0}),
            language=LANGUAGE,
            pretrain=config,
            seed=0,
            world=World(),
            device=torch.device("cuda"),
        )
        if not recorded:
            # A step whose parts are timed is a plain one.
            stepper.mark = lambda part: None
        losses = [stepper.update(batch, step).item() for step, batch in enumerate(drawn, start=1)]
        assert stepper._recorded is not None
        assert bool(stepper._recorded._recorded) == recorded
        return losses, [p.detach().clone() for p in stepper.model.parameters()]

    losses, weights = trained(recorded=True)
    assert losses[0] - losses[-1] > 0.1
    for recorded in (True, False):
        again, others = trained(recorded)
        assert again == losses
        assert all(torch.equal(a, b) for a, b in zip(weights, others, strict=True))


@pytest.mark.gpu
def test_words_are_drawn_while_steps_are_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread draws a chunk a step, so it waits for the GPU whenever a step is recorded."""
    arguments = training_fakes.arguments(
        model={"shape": "32/2/2/64"},
        pretrain={
            "steps": 60, "milestones": [60], "checkpoint_every": None, "batch_size": 512, "mask": "one",
        },
    )  # fmt: skip
    made: list[Rows] = []

    class Counted(recording._Recorded):
        def __init__(self, rows: Rows, *rest: Any) -> None:
            made.append(rows)
            super().__init__(rows, *rest)

    monkeypatch.setattr(recording, "_Recorded", Counted)
    found = []
    for name, drawn_at_once in (("many", 16_384), ("few", 1)):
        monkeypatch.setattr(type(arguments["language"]), "drawn_at_once", drawn_at_once)
        run = training_fakes.FolderJournal(tmp_path / name)
        assert pretrain(journal=run, device="cuda", **arguments) == 60
        found.append((checkpoint_directory(run.directory, 60) / "model.safetensors").read_bytes())
    assert found[0] == found[1]
    assert len(made) >= 2


@pytest.mark.gpu
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("options", ALGORITHMS, ids=lambda options: options.get("kind", "adamw"))
def test_a_run_resumed_on_a_gpu_is_one_never_interrupted(
    options: dict[str, Any], mask: Any, tmp_path: Path
) -> None:
    assert_resumes_bitwise("cuda", options, mask, tmp_path)


def test_a_resumed_run_on_packed_rows_is_one_never_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Encoder, "fused", False)
    monkeypatch.setattr(Encoder, "packs", True)
    monkeypatch.setattr(Encoder, "wide", None)
    assert_resumes_bitwise("cpu", {}, "one", tmp_path)


def assert_resumes_bitwise(device: str, options: dict[str, Any], mask: Any, tmp_path: Path) -> None:
    """Train twice to the end, once with a stop on the way; with dropout, and between two milestones."""
    arguments = training_fakes.arguments(
        model={"shape": "32/2/2/64"},
        algorithm={**options, "ema": 0.9},
        pretrain={"steps": 20, "milestones": [5, 20], "batch_size": 128, "mask": mask},
    )
    whole, parts = (training_fakes.FolderJournal(tmp_path / name) for name in ("whole", "parts"))
    assert pretrain(journal=whole, device=device, **arguments) == 20
    looks: list[None] = []

    def stop() -> bool:
        looks.append(None)
        return len(looks) == 11

    assert pretrain(journal=parts, device=device, stop=stop, **arguments) == 11
    assert pretrain(journal=parts, device=device, **arguments) == 20
    for step in (5, 20):
        for name in ("model.safetensors", "trained.safetensors", "optimizer.safetensors"):
            found, wanted = (
                (checkpoint_directory(run.directory, step) / name).read_bytes() for run in (whole, parts)
            )
            assert found == wanted, (step, name)
