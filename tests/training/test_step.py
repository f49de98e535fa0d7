"""Halves of a batch, what an algorithm adds to the loss, and averaged weights in a checkpoint."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from helpers import training_fakes as fakes
from raysweep.algorithms import AdamWConfig
from raysweep.algorithms.base import ExtraLoss
from raysweep.errors import CheckpointError, ConfigError
from raysweep.models import MaskedLM
from raysweep.models.batch import Batch
from raysweep.training import World, checkpoint, checkpoint_directory, load_model, pretrain
from raysweep.training.data import batches
from raysweep.training.step import Stepper

CPU = torch.device("cpu")


ALONE = World()


def make(world: World = ALONE, config: Any = None, **options: Any) -> Stepper:
    arguments = fakes.arguments(model={"dropout": 0.0}, **options)
    language = arguments["language"]
    return Stepper(
        arguments["model"].build(language, seed=0),
        config or arguments["algorithm"],
        language=language,
        pretrain=arguments["pretrain"],
        seed=0,
        world=world,
        device=CPU,
    )


def words(batch: Batch) -> list[tuple[tuple[int, ...], int, int]]:
    """Return (sentence as seen, masked position, hidden word) of every masked word."""
    width = batch.ids.shape[1]
    found = []
    for k, (at, target) in enumerate(zip(batch.index.tolist(), batch.targets.tolist(), strict=True)):
        row, position = (k, at) if batch.single else divmod(at, width)
        found.append((tuple(batch.ids[row].tolist()), position, target))
    return found


@pytest.mark.parametrize("mask", ["one", 0.4])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_halves_share_out_a_batch_whoever_holds_it(
    size: int, mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Workers that start at odd sentences as well as at even ones.
    options = {"pretrain": {"mask": mask, "batch_size": 15}, "algorithm": {"kind": "sam"}}
    arguments = fakes.arguments(**options)
    halves: list[list[Any]] = [[], []]
    counts: list[set[int]] = [set(), set()]
    totals = {0: 0, 1: 0}
    if size > 1:
        # The other workers' counts are not at hand in one process.
        monkeypatch.setattr(torch.distributed, "all_reduce", lambda count: None)
    for rank in range(size):
        stepper = make(World(rank, size), **options)
        batch = next(
            batches(
                arguments["language"], arguments["pretrain"], seed=0, first=3, last=3, world=World(rank, size)
            )
        )
        for half in (0, 1):
            part = stepper._half(batch, half)
            halves[half] += words(part)
            counts[half].add(part.count)
            totals[half] += part.count
    whole = next(batches(arguments["language"], arguments["pretrain"], seed=0, first=3, last=3))
    rows = whole.ids.tolist()
    seen = words(whole)
    owner = range(len(rows)) if mask == "one" else [int(i) // whole.ids.shape[1] for i in whole.index]
    for half in (0, 1):
        expected = [word for word, row in zip(seen, owner, strict=True) if row % 2 == half]
        assert halves[half] == expected
        if mask == "one" or size == 1:
            assert counts[half] == {len(expected)}
        else:
            assert totals[half] == len(expected)


def test_every_worker_needs_a_sentence_of_either_half() -> None:
    with pytest.raises(
        ConfigError, match=r"pretrain\.batch_size: 13 sentences do not give each of 7 workers"
    ):
        make(World(0, 7), algorithm={"kind": "sam"})
    make(World(0, 7), algorithm={"kind": "sam", "ascent": "same"})


@pytest.mark.parametrize("kind", ["adamw", "sam"])
@pytest.mark.parametrize("mask", ["one", 0.4])
def test_a_batch_in_parts_gives_the_gradient_of_the_whole(mask: Any, kind: str) -> None:
    options = {"algorithm": {"kind": kind}}
    whole = make(pretrain={"mask": mask}, **options)
    parts = make(pretrain={"mask": mask, "micro_batch": 4}, **options)
    arguments = fakes.arguments(pretrain={"mask": mask}, **options)
    batch = next(batches(arguments["language"], arguments["pretrain"], seed=0, first=3, last=3))
    for half in (None, 0, 1):
        losses = [stepper._backward(batch, 3, half) for stepper in (whole, parts)]
        torch.testing.assert_close(*losses)
        for one, other in zip(whole.model.parameters(), parts.model.parameters(), strict=True):
            # Two gradients of None would be close as well.
            assert one.grad is not None
            torch.testing.assert_close(one.grad, other.grad)


def test_a_batch_too_large_for_the_memory_is_worked_off_in_parts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole, small = make(), make()
    arguments = fakes.arguments()
    given = list(batches(arguments["language"], arguments["pretrain"], seed=0, first=1, last=3))
    assert len(given[0].ids) == 13
    sizes: list[int] = []
    learn = type(small.model).learn

    def limited(model: MaskedLM, words: Batch, **options: Any) -> Tensor:
        if model is small.model:
            sizes.append(len(words.ids))
            # The first part still fits, so that what it added has to be dropped.
            if len(words.ids) > 4 and words.rows.start > 0:
                raise torch.OutOfMemoryError("no more")
        return learn(model, words, **options)

    monkeypatch.setattr(type(small.model), "learn", limited)
    small._most = 7
    for step, batch in enumerate(given, start=1):
        torch.testing.assert_close(small.update(batch, step), whole.update(batch, step))
    assert sizes == [6, 7, 2, 3, 2, 3, 3, *[2, 3, 2, 3, 3] * 2]
    assert [r.message for r in caplog.records] == [
        "7 sentences do not fit into the memory of cpu; training goes on with 3 at a time "
        "(pretrain.micro_batch), which adds up to the same gradient"
    ]
    for one, other in zip(whole.model.parameters(), small.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("others", [torch.bfloat16, torch.float32])
def test_workers_begin_in_one_precision_with_as_many_sentences_as_fit(
    monkeypatch: pytest.MonkeyPatch, others: torch.dtype
) -> None:
    """This worker has bfloat16, and `others` is what the other one has."""
    stepper = make(World(0, 2), pretrain={"micro_batch": 3})
    stepper.dtype = stepper._masked.dtype = torch.bfloat16
    seen: list[tuple[int, torch.dtype]] = []
    loss = type(stepper.model).masked_loss

    def masked_loss(model: MaskedLM, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        seen.append((len(words.ids), dtype))
        return loss(model, words, seed=seed, dtype=dtype)

    def largest(flag: Tensor, op: Any) -> None:
        assert op == torch.distributed.ReduceOp.MAX
        flag.clamp_(min=int(others == torch.float32))

    monkeypatch.setattr(type(stepper.model), "masked_loss", masked_loss)
    monkeypatch.setattr(torch.distributed, "all_reduce", largest)
    monkeypatch.setattr("raysweep.training.step.DistributedDataParallel", lambda module: module)
    given = fakes.arguments()
    [batch] = batches(given["language"], given["pretrain"], seed=0, first=1, last=1, world=World(0, 2))
    stepper.connect(batch)
    assert len(batch.ids) == 6
    assert seen == [(3, others)]
    assert stepper.dtype == others
    assert all(p.grad is None for p in stepper.model.parameters())


class Sum(ExtraLoss):
    """Twice the sum of the decoder's bias, times the step."""

    factor = 2.0

    def forward(self, model: MaskedLM, step: int) -> Tensor:
        return self.factor * step * model.decoder.bias.sum()


class WithSum(AdamWConfig):
    def extra_loss(self, language: Any, *, seed: int, device: torch.device) -> ExtraLoss:
        return Sum()


def test_an_extra_loss_is_in_the_gradient_and_not_in_the_reported_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain, more = make(), make(config=WithSum())
    shared = make(World(0, 4), config=WithSum())
    arguments = fakes.arguments()
    batch = next(batches(arguments["language"], arguments["pretrain"], seed=0, first=3, last=3))
    losses = [stepper._backward(batch, 3, None) for stepper in (plain, more, shared)]
    assert losses[0] == losses[1] == losses[2]
    slopes = [stepper.model.decoder.bias.grad for stepper in (plain, more, shared)]
    torch.testing.assert_close(slopes[1] - slopes[0], torch.full_like(slopes[0], 6.0))
    # One of four workers adds a quarter; what it passes on is multiplied by four, for they are averaged.
    torch.testing.assert_close(slopes[2] - 4 * slopes[0], torch.full_like(slopes[0], 6.0))
    monkeypatch.setattr(Sum, "factor", float("inf"))
    assert not more._backward(batch, 3, None).isfinite()


def test_a_checkpoint_holds_the_average_and_the_weights(tmp_path: Path) -> None:
    options = fakes.arguments(
        algorithm={"ema": 0.8}, pretrain={"steps": 12, "milestones": list(range(1, 13))}
    )
    journal = fakes.FolderJournal(tmp_path / "averaged")
    pretrain(journal=journal, **options)
    plain = fakes.FolderJournal(tmp_path / "plain")
    pretrain(journal=plain, **{**options, "algorithm": options["algorithm"].model_copy(update={"ema": None})})
    averaged, trained, alone = (
        [
            load_file(checkpoint_directory(run.directory, step) / f"{name}.safetensors")
            for step in range(1, 13)
        ]
        for run, name in ((journal, "model"), (journal, "trained"), (plain, "model"))
    )
    # Keeping an average does not touch the training.
    for one, other in zip(trained, alone, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
    shares = torch.tensor([0.8 ** (12 - s) for s in range(1, 13)])
    shares /= shares.sum()
    for name, value in averaged[-1].items():
        expected = sum(share * weights[name] for share, weights in zip(shares, trained, strict=True))
        torch.testing.assert_close(value, expected, rtol=0, atol=1e-6)
    model = load_model(checkpoint_directory(journal.directory, 12), options["model"], options["language"])
    assert torch.equal(model.decoder.weight, averaged[-1]["token_embedding.weight"])


def test_an_average_that_was_never_kept_is_not_resumed_from(tmp_path: Path) -> None:
    options = fakes.arguments(pretrain={"steps": 5, "milestones": [5]})
    journal = fakes.FolderJournal(tmp_path)
    pretrain(journal=journal, **options)
    [record] = journal.checkpoints()
    stepper = make(config=AdamWConfig(ema=0.5))
    assert stepper.average is not None
    with pytest.raises(CheckpointError, match=r"its record names no trained\.safetensors"):
        checkpoint.restore(
            checkpoint_directory(tmp_path, 5), record.files, stepper.model, stepper.optimizer,
            stepper.average.tensors,
        )  # fmt: skip
