"""The promises of every algorithm."""

from __future__ import annotations

import multiprocessing
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from raysweep.algorithms import AlgorithmConfig
from raysweep.errors import RunFailedError
from raysweep.languages import Language
from raysweep.testing.contract import Contract, example_language, made
from raysweep.testing.training import FolderJournal, small_run, work_in_turn
from raysweep.training import World, checkpoint_directory, pretrain
from raysweep.training.data import batches
from raysweep.training.step import Stepper


class _AnyAlgorithm(Contract):
    """The promises of all algorithms."""

    #: Another value of every field, as in a sweep file; a subclass adds those of its own fields.
    others: ClassVar[Mapping[str, Any]] = {
        "lr": 0.5, "warmup_steps": 7, "warmup": 0.25, "schedule": "linear", "clip_norm": 2.0, "ema": 0.5,
        "betas": [0.5, 0.6], "eps": 0.25, "weight_decay": 0.125,
    }  # fmt: skip

    @pytest.fixture(scope="class")
    @classmethod
    def plain(cls, config: AlgorithmConfig) -> AlgorithmConfig:
        """The kind as it is, all but the fields without a default left out."""
        fields = type(config).model_fields
        needed = {name for name, field in fields.items() if field.is_required()}
        return type(config).decode({k: v for k, v in config.encode().items() if k in needed | {"kind"}})

    @pytest.fixture(scope="class")
    @classmethod
    def variants(cls, plain: AlgorithmConfig) -> list[AlgorithmConfig]:
        """The plain configuration, and one with another value of each of its fields."""
        fields = type(plain).model_fields.keys() - {"kind"}
        without = sorted(fields - cls.others.keys())
        assert not without, f"give `others` another value of {', '.join(without)}"
        changes = [{name: cls.others[name]} for name in sorted(fields)]
        return [plain, *(type(plain).decode({**_given(plain), **change}) for change in changes)]

    def test_a_configuration_survives_its_encoding(
        self, config: AlgorithmConfig, variants: list[AlgorithmConfig]
    ) -> None:
        for one in (config, *variants):
            assert type(one).decode(one.encode()) == one
            assert type(one).decode(one.content()) == one

    def test_labels_and_identities_tell_every_field(self, variants: list[AlgorithmConfig]) -> None:
        assert variants[0].label.startswith(variants[0].kind)
        assert len({one.label for one in variants}) == len(variants)
        assert len({str(one.content()) for one in variants}) == len(variants)


class UntrainedContract(_AnyAlgorithm):
    """The promises of an algorithm that does not train: it is evaluated as it is."""

    #: Examples of languages, by kind; each configuration must fit one of them.
    languages: ClassVar[tuple[str, ...]] = ("hmm", "dyck")

    @pytest.fixture(scope="class")
    @classmethod
    def language(cls, config: AlgorithmConfig) -> Language:
        """A language that the algorithm fits."""
        fits = [one for one in map(example_language, cls.languages) if not config.problems(one)]
        assert fits, f"'{config.kind}' fits none of {', '.join(cls.languages)}; name another in `languages`"
        return fits[0]

    def test_it_has_no_optimizer(self, config: AlgorithmConfig) -> None:
        assert not config.trains
        with pytest.raises(TypeError):
            config.build(nn.Linear(1, 1))

    def test_its_subject_is_of_the_language(self, config: AlgorithmConfig, language: Language) -> None:
        assert config.subject(language).language is language

    def test_a_masked_language_model_answers_with_probabilities(
        self, config: AlgorithmConfig, language: Language
    ) -> None:
        subject = config.subject(language)
        assert config.gives_masked_lm == hasattr(subject, "log_probs")
        if config.gives_masked_lm:
            ids = language.sample(8, seed=0)
            log_probs = subject.log_probs(ids, torch.zeros(8, dtype=torch.int64))
            assert log_probs.shape == (8, language.vocabulary_size)
            assert log_probs.exp().sum(dim=1).max() < 1 + 1e-6


class AlgorithmContract(_AnyAlgorithm):
    """The promises of an algorithm that trains, on a model that is small.

    Each configuration has a field `lr`, and lowers the loss of a tiny encoder within 80 steps: give it a high
    learning rate and a short warm-up.
    """

    #: The names of configurations whose batches two workers take in parts.
    in_parts: ClassVar[Collection[str]] = ()
    #: How far two workers may end from one, as a share of their way, by the name of a configuration.
    tolerances: ClassVar[Mapping[str, float]] = {}

    def test_a_quadratic_falls_to_its_minimum(self, config: AlgorithmConfig) -> None:
        options = {"lr": 0.05, "schedule": "linear", "weight_decay": 0.0, "warmup_steps": 10, "warmup": None}
        config = _changed(config, **{k: v for k, v in options.items() if k in type(config).model_fields})
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

    def test_training_moves_every_parameter_and_lowers_the_loss(self, config: AlgorithmConfig) -> None:
        run = small_run(config, pretrain={"batch_size": 64, "steps": 80, "milestones": [80]})
        language, settings = run["language"], run["pretrain"]
        model = run["model"].model_copy(update={"dropout": 0.0}).build(language, seed=0)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        stepper = Stepper(
            model, config, language=language, pretrain=settings, seed=0, world=World(),
            device=torch.device("cpu"),
        )  # fmt: skip
        losses = [
            stepper.update(batch, step).item()
            for step, batch in enumerate(batches(language, settings, seed=0, first=1, last=80), 1)
        ]
        assert sum(losses[-5:]) / 5 < losses[0] - 0.1
        assert [name for name, p in model.named_parameters() if torch.equal(p, before[name])] == []
        assert all(config.learning_rate(step, 80) > 0 for step in range(1, 81))
        # A checkpoint holds nothing but tensors.
        state = stepper.optimizer.state
        assert all(isinstance(v, Tensor) or v is None for entry in state.values() for v in entry.values())

    def test_stopped_and_resumed_is_bitwise_uninterrupted(
        self, config: AlgorithmConfig, tmp_path: Path
    ) -> None:
        run = small_run(config, pretrain={"steps": 30, "milestones": [15, 30]})
        whole, broken = (FolderJournal(tmp_path / part) for part in ("whole", "broken"))
        assert pretrain(journal=whole, **run) == 30
        calls: list[None] = []

        def stop() -> bool:
            calls.append(None)
            return len(calls) == 11

        for reached in (11, 22, 30):
            calls.clear()
            assert pretrain(journal=broken, stop=stop, **run) == reached
        for step in (15, 30):
            assert _files(broken, step) == _files(whole, step)
        assert ("trained.safetensors" in _files(whole, 30)) == (config.average_decay is not None)

    @pytest.fixture(scope="class")
    @classmethod
    def shared_runs(cls, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
        """A run of each configuration on batches of 15 sentences, which two workers share 7 and 8."""
        settings = {
            "steps": 15, "batch_size": 15, "milestones": [15], "mask": 0.3, "checkpoint_every": None,
        }  # fmt: skip
        configs = {name: made(one, tmp_path_factory.mktemp("example")) for name, one in cls.given().items()}
        return {
            name: small_run(config, pretrain=settings | {"micro_batch": 3 if name in cls.in_parts else None})
            for name, config in configs.items()
        }

    @pytest.fixture(scope="class")
    @classmethod
    def two_workers(
        cls, tmp_path_factory: pytest.TempPathFactory, shared_runs: dict[str, dict[str, Any]]
    ) -> Path:
        """The folder in which two worker processes have trained every configuration."""
        directory = tmp_path_factory.mktemp("two-workers")
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["raysweep.training", "torch._dynamo"])
        processes = [
            context.Process(
                target=work_in_turn,
                args=(directory, World(rank, 2), directory / "rendezvous", shared_runs),
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

    def test_two_workers_train_as_one(
        self,
        config_name: str,
        tmp_path: Path,
        shared_runs: dict[str, dict[str, Any]],
        two_workers: Path,
    ) -> None:
        run = shared_runs[config_name]
        pretrain(journal=FolderJournal(tmp_path), **run)
        one, two = (
            load_file(checkpoint_directory(place, 15) / "model.safetensors")
            for place in (tmp_path, two_workers / config_name)
        )
        start = dict(run["model"].build(run["language"], seed=run["seed"]).named_parameters())
        way = torch.cat([(one[key] - p).flatten() for key, p in start.items()]).norm()
        apart = torch.cat([(one[key] - two[key]).flatten() for key in start]).norm()
        assert apart < self.tolerances.get(config_name, 1e-3) * way
        assert way > 0.1

    def test_divergence_stops_the_run_and_names_the_step(
        self, config: AlgorithmConfig, tmp_path: Path
    ) -> None:
        run = small_run(_changed(config, lr=1e30), pretrain={"milestones": [60], "checkpoint_every": None})
        with pytest.raises(RunFailedError, match=r"^step \d+: the training loss is (nan|inf)"):
            pretrain(journal=FolderJournal(tmp_path), **run)


def _given(config: AlgorithmConfig) -> dict[str, Any]:
    """Return the fields that were given and not left to their defaults, and the kind."""
    return {k: v for k, v in config.encode().items() if k in config.model_fields_set | {"kind"}}


def _changed(config: AlgorithmConfig, **changes: Any) -> AlgorithmConfig:
    return type(config).decode({**config.encode(), **changes})


def _files(journal: FolderJournal, step: int) -> dict[str, bytes]:
    place = checkpoint_directory(journal.directory, step)
    return {path.name: path.read_bytes() for path in place.glob("*.safetensors")}
