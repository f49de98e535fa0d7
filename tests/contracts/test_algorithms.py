"""What every algorithm keeps to, whatever its kind."""

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from helpers import training_fakes as fakes
from raysweep.algorithms import AlgorithmConfig
from raysweep.errors import RunFailedError
from raysweep.registry import algorithms
from raysweep.training import World, checkpoint_directory, pretrain
from raysweep.training.data import batches
from raysweep.training.step import Stepper

KINDS = algorithms.kinds()
TRAINING = [kind for kind in KINDS if algorithms.get(kind).trains]

#: What a kind needs to run in small.
SMALL: dict[str, dict[str, Any]] = {"adversarial": {"train": 24, "validation": 16, "examples": 100}}

#: Every kind as it is, and with the options that change how a step is made.
CASES: dict[str, dict[str, Any]] = {kind: {"kind": kind, **SMALL.get(kind, {})} for kind in TRAINING} | {
    "averaged": {"kind": "adamw", "ema": 0.9},
    "cosine": {"kind": "adamw", "schedule": "cosine", "warmup": 0.2, "warmup_steps": 0},
    "momentum": {"kind": "sgd", "momentum": 0.9, "clip_norm": 1.0},
    "sam-same": {"kind": "sam", "ascent": "same"},
    "averaged-sam": {"kind": "sam", "ema": 0.9, "schedule": "linear"},
}

#: Another value of every field.
OTHER: dict[str, Any] = {
    "lr": 0.5, "warmup_steps": 7, "warmup": 0.25, "schedule": "linear", "clip_norm": 2.0, "ema": 0.5,
    "betas": [0.5, 0.6], "eps": 0.25, "weight_decay": 0.125, "momentum": 0.75, "rho": 0.5, "ascent": "same",
    "strength": 3.0, "ridge": 0.5, "tasks": ["way"], "train": 25, "validation": 17, "examples": 1234,
    "neurons": 300, "draw": 3,
}  # fmt: skip


def files(journal: Any, step: int) -> dict[str, bytes]:
    place = checkpoint_directory(journal.directory, step)
    return {path.name: path.read_bytes() for path in place.glob("*.safetensors")}


@pytest.mark.parametrize("kind", KINDS)
def test_a_configuration_survives_its_encoding(kind: str) -> None:
    config = algorithms.decode({"kind": kind})
    assert algorithms.decode(config.encode()) == config
    assert config.label == kind
    for name in type(config).model_fields.keys() - {"kind"}:
        other = algorithms.decode({"kind": kind, name: OTHER[name]})
        assert algorithms.decode(other.encode()) == other
        assert algorithms.decode(other.content()) == other


@pytest.mark.parametrize("kind", KINDS)
def test_labels_and_identities_tell_every_field(kind: str) -> None:
    fields = type(algorithms.decode({"kind": kind})).model_fields.keys() - {"kind"}
    configs = [
        algorithms.decode({"kind": kind, **o}) for o in [{}, *({name: OTHER[name]} for name in fields)]
    ]
    assert len({config.label for config in configs}) == len(fields) + 1
    assert len({str(config.content()) for config in configs}) == len(fields) + 1


@pytest.mark.parametrize("kind", [k for k in KINDS if k not in TRAINING])
def test_what_does_not_train_has_no_optimizer(kind: str) -> None:
    with pytest.raises(TypeError):
        algorithms.decode({"kind": kind}).build(nn.Linear(1, 1))


@pytest.mark.parametrize("name", CASES)
def test_a_quadratic_falls_to_its_minimum(name: str) -> None:
    options = {"lr": 0.05, "schedule": "linear", "weight_decay": 0.0, "warmup_steps": 10}
    config: AlgorithmConfig = algorithms.decode(CASES[name] | options | {"warmup": None})
    generator = torch.Generator().manual_seed(0)
    goal = torch.randn(3, 4, generator=generator)
    model = nn.Linear(4, 3, bias=False)
    nn.init.zeros_(model.weight)
    optimizer = config.build(model)

    def backward(half: int | None = None) -> Tensor:
        loss = (model.weight - goal).square().sum() / 2
        loss.backward()
        return loss.detach()

    losses = []
    for step in range(1, 401):
        before = model.weight.detach().clone()
        losses.append(config.gradient(model, backward).item())
        assert torch.equal(model.weight, before)
        config.before_update(model)
        for group in optimizer.param_groups:
            group["lr"] = config.learning_rate(step, 400)
        optimizer.step()
        optimizer.zero_grad()
    assert losses[0] == pytest.approx(goal.square().sum().item() / 2)
    assert losses[-1] < 1e-2 * losses[0]


@pytest.mark.parametrize("name", CASES)
def test_training_moves_every_parameter_and_lowers_the_loss(name: str) -> None:
    options = CASES[name] | ({"lr": 0.3} if CASES[name]["kind"] == "sgd" else {})
    arguments = fakes.arguments(
        algorithm=options,
        model={"dropout": 0.0},
        pretrain={"batch_size": 64, "steps": 80, "milestones": [80]},
    )
    language, config = arguments["language"], arguments["algorithm"]
    model = arguments["model"].build(language, seed=0)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    stepper = Stepper(
        model, config, language=language, pretrain=arguments["pretrain"], seed=0, world=World(),
        device=torch.device("cpu"),
    )  # fmt: skip
    losses = [
        stepper.update(batch, step).item()
        for step, batch in enumerate(batches(language, arguments["pretrain"], seed=0, first=1, last=80), 1)
    ]
    assert sum(losses[-5:]) / 5 < losses[0] - 0.1
    assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []
    assert all(config.learning_rate(step, 80) > 0 for step in range(1, 81))
    # A checkpoint holds nothing but tensors.
    state = stepper.optimizer.state
    assert all(isinstance(v, Tensor) or v is None for entry in state.values() for v in entry.values())


@pytest.mark.parametrize("name", CASES)
def test_stopped_and_resumed_is_bitwise_uninterrupted(name: str, tmp_path: Path) -> None:
    options = fakes.arguments(algorithm=CASES[name], pretrain={"steps": 30, "milestones": [15, 30]})
    whole, broken = (fakes.FolderJournal(tmp_path / part) for part in ("whole", "broken"))
    assert pretrain(journal=whole, **options) == 30
    calls: list[None] = []

    def stop() -> bool:
        calls.append(None)
        return len(calls) == 11

    for reached in (11, 22, 30):
        calls.clear()
        assert pretrain(journal=broken, stop=stop, **options) == reached
    for step in (15, 30):
        assert files(broken, step) == files(whole, step)
    config = options["algorithm"]
    assert ("trained.safetensors" in files(whole, 30)) == (config.average_decay is not None)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which two worker processes have trained every case."""
    directory = tmp_path_factory.mktemp("two-workers")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["raysweep.training", "torch._dynamo"])
    jobs = {name: sharded(name) for name in CASES}
    processes = [
        context.Process(
            target=fakes.work_in_turn,
            args=(directory, World(rank, 2), directory / "rendezvous", jobs),
            daemon=True,
        )
        for rank in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    return directory


def sharded(name: str) -> dict[str, Any]:
    """Return a run on batches of 15 sentences, which two workers share 7 and 8."""
    rate = {"lr": 0.1} if CASES[name]["kind"] == "sgd" else {}
    return {
        "algorithm": CASES[name] | rate,
        "pretrain": {
            # Parts whose gradients are summed over workers once, behind the last.
            "micro_batch": 3 if name in ("momentum", "adversarial") else None,
            "steps": 15,
            "batch_size": 15,
            "milestones": [15],
            "mask": 0.3,
            "checkpoint_every": None,
        },
    }


@pytest.mark.parametrize("name", CASES)
def test_two_workers_train_as_one(name: str, tmp_path: Path, two_workers: Path) -> None:
    options = fakes.arguments(**sharded(name))
    pretrain(journal=fakes.FolderJournal(tmp_path), **options)
    one, two = (
        load_file(checkpoint_directory(run, 15) / "model.safetensors")
        for run in (tmp_path, two_workers / name)
    )
    start = dict(options["model"].build(options["language"], seed=5).named_parameters())
    way = torch.cat([(one[key] - p).flatten() for key, p in start.items()]).norm()
    apart = torch.cat([(one[key] - two[key]).flatten() for key in start]).norm()
    # Muon orthogonalises in bfloat16, in which rounding is a thousand times as large.
    assert apart < (2e-2 if name == "muon" else 1e-3) * way
    assert way > 0.1


@pytest.mark.parametrize("name", CASES)
def test_divergence_stops_the_run_and_names_the_step(name: str, tmp_path: Path) -> None:
    options = fakes.arguments(
        algorithm=CASES[name] | {"lr": 1e30}, pretrain={"milestones": [60], "checkpoint_every": None}
    )
    with pytest.raises(RunFailedError, match=r"^step \d+: the training loss is (nan|inf)"):
        pretrain(journal=fakes.FolderJournal(tmp_path), **options)
