"""Recorded steps: when a step is recorded, what it is given, and when steps stay plain.  No GPU is needed."""

from collections.abc import Iterator
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysweep.languages import PCFG
from raysweep.models import EncoderConfig
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch, dropout_seed
from raysweep.models.packed import Rows
from raysweep.models.reproducible import reproducible
from raysweep.registry import algorithms
from raysweep.seeding import derive
from raysweep.training import recorded
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World, batches
from raysweep.training.recorded import MOST, WARM_UP, RecordedSteps
from raysweep.training.step import Stepper

LANGUAGE = PCFG.random(seed=3)
CPU, GPU = torch.device("cpu"), torch.device("cuda")


class Graphs:
    """Stands for CUDA's: a graph does its work, on the rows that it holds, when it is replayed."""

    recorded = replays = 0


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Graphs:
    found = Graphs()

    class Recorded(recorded._Recorded):
        def __init__(self, rows: Rows, work: Any, other: Any) -> None:
            assert (other is None) == (found.recorded == 0)
            found.recorded += 1
            self._inputs = Rows(*(torch.zeros_like(tensor) for tensor in rows.tensors))
            self._loss, self._graph, self._work = torch.zeros(()), self, work  # type: ignore[assignment]

        def replay(self, rows: Rows | None = None) -> Tensor:
            if rows is not None:
                return super().replay(rows)
            found.replays += 1
            return self._loss.copy_(self._work(self._inputs))

    properties = SimpleNamespace(total_memory=100)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(recorded, "_Recorded", Recorded)
    return found


class OfRows(MaskedLM):
    """A model whose loss is made of the words' numbers alone."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 2))
        self.given: list[tuple[int, float]] = []

    def encode(self, ids: Tensor) -> Tensor:
        raise AssertionError

    def head(self, hidden: Tensor) -> Tensor:
        raise AssertionError

    def initialise(self, generator: torch.Generator) -> None:
        raise AssertionError

    def rows(self, words: Batch, *, dtype: torch.dtype) -> Rows | None:
        return Rows(words.ids, words.ids, words.ids, words.index, words.targets) if words.single else None

    def rows_loss(self, rows: Rows, key: Tensor, count: Tensor) -> Tensor:
        self.given.append((int(key), float(count)))
        return (self.weight * rows.ids.sum()).sum() / count


def steps(model: OfRows) -> RecordedSteps:
    algorithm = algorithms.decode({"kind": "adamw"})
    return RecordedSteps(model, algorithm.build(model), algorithm, torch.bfloat16, CPU)


def draw(size: int = 4, mask: Any = "one") -> Iterator[Batch]:
    return batches(LANGUAGE, PretrainConfig(steps=9, batch_size=size, mask=mask), seed=0, first=1, last=9)


def test_a_shape_is_recorded_after_some_plain_steps(graphs: Graphs) -> None:
    model = OfRows()
    made = steps(model)
    drawn = list(draw())
    for number, batch in enumerate(drawn, start=1):
        before = model.weight.detach().clone()
        loss = made.update(batch, seed=number)
        assert loss == (before * batch.ids.sum()).sum() / 4
        assert not torch.equal(model.weight, before)
        assert model.weight.grad is None
        assert graphs.replays == max(0, number - WARM_UP)
    assert model.given == [(dropout_seed(batch, n), 4.0) for n, batch in enumerate(drawn, start=1)]


def test_each_shape_has_a_graph_up_to_a_number(graphs: Graphs) -> None:
    made = steps(OfRows())
    for size in range(2, 3 + MOST):
        for batch in list(draw(size))[: WARM_UP + 1]:
            made.update(batch, seed=0)
    assert graphs.replays == MOST
    assert len(made._recorded) == MOST


def test_steps_that_take_much_memory_stay_plain(graphs: Graphs, monkeypatch: pytest.MonkeyPatch) -> None:
    made = steps(OfRows())
    taken = iter(range(0, 10_000, 21))
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: next(taken))
    for batch in draw():
        assert made.update(batch, seed=0) is not None
    assert graphs.replays == 0


def test_batches_that_are_not_made_of_rows_are_left_alone(graphs: Graphs) -> None:
    model = OfRows()
    made = steps(model)
    assert made.update(next(draw(mask=0.4)), seed=0) is None
    assert torch.equal(model.weight, torch.ones(2, 2))


def test_what_can_be_recorded() -> None:
    model = EncoderConfig(shape="8/2/1/8").build(LANGUAGE, seed=0)
    for kind, recordable in [("adamw", True), ("sgd", False), ("sam", False), ("muon", False)]:
        algorithm = algorithms.decode({"kind": kind})
        assert RecordedSteps.serve(algorithm.build(model), algorithm, GPU) == recordable, kind
    adamw = algorithms.decode({"kind": "adamw"})
    assert not RecordedSteps.serve(adamw.build(model), adamw, CPU)


def test_dropout_is_keyed_by_the_sentences_of_a_part() -> None:
    batch = next(draw())
    assert dropout_seed(batch, 3) == derive(3, 0, 1)
    parts = [*batch.split(2), batch]
    assert len({dropout_seed(part, 3) for part in parts}) == 2


class Replayed:
    """Stands for `RecordedSteps` in a stepper."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.stopped = answer, False
        self.seeds: list[int] = []

    def update(self, words: Batch, seed: int) -> Tensor | None:
        self.seeds.append(seed)
        return self.answer

    def stop(self) -> None:
        self.stopped = True


def make_stepper(**options: Any) -> Stepper:
    return Stepper(
        EncoderConfig(shape="8/2/1/8").build(LANGUAGE, seed=0),
        algorithms.decode({"kind": "adamw", "lr": 0.5, "warmup_steps": 4}),
        language=LANGUAGE,
        pretrain=PretrainConfig(steps=9, batch_size=4, **options),
        seed=7,
        world=World(),
        device=CPU,
    )


def test_a_stepper_hands_its_steps_over() -> None:
    stepper = make_stepper()
    assert stepper._recorded is None
    replayed = stepper._recorded = Replayed(torch.tensor(3.0))  # type: ignore[assignment]
    # Recorded steps read the rate from the device.
    rate = stepper.optimizer.param_groups[0]["lr"] = torch.zeros(())
    assert stepper.update(next(draw()), 2) == 3.0
    assert rate == 0.25
    assert replayed.seeds == [derive(stepper.seed, "dropout", 2)]


@pytest.mark.parametrize("reason", ["timed", "parts", "rows"])
def test_a_stepper_makes_other_steps_itself(reason: str) -> None:
    stepper = make_stepper(**({"micro_batch": 2} if reason == "parts" else {}))
    replayed = Replayed(None if reason == "rows" else torch.tensor(3.0))
    stepper._recorded = replayed  # type: ignore[assignment]
    stepper.mark = (lambda part: None) if reason == "timed" else None
    # The loss does not depend on what all keys have in common.
    moving = [p for name, p in stepper.model.named_parameters() if not name.endswith("key.bias")]
    before = [p.detach().clone() for p in moving]
    assert stepper.update(next(draw()), 1) > 4
    assert all(not torch.equal(p, q) for p, q in zip(moving, before, strict=True))
    assert len(replayed.seeds) == (reason == "rows")


def test_a_step_that_does_not_fit_ends_recording_with_nothing_done(
    graphs: Graphs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    model = OfRows()
    made = steps(model)
    drawn = list(draw())
    for batch in drawn[: WARM_UP + 2]:
        assert made.update(batch, seed=0) is not None
    before = model.weight.detach().clone()

    def short(*_: Any) -> Tensor:
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setattr(OfRows, "rows_loss", short)
    assert made.update(next(draw(size=3)), seed=0) is None
    assert torch.equal(model.weight, before)
    assert made._recorded == {}
    monkeypatch.undo()
    assert made.update(drawn[-1], seed=0) is None
    assert "does not fit into the memory of cpu; steps are not recorded" in caplog.text


def test_parts_of_a_batch_end_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    stepper = make_stepper()
    replayed = stepper._recorded = Replayed(None)  # type: ignore[assignment]
    # On a GPU, where memory runs short, steps that are not recorded go by way of `learn`.
    stepper._direct = None
    learn = stepper.model.learn

    def short(batch: Batch, **options: Any) -> Tensor:
        if len(batch.ids) > 2:
            raise torch.OutOfMemoryError("too much")
        return learn(batch, **options)

    monkeypatch.setattr(stepper.model, "learn", short)
    stepper.update(next(draw()), 1)
    assert stepper.micro_batch == 2
    assert replayed.stopped


def test_rows_have_no_other_tensors() -> None:
    rows = Rows(*(torch.full((1, 2), float(number)) for number in range(5)))
    assert [getattr(rows, field.name) for field in fields(rows)] == rows.tensors


def test_settings_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)

    def settings() -> tuple[bool, bool, bool]:
        return (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
            torch.utils.deterministic.fill_uninitialized_memory,  # type: ignore[attr-defined]
        )

    before = settings()
    with reproducible(CPU):
        assert settings() == before
    within = []
    with pytest.raises(KeyError), reproducible(GPU):  # noqa: PT012
        within.append(settings())
        raise KeyError
    assert within == [(True, True, False)]
    assert settings() == before
