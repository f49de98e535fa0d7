"""Training from the state of another run: the same weights, and the optimizer's state kept or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from helpers import training_fakes as fakes
from raysweep.algorithms import AlgorithmConfig
from raysweep.errors import CheckpointError, ConfigError
from raysweep.models import EncoderConfig, LSTMConfig, ModelConfig
from raysweep.models.huggingface import to_huggingface
from raysweep.registry import algorithms
from raysweep.training import Start, World, checkpoint_directory, load_model, pretrain
from raysweep.training.data import batches
from raysweep.training.start import state_content
from raysweep.training.step import Stepper

MODELS: dict[str, ModelConfig] = {
    "encoder": EncoderConfig(shape="8/2/2/16"),
    "lstm": LSTMConfig(shape="8/2"),
    "cls": EncoderConfig(shape="8/2/1/16", cls=True),
}
FIRST = {"steps": 6, "milestones": [6]}
#: With milestone 0; steps count from 0 again.
SECOND = {"steps": 5, "milestones": [0, 5], "checkpoint_every": 2}


def decoded(kind: str, **options: Any) -> AlgorithmConfig:
    found: AlgorithmConfig = algorithms.decode({"kind": kind, "lr": 1e-2, "warmup_steps": 3, **options})
    return found


def train(
    folder: Path,
    model: ModelConfig,
    algorithm: AlgorithmConfig,
    settings: dict[str, Any],
    *,
    start: Start | None = None,
    seed: int = 5,
    **options: Any,
) -> Path:
    """Train a small run; return the folder of its last checkpoint."""
    arguments = fakes.arguments(pretrain=settings) | {"model": model, "algorithm": algorithm, "seed": seed}
    pretrain(journal=fakes.FolderJournal(folder), start=start, **arguments, **options)
    return checkpoint_directory(folder, settings["steps"])


def tensors(folder: Path, name: str = "model") -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = load_file(folder / f"{name}.safetensors")
    return found


def assert_same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def by_hand(
    source: Path, model: ModelConfig, algorithm: AlgorithmConfig, *, keep: bool
) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """Return weights and optimizer state after the second phase, in plain loops: the oracle."""
    language = fakes.Walk()
    config = fakes.arguments(pretrain=SECOND)["pretrain"]
    built = model.build(language, seed=5)
    built.load_state_dict(tensors(source), strict=False)
    built.tie()
    where = torch.device("cpu")
    stepper = Stepper(
        built, algorithm, language=language, pretrain=config, seed=5, world=World(), device=where
    )
    if keep:
        names = dict(built.named_parameters())
        for full, value in tensors(source, "optimizer").items():
            name, _, key = full.rpartition("/")
            stepper.optimizer.state[names[name]][key] = value.clone()
    with torch.random.fork_rng():
        for step, batch in enumerate(batches(language, config, seed=5, first=1, last=5), start=1):
            stepper.update(batch, step)
    state = {
        f"{name}/{key}": value
        for name, parameter in built.named_parameters()
        for key, value in stepper.optimizer.state[parameter].items()
        if isinstance(value, torch.Tensor)
    }
    return {name: p.detach() for name, p in built.named_parameters()}, state


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("keep", [True, False], ids=["keep", "fresh"])
def test_a_second_phase_equals_one_by_hand_bitwise(tmp_path: Path, kind: str, keep: bool) -> None:
    model, algorithm = MODELS[kind], decoded("adamw")
    source = train(tmp_path / "a", model, algorithm, FIRST)
    start = Start(source, keep=keep, content=state_content(source, keep=keep))
    end = train(tmp_path / "b", model, algorithm, SECOND, start=start)
    at_start = checkpoint_directory(tmp_path / "b", 0)
    assert_same(tensors(at_start), tensors(source))
    assert_same(tensors(at_start, "optimizer"), tensors(source, "optimizer") if keep else {})
    weights, state = by_hand(source, model, algorithm, keep=keep)
    assert_same({name: t for name, t in tensors(end).items() if name in weights}, weights)
    assert_same(tensors(end, "optimizer"), state)


def test_another_algorithm_and_seed(tmp_path: Path) -> None:
    model = MODELS["encoder"]
    source = train(tmp_path / "a", model, decoded("adamw"), FIRST)
    ends = [
        train(tmp_path / name, model, decoded("sgd"), SECOND, start=Start(source), seed=seed)
        for name, seed in (("b", 5), ("c", 6))
    ]
    # The weights of both begin alike, and their data differ.
    assert_same(*(tensors(checkpoint_directory(tmp_path / name, 0)) for name in ("b", "c")))
    one, other = map(tensors, ends)
    assert any(not torch.equal(one[name], other[name]) for name in one)


def test_a_run_that_is_stopped_goes_on_from_its_own_checkpoint(tmp_path: Path) -> None:
    model, algorithm = MODELS["encoder"], decoded("adamw")
    source = train(tmp_path / "a", model, algorithm, FIRST)
    start = Start(source, keep=True)
    whole = train(tmp_path / "b", model, algorithm, SECOND, start=start)
    looks = iter(range(100))
    train(tmp_path / "c", model, algorithm, SECOND, start=start, stop=lambda: next(looks) >= 2)
    assert not checkpoint_directory(tmp_path / "c", 5).exists()
    # The source is not read again.
    gone = Start(tmp_path / "nowhere", keep=True)
    end = train(tmp_path / "c", model, algorithm, SECOND, start=gone)
    assert_same(tensors(end), tensors(whole))
    assert_same(tensors(end, "optimizer"), tensors(whole, "optimizer"))


def test_averaged_weights_start_a_fresh_run_and_trained_ones_a_kept_one(tmp_path: Path) -> None:
    model, averaged = MODELS["encoder"], decoded("adamw", ema=0.9)
    source = train(tmp_path / "a", model, averaged, FIRST)
    assert not torch.equal(*(tensors(source, name)["decoder.bias"] for name in ("model", "trained")))
    for name, keep in (("model", False), ("trained", True)):
        train(tmp_path / name, model, averaged, SECOND, start=Start(source, keep=keep))
        at_start = checkpoint_directory(tmp_path / name, 0)
        assert_same(tensors(at_start), tensors(source, name))
        assert_same(tensors(at_start, "trained"), tensors(source, name))


def test_milestone_zero_is_the_untrained_model(tmp_path: Path) -> None:
    language, model = fakes.Walk(), MODELS["encoder"]
    end = train(tmp_path, model, decoded("adamw"), SECOND)
    untrained = dict(model.build(language, seed=5).named_parameters())
    loaded = load_model(checkpoint_directory(tmp_path, 0), model, language)
    assert all(torch.equal(p, untrained[name]) for name, p in loaded.named_parameters())
    # It changes nothing of the run.
    plain = train(tmp_path / "plain", model, decoded("adamw"), {**SECOND, "milestones": [5]})
    assert_same(tensors(end), tensors(plain))
    assert_same(tensors(end, "optimizer"), tensors(plain, "optimizer"))


def test_milestone_zero_that_was_lost_is_made_again(tmp_path: Path) -> None:
    model = MODELS["encoder"]
    journal = fakes.FolderJournal(tmp_path)
    train(tmp_path, model, decoded("adamw"), SECOND)
    before = tensors(checkpoint_directory(tmp_path, 0))
    journal.quarantine(journal.checkpoints()[-1], "lost")
    train(tmp_path, model, decoded("adamw"), SECOND)
    assert_same(tensors(checkpoint_directory(tmp_path, 0)), before)


def test_a_folder_of_transformers(tmp_path: Path) -> None:
    model, language = MODELS["encoder"], fakes.Walk()
    source = train(tmp_path / "a", model, decoded("adamw"), FIRST)
    to_huggingface(load_model(source, model, language), tmp_path / "model")
    start = Start(tmp_path / "model", content=state_content(tmp_path / "model", keep=False))
    train(tmp_path / "b", model, decoded("sgd"), SECOND, start=start)
    assert_same(tensors(checkpoint_directory(tmp_path / "b", 0)), tensors(source))
    with pytest.raises(CheckpointError, match="weights of another model"):
        train(tmp_path / "c", MODELS["cls"], decoded("sgd"), SECOND, start=start)


def test_a_source_that_has_changed_has_gone_or_does_not_fit(tmp_path: Path) -> None:
    model, algorithm = MODELS["encoder"], decoded("adamw")
    source = train(tmp_path / "a", model, algorithm, FIRST)
    other = train(tmp_path / "other", model, algorithm, FIRST, seed=6)
    changed = Start(other, content=state_content(source, keep=False))
    with pytest.raises(CheckpointError, match="has other content than when this run was configured"):
        train(tmp_path / "b", model, algorithm, SECOND, start=changed)
    with pytest.raises(CheckpointError, match="weights of another model"):
        train(tmp_path / "c", EncoderConfig(shape="8/2/1/16"), algorithm, SECOND, start=Start(source))
    with pytest.raises(CheckpointError, match="nowhere is not there any more"):
        train(tmp_path / "d", model, algorithm, SECOND, start=Start(tmp_path / "nowhere"))
    data = (source / "model.safetensors").read_bytes()
    (source / "model.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointError, match="sha256 differs"):
        train(tmp_path / "e", model, algorithm, SECOND, start=Start(source))
    with pytest.raises(ConfigError, match="there is no"):
        state_content(tmp_path / "nowhere", keep=False)
