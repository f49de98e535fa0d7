"""The promises of every model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from raysweep.languages import Language
from raysweep.languages.hmm import HMMConfig
from raysweep.models import MaskedLM, ModelConfig
from raysweep.models.batch import Batch
from raysweep.testing.contract import Contract


class ModelContract(Contract):
    """The promises of a model, for the language of `HMMConfig.example`.

    Parameters with as many rows as the vocabulary has (16) are taken for embeddings and biases of the tokens,
    so choose configurations in which no other parameter has 16 rows.
    """

    @pytest.fixture(scope="class")
    @classmethod
    def language(cls) -> Language:
        """A language of six words, five a sentence."""
        return HMMConfig.example(Path()).build()

    @pytest.fixture
    def model(self, config: ModelConfig, language: Language) -> MaskedLM:
        """The model under test, with its initial weights."""
        return config.build(language, seed=1)

    def test_a_configuration_survives_its_encoding(self, config: ModelConfig, language: Language) -> None:
        again = type(config).decode(config.encode())
        assert again == config
        assert hash(again) == hash(config)
        assert config.label
        assert config.problems(language) == []

    def test_shapes(self, model: MaskedLM, language: Language) -> None:
        ids, positions = batch(language)
        hidden = model.encode(ids)
        assert hidden.shape == (8, 5, model.width)
        assert model.head(hidden).shape == (8, 5, model.total_vocabulary)
        assert model(ids, positions).shape == (8, model.total_vocabulary)
        assert model.logits_at(ids, torch.tensor([0, 3, 39])).shape == (3, model.total_vocabulary)
        for name in ("vocabulary_size", "pad_id", "max_length"):
            assert getattr(model, name) == getattr(language, name)
        assert model.total_vocabulary >= language.vocabulary_size + 3
        assert model.total_vocabulary % 8 == 0

    def test_forward_is_the_head_of_the_encoding(self, model: MaskedLM, language: Language) -> None:
        ids, positions = batch(language)
        model.eval().double()
        expected = model.head(model.encode(ids))[torch.arange(8), positions]
        torch.testing.assert_close(model(ids, positions), expected, rtol=0, atol=1e-12)
        flat = model.logits_at(ids, torch.arange(8) * ids.shape[1] + positions)
        torch.testing.assert_close(flat, expected, rtol=0, atol=1e-12)

    def test_rows_do_not_see_each_other_nor_padding(self, model: MaskedLM, language: Language) -> None:
        ids, positions = batch(language)
        model.eval().double()
        together = model(ids, positions)
        alone = model(ids[:4, :4], positions[:4])
        torch.testing.assert_close(alone, together[:4], rtol=0, atol=1e-12)
        turned = model(ids.flip(0), positions.flip(0)).flip(0)
        torch.testing.assert_close(turned, together, rtol=0, atol=1e-12)

    def test_gradients_reach_every_parameter(self, model: MaskedLM, language: Language) -> None:
        ids, positions = batch(language)
        model(ids, positions).log_softmax(-1)[:, 0].sum().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None] == []

    def test_learning_is_the_loss_and_its_backward_pass(self, model: MaskedLM, language: Language) -> None:
        words = read(language)
        if not model.fused:
            with pytest.raises(TypeError):
                model.learn(words, seed=1, dtype=torch.float32)
            return
        loss = model.train().masked_loss(words, seed=1, dtype=torch.float32)
        wanted = torch.autograd.grad(loss, list(model.parameters()))
        assert torch.equal(model.learn(words, seed=1, dtype=torch.float32), loss)
        for (name, parameter), gradient in zip(model.named_parameters(), wanted, strict=True):
            assert parameter.grad is not None, name
            torch.testing.assert_close(parameter.grad, gradient, msg=name)

    def test_the_head_comes_after_the_encoding(self, model: MaskedLM, language: Language) -> None:
        ids, _ = batch(language)
        torch.autograd.backward(model.encode(ids).square().sum())
        assert all(p.grad is None for p in model.head_parameters())

    def test_hidden_states_are_those_of_the_encoding(self, model: MaskedLM, language: Language) -> None:
        words, (ids, positions) = read(language), batch(language)
        model.eval()
        found = model.hidden_at(words, seed=0, dtype=torch.float32)
        expected = model.encode(ids)[torch.arange(len(ids)), positions]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)

    def test_the_seed_makes_the_weights(self, config: ModelConfig, language: Language) -> None:
        first, same, other = (dict(config.build(language, seed=s).named_parameters()) for s in (1, 1, 2))
        assert all(torch.equal(first[name], same[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first) == type(config).seeded
        assert config.parameters(language) == sum(p.numel() for p in first.values())
        assert config.parameter_counts(language)["own"] == config.parameters(language)

    def test_building_leaves_the_global_generator_alone(
        self, config: ModelConfig, language: Language
    ) -> None:
        before = torch.get_rng_state()
        config.build(language, seed=1)
        assert torch.equal(before, torch.get_rng_state())

    def test_what_stands_at_padding_does_not_matter(self, model: MaskedLM, language: Language) -> None:
        ids, positions = batch(language)
        model.eval().double()
        before = model(ids, positions)
        tokens = [p for p in model.parameters() if p.ndim and len(p) == model.total_vocabulary]
        assert tokens, "no parameter has a row for each token"
        with torch.no_grad():
            for parameter in tokens:
                parameter[language.pad_id] += 3.0
        words = [k for k in range(model.total_vocabulary) if k != language.pad_id]
        torch.testing.assert_close(model(ids, positions)[:, words], before[:, words], rtol=0, atol=1e-12)


def batch(language: Language) -> tuple[Tensor, Tensor]:
    """Return sentences [8, 5] with a mask at one position [8] each; the first four have four words."""
    shape = (8, language.max_length)
    ids = torch.randint(0, language.vocabulary_size, shape, generator=torch.Generator().manual_seed(0))
    ids[:4, 4:] = language.pad_id
    positions = torch.arange(8) % 4
    return ids.scatter(1, positions[:, None], language.mask_id), positions


def read(language: Language) -> Batch:
    """Return the sentences of `batch` as training takes them; the words that were masked are word 0."""
    ids, positions = batch(language)
    return Batch(
        ids=ids, index=positions, targets=torch.zeros_like(positions), lengths=language.lengths(ids),
        count=len(ids), rows=range(len(ids)), single=True,
    )  # fmt: skip
