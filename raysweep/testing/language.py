"""The promises of every language, checked on instances small enough to enumerate all of their sentences."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar

import pytest
import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.languages import Language
from raysweep.languages.base import LanguageConfig
from raysweep.languages.splits import Split, draw_split, in_test
from raysweep.testing.contract import Contract


class _AnyLanguage(Contract):
    """The promises of all languages."""

    #: Whether the languages know their exact conditionals.
    exact: ClassVar[bool]

    @pytest.fixture(scope="class")
    @classmethod
    def language(cls, config: LanguageConfig) -> Language:
        """The language under test."""
        return config.build()

    def test_a_kind_says_whether_its_truth_is_known(self, language: Language) -> None:
        assert language.exact == self.exact

    def test_held_out_sentences_are_of_the_same_shape(self, language: Language) -> None:
        held = language.held_out
        assert held.held_out is held
        assert held.sample(3, seed=0).shape == language.sample(3, seed=0).shape
        for name in ("vocabulary_size", "max_length", "pad_id", "mask_id", "cls_id", "exact"):
            assert getattr(held, name) == getattr(language, name)

    def test_shards_are_bitwise_equal(self, language: Language) -> None:
        whole = language.sample_latent(50, seed=9, start=3)
        assert whole.ids.shape == (50, language.max_length)
        assert whole.ids.dtype == torch.int64
        parts = [language.sample_latent(n, seed=9, start=start) for start, n in ((3, 17), (20, 1), (21, 32))]
        assert torch.equal(torch.cat([part.ids for part in parts]), whole.ids)
        assert torch.equal(language.sample(50, seed=9, start=3), whole.ids)
        for name, latent in whole.latents.items():
            assert torch.equal(torch.cat([part.latents[name] for part in parts]), latent)
        for name in language.tasks:
            assert torch.equal(
                torch.cat([language.labels(name, part) for part in parts]), language.labels(name, whole)
            )
        assert not torch.equal(language.sample(50, seed=10, start=3), whole.ids)
        numbers = torch.tensor([52, 3, 20, 20, 19, 41, 4])
        assert torch.equal(language.sample_at(numbers, seed=9), whole.ids[numbers - 3])
        assert language.to("cpu") is language
        none = language.sample_at(numbers[:0], seed=9)
        assert (none.shape, none.dtype) == ((0, language.max_length), torch.int64)

    def test_labels_are_classes(self, language: Language) -> None:
        sample = language.sample_latent(500, seed=4)
        for name, task in language.tasks.items():
            assert task.name == name
            assert len(set(task.classes)) == len(task.classes)
            labels = language.labels(name, sample)
            assert labels.shape == (500,)
            assert labels.dtype == torch.int64
            assert int(labels.min()) >= 0
            assert int(labels.max()) < len(task.classes)
        with pytest.raises(DataError, match="no task 'nonsense'"):
            language.labels("nonsense", sample)

    def test_posteriors_of_labels_are_probabilities(self, language: Language) -> None:
        sample = language.sample_latent(100, seed=5)
        for name, task in language.tasks.items():
            posterior = language.label_posterior(name, sample.ids)
            if posterior is None:
                continue
            assert posterior.shape == (100, len(task.classes))
            assert posterior.dtype == torch.float64
            assert bool((posterior >= 0).all())
            assert (posterior.sum(dim=1) - 1).abs().max() < 1e-12
            # A label that occurs is possible.
            assert bool((posterior.gather(1, language.labels(name, sample)[:, None]) > 0).all())

    def test_configuration_determines_the_fingerprint(
        self, config: LanguageConfig, language: Language
    ) -> None:
        again = type(config).decode(config.encode())
        assert again == config
        assert hash(again) == hash(config)
        assert again.build().fingerprint == language.fingerprint
        for field, step in (("seed", 100), ("length", 2)):
            if field in config.model_fields_set:
                other = type(config).decode({**config.encode(), field: getattr(config, field) + step})
                assert other.build().fingerprint != language.fingerprint

    def test_special_ids_follow_the_words(self, language: Language) -> None:
        V = language.vocabulary_size
        assert (language.pad_id, language.mask_id, language.cls_id) == (V, V + 1, V + 2)


class TextContract(_AnyLanguage):
    """The promises of a language whose truth nobody knows, such as a corpus."""

    exact = False

    def test_what_nobody_knows_is_an_error(self, language: Language) -> None:
        ids = language.sample(2, seed=0)
        for call in (language.conditionals, language.log_prob, language.sentence_entropy):
            with pytest.raises(DataError, match="nobody knows"):
                call(ids)
        with pytest.raises(DataError, match="nobody knows"):
            language.entropy(8)


class LanguageContract(_AnyLanguage):
    """The promises of a language that knows its exact conditionals.

    All strings of up to `max_length` words are enumerated, so `vocabulary_size ** max_length` should stay
    below some ten thousand.
    """

    exact = True

    def test_probabilities_sum_to_one(self, language: Language) -> None:
        total = math.fsum(table(language, n).sum().item() for n in range(1, language.max_length + 1))
        assert abs(total - 1) < 1e-12
        assert language.log_prob(strings(language, 1)).dtype == torch.float64

    def test_longer_and_empty_strings_have_probability_zero(self, language: Language) -> None:
        long = torch.zeros(1, language.max_length + 1, dtype=torch.int64)
        assert language.log_prob(long).item() == -math.inf
        assert language.log_prob(torch.full((1, 3), language.pad_id)).item() == -math.inf
        for ids in (long, torch.full((1, 3), language.pad_id)):
            with pytest.raises(DataError, match="sentence 0"):
                language.conditionals(ids)

    def test_conditionals_equal_enumeration(self, language: Language) -> None:
        compared = 0
        for n in range(1, language.max_length + 1):
            joint, ids = table(language, n), strings(language, n)
            truth, total = zip(*(spread(joint, [t], t) for t in range(n)), strict=True)
            possible = torch.stack(total).gt(0).all(dim=0)
            wanted = torch.stack(truth, dim=1)[possible]
            if len(wanted):
                exact = language.conditionals(ids[possible], dtype=torch.float64)
                torch.testing.assert_close(exact.exp(), wanted, rtol=0, atol=1e-12)
                usual = language.conditionals(ids[possible])
                assert usual.dtype == torch.float32
                assert (usual.double().exp() - wanted).abs().sum(dim=-1).max() / 2 < 5e-7
                compared += len(wanted)
            for row in possible.logical_not().nonzero()[:20, 0].tolist():
                with pytest.raises(DataError, match="sentence 0"):
                    language.conditionals(ids[row : row + 1])
        assert compared > 0

    def test_several_masks_equal_enumeration(self, language: Language) -> None:
        for n in range(1, language.max_length + 1):
            joint, ids = table(language, n), strings(language, n)
            if not joint.any():
                continue
            for pattern in itertools.product([False, True], repeat=n):
                hidden = [t for t in range(n) if pattern[t]]
                mask = torch.tensor(pattern).expand(len(ids), n)
                if language.most_hidden is not None and len(hidden) > language.most_hidden:
                    with pytest.raises(DataError, match=f"sentence 0: .*{len(hidden)} positions"):
                        language.conditionals(ids, mask)
                    continue
                visible = joint.sum(dim=hidden, keepdim=True) if hidden else joint
                possible = visible.expand_as(joint).reshape(-1) > 0
                masked = torch.where(mask, language.mask_id, ids)
                found = language.conditionals(masked[possible], mask[possible], dtype=torch.float64)
                assert found[:, [t for t in range(n) if not pattern[t]]].isnan().all()
                for t in hidden:
                    wanted = spread(joint, hidden, t)[0][possible]
                    torch.testing.assert_close(found[:, t].exp(), wanted, rtol=0, atol=1e-12)
                if not possible.all():
                    first = int(possible.logical_not().nonzero()[0, 0])
                    good = int(possible.nonzero()[0, 0])
                    with pytest.raises(DataError, match="sentence 1"):
                        language.conditionals(masked[[good, first]], mask[[good, first]])

    def test_words_under_the_mask_do_not_matter(self, language: Language) -> None:
        ids = language.sample(32, seed=3)
        mask = torch.rand(ids.shape, generator=torch.Generator().manual_seed(0)) < 0.5
        if language.most_hidden is not None:
            mask &= mask.cumsum(dim=1) <= language.most_hidden
        hidden = mask & (ids != language.pad_id)
        a = language.conditionals(ids, mask)
        b = language.conditionals(torch.where(hidden, language.mask_id, ids), mask)
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)

    def test_conditionals_normalise(self, language: Language) -> None:
        ids = language.sample(200, seed=1)
        total = language.conditionals(ids).exp().sum(dim=-1)
        real = ids != language.pad_id
        assert (total[real] - 1).abs().max() < 1e-6
        assert total[~real].isnan().all()

    def test_cross_entropy_of_the_truth_is_the_entropy(self, language: Language) -> None:
        cross = entropy = 0.0
        for n in range(1, language.max_length + 1):
            joint, ids = table(language, n).reshape(-1), strings(language, n)
            ids, joint = ids[joint > 0], joint[joint > 0]
            if not len(ids):
                continue
            log_probs = language.conditionals(ids, dtype=torch.float64)
            cross -= (joint * log_probs.gather(2, ids[:, :, None])[:, :, 0].mean(dim=1)).sum().item()
            entropy += (joint * torch.special.entr(log_probs.exp()).sum(dim=2).mean(dim=1)).sum().item()
            torch.testing.assert_close(
                language.sentence_entropy(ids),
                torch.special.entr(log_probs.exp()).sum(dim=2).mean(dim=1),
                rtol=0,
                atol=1e-5,
            )
        assert abs(cross - entropy) < 1e-12
        estimate = language.entropy(4096, seed=5)
        assert estimate.n == 4096
        assert abs(estimate.value - entropy) <= 4.5 * estimate.standard_error + 1e-6

    def test_padding_and_order_do_not_matter(self, language: Language) -> None:
        ids = language.sample(64, seed=2)
        plain = language.conditionals(ids, dtype=torch.float64)
        wide = language.conditionals(padded(language, ids, ids.shape[1] + 3), dtype=torch.float64)
        assert wide[:, ids.shape[1] :].isnan().all()
        torch.testing.assert_close(wide[:, : ids.shape[1]], plain, rtol=0, atol=1e-12, equal_nan=True)
        order = torch.randperm(64, generator=torch.Generator().manual_seed(1))
        moved = language.conditionals(ids[order], dtype=torch.float64)
        torch.testing.assert_close(moved, plain[order], rtol=0, atol=1e-12, equal_nan=True)
        torch.testing.assert_close(language.log_prob(ids[order]), language.log_prob(ids)[order])
        torch.testing.assert_close(
            language.log_prob(padded(language, ids, ids.shape[1] + 3)), language.log_prob(ids)
        )

    def test_zero_probability_sentences_are_named(self, language: Language) -> None:
        n = language.max_length
        joint, ids = table(language, n).reshape(-1), strings(language, n)
        assert (language.log_prob(ids[joint == 0]) == -math.inf).all()
        likely = ids[int(joint.argmax())]
        for row in (joint == 0).nonzero()[:5, 0].tolist():
            batch = torch.stack([likely, likely, ids[row]])
            # Nothing is hidden, so the words themselves are the impossible context.
            with pytest.raises(DataError, match="sentence 2"):
                language.conditionals(batch, torch.zeros_like(batch, dtype=torch.bool))

    def test_malformed_sentences_are_named(self, language: Language) -> None:
        ids = language.sample(3, seed=0)
        for wrong in (language.vocabulary_size + 1, -1):
            bad = ids.clone()
            bad[1, 0] = wrong
            for call in (language.conditionals, language.log_prob):
                with pytest.raises(DataError, match="sentence 1"):
                    call(bad)
        torn = torch.tensor([[language.pad_id, 0]])
        for call in (language.conditionals, language.log_prob):
            with pytest.raises(DataError, match="sentence 0"):
                call(torn)
            with pytest.raises(DataError, match="integers"):
                call(ids.double())
        with pytest.raises(DataError, match="mask"):
            language.conditionals(ids, torch.ones(1, 1, dtype=torch.bool))

    def test_sampling_frequencies(self, language: Language) -> None:
        """Pearson's statistic over all strings at fixed n, standardised by its mean df and variance 2 df."""
        draws = 100_000
        ids = language.sample(draws, seed=11)
        expected, observed = [], []
        for n in range(1, language.max_length + 1):
            rows = ids[language.lengths(ids) == n, :n]
            place = (rows * language.vocabulary_size ** torch.arange(n - 1, -1, -1)).sum(dim=1)
            observed.append(torch.bincount(place, minlength=language.vocabulary_size**n))
            expected.append(table(language, n).reshape(-1) * draws)
        counts, means = torch.cat(observed).double(), torch.cat(expected)
        assert counts.sum() == draws
        assert (counts[means == 0] == 0).all()
        rare = means < 10
        counts = torch.cat([counts[~rare], counts[rare].sum()[None]])
        means = torch.cat([means[~rare], means[rare].sum()[None]])
        counts, means = counts[means > 10], means[means > 10]
        freedom = len(means) - 1
        assert freedom >= 1
        z = (((counts - means) ** 2 / means).sum().item() - freedom) / math.sqrt(2 * freedom)
        assert abs(z) < 4.5

    def test_task_splits_divide_the_language(self, language: Language) -> None:
        """A split with probability gives sentences of its side, whatever the slicing; one without says so."""
        sides: dict[bool, float] = {False: 0.0, True: 0.0}
        for n in range(1, language.max_length + 1):
            ids = strings(language, n)
            joint, test = language.log_prob(ids).exp(), in_test(ids, language.pad_id)
            for side in sides:
                sides[side] += joint[test == side].sum().item()
        splits: tuple[tuple[Split, bool], ...] = (("train", False), ("test", True))
        for split, side in splits:
            if sides[side] == 0:
                with pytest.raises(DataError, match=f"split '{split}'"):
                    draw_split(language, split, 1, seed=0)
                continue
            sample = draw_split(language, split, 60, seed=12, start=990)
            assert (in_test(sample.ids, language.pad_id) == side).all()
            parts = [
                draw_split(language, split, n, seed=12, start=start) for start, n in ((990, 25), (1015, 35))
            ]
            assert torch.equal(torch.cat([part.ids for part in parts]), sample.ids)
            for name in language.tasks:
                labels = [language.labels(name, part) for part in parts]
                assert torch.equal(torch.cat(labels), language.labels(name, sample))

    def test_batches_without_sentences(self, language: Language) -> None:
        ids = language.sample(1, seed=0)[:0]
        assert language.conditionals(ids).shape == (0, language.max_length, language.vocabulary_size)
        assert language.log_prob(ids).shape == (0,)

    def test_short_integers(self, language: Language) -> None:
        ids = language.sample(8, seed=3)
        positions = torch.zeros(8, dtype=torch.int64)
        for answer in (
            language.conditionals,
            language.log_prob,
            language.sentence_entropy,
            lambda ids: language.conditionals_at(ids, positions),
        ):
            torch.testing.assert_close(
                answer(ids.to(torch.int32)), answer(ids), rtol=0, atol=0, equal_nan=True
            )
            for dtype in (torch.int16, torch.uint8, torch.float32):
                with pytest.raises(DataError, match=f"ids must be integers .*{dtype}"):
                    answer(ids.to(dtype))

    def test_one_masked_position_a_sentence(self, language: Language) -> None:
        ids = language.sample(40, seed=6)
        lengths = language.lengths(ids)
        positions = (torch.arange(40) * 7) % lengths
        rows = torch.arange(40)
        torch.testing.assert_close(
            language.conditionals_at(ids, positions).exp(),
            language.conditionals(ids)[rows, positions].exp(),
            rtol=0,
            atol=1e-6,
        )
        for wrong in (-1, language.max_length):
            with pytest.raises(DataError, match=f"sentence 0: no word at position {wrong}"):
                language.conditionals_at(ids[:1], torch.tensor([wrong]))

    def test_one_masked_position_in_float64(self, language: Language) -> None:
        ids = language.sample(40, seed=6)
        positions = (torch.arange(40) * 7) % language.lengths(ids)
        found = language.conditionals_at(ids, positions, dtype=torch.float64)
        assert found.dtype == torch.float64
        exact = language.conditionals(ids, dtype=torch.float64)[torch.arange(40), positions]
        torch.testing.assert_close(found.exp(), exact.exp(), rtol=0, atol=1e-12)

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
    def test_other_dtypes_are_refused(self, language: Language, dtype: torch.dtype) -> None:
        ids = language.sample(2, seed=6)
        with pytest.raises(DataError, match="dtype must be"):
            language.conditionals(ids, dtype=dtype)
        with pytest.raises(DataError, match="dtype must be"):
            language.conditionals_at(ids, torch.zeros(2, dtype=torch.int64), dtype=dtype)

    def test_entropy_at_random_positions_is_unbiased(self, language: Language) -> None:
        every = language.entropy(4096, seed=7)
        one = language.entropy(4096, seed=8, positions="random")
        error = math.hypot(every.standard_error, one.standard_error)
        assert abs(every.value - one.value) <= 4.5 * error + 1e-6


def strings(language: Language, n: int) -> Tensor:
    """Return all strings of n words [V^n, n], the last word running fastest."""
    return torch.tensor(list(itertools.product(range(language.vocabulary_size), repeat=n)))


def table(language: Language, n: int) -> Tensor:
    """Return Pr(x) of all strings of n words, float64 [V, ..., V]."""
    ids = strings(language, n)
    return language.log_prob(ids).exp().view([language.vocabulary_size] * n)


def spread(joint: Tensor, hidden: list[int], t: int) -> tuple[Tensor, Tensor]:
    """Return Pr(x_t = . | words not hidden) of every string [V^n, V], and Pr(words not hidden) [V^n]."""
    n, V = joint.dim(), joint.shape[0]
    others = [d for d in hidden if d != t]
    kept = joint.sum(dim=others, keepdim=True) if others else joint
    total = kept.sum(dim=t, keepdim=True)
    rows = (kept / total).unsqueeze(n).transpose(t, n).expand([V] * (n + 1))
    return rows.reshape(-1, V), total.expand([V] * n).reshape(-1)


def padded(language: Language, ids: Tensor, width: int) -> Tensor:
    """Return `ids` with padding up to `width` words."""
    out = torch.full((len(ids), width), language.pad_id)
    out[:, : ids.shape[1]] = ids
    return out
