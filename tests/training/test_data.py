"""Batches: what step s trains on, for any number of workers and from any step on."""

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from helpers import training_fakes as fakes
from raysweep import seeding
from raysweep.errors import ConfigError
from raysweep.languages import Dyck
from raysweep.models import EncoderConfig
from raysweep.models.batch import Batch
from raysweep.sweep.identity import training_content
from raysweep.training import PretrainConfig, World
from raysweep.training.data import batches, replaced, some_positions


def drawn(mask: str | float, *, first: int = 1, last: int = 9, world: World | None = None):
    config = PretrainConfig(steps=100, batch_size=5, mask=mask)
    found = list(batches(fakes.Walk(), config, seed=3, first=first, last=last, world=world))
    assert len(found) == last - first + 1
    return found


@pytest.mark.parametrize("mask", ["one", 0.5])
def test_step_s_trains_on_its_own_sentences(mask) -> None:
    language = fakes.Walk()
    for step, batch in enumerate(drawn(mask), start=1):
        ids = language.sample(5, seed=seeding.derive(3, "train"), start=(step - 1) * 5)
        hidden = batch.ids == language.mask_id
        assert torch.equal(batch.ids[~hidden], ids[~hidden])
        assert not bool((ids[hidden] == language.pad_id).any())
        at = batch.index + torch.arange(5) * 6 if batch.single else batch.index
        assert torch.equal(hidden.flatten().nonzero()[:, 0], at)
        assert torch.equal(ids.flatten()[at], batch.targets)
        assert batch.count == len(batch.targets)
        assert torch.equal(batch.lengths, language.lengths(ids))
        assert batch.rows == range(len(batch.ids))


@pytest.mark.parametrize("mask", ["one", 0.5])
@pytest.mark.parametrize("chunk", [1, 11, 16384])
def test_batches_depend_on_neither_chunks_nor_the_first_step(
    mask, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drawn(mask)
    monkeypatch.setattr(fakes.Walk, "drawn_at_once", chunk)
    for expected, found in zip(whole[3:], drawn(mask, first=4), strict=True):
        assert torch.equal(expected.ids, found.ids)
        assert torch.equal(expected.index, found.index)
        assert torch.equal(expected.targets, found.targets)


def test_a_language_says_how_many_sentences_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    draw = fakes.Walk.sample_latent

    def spy(self, n, **options):
        asked.append(n)
        return draw(self, n, **options)

    monkeypatch.setattr(fakes.Walk, "sample_latent", spy)
    monkeypatch.setattr(fakes.Walk, "drawn_at_once", 12)
    drawn("one")
    assert asked == [10, 10, 10, 10, 5]


@pytest.mark.parametrize("mask", ["one", 0.5])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_workers_share_a_batch(mask, size: int) -> None:
    shares = [drawn(mask, world=World(rank, size)) for rank in range(size)]
    for whole, *parts in zip(drawn(mask), *shares, strict=True):
        assert torch.equal(torch.cat([p.ids for p in parts]), whole.ids)
        assert torch.equal(torch.cat([p.targets for p in parts]), whole.targets)
        assert torch.equal(torch.cat([p.lengths for p in parts]), whole.lengths)
        assert {p.count for p in parts} == {whole.count}
        assert [r for p in parts for r in p.rows] == list(range(5))
        for part in parts:
            if not part.single:
                at = (part.ids == fakes.Walk().mask_id).flatten().nonzero()[:, 0]
                assert torch.equal(part.index, at)


@pytest.mark.parametrize("mask", ["one", 0.5])
@pytest.mark.parametrize("sentences", [None, 12])
def test_a_worker_draws_its_own_rows_of_sentences_of_one_length(
    mask, sentences: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PretrainConfig(steps=100, batch_size=5, mask=mask, sentences=sentences)
    language = Dyck(length=6)
    whole = list(batches(language, config, seed=3, first=1, last=9))
    drawn = []
    draw = Dyck.sample_at

    def spy(self: Dyck, numbers: torch.Tensor, *, seed: int) -> torch.Tensor:
        drawn.append(len(numbers))
        return draw(self, numbers, seed=seed)

    monkeypatch.setattr(Dyck, "sample_at", spy)
    for rank in range(3):
        drawn.clear()
        world = World(rank, 3)
        rows = world.rows(5)
        parts = list(batches(language, config, seed=3, first=1, last=9, world=world))
        assert sum(drawn) == 9 * len(range(5)[rows])
        for batch, part in zip(whole, parts, strict=True):
            assert torch.equal(part.ids, batch.ids[rows])
            assert torch.equal(part.lengths, batch.lengths[rows])
            assert (part.count, part.rows) == (batch.count, batch.rows[rows])
            shares = [line for line in by_sentence(batch) if line[0] in part.rows]
            assert by_sentence(part) == shares


def finite(sentences: int, size: int, *, last: int, mask="one", world: World | None = None, first: int = 1):
    config = PretrainConfig(steps=100, batch_size=size, mask=mask, sentences=sentences)
    return list(batches(fakes.Walk(), config, seed=3, first=first, last=last, world=world))


def unmasked(batch: Batch) -> list[tuple[int, ...]]:
    """Return the sentences of a batch with one masked word each."""
    return [tuple(row) for row in batch.ids.scatter(1, batch.index[:, None], batch.targets[:, None]).tolist()]


@pytest.mark.parametrize("mask", ["one", 0.5])
@pytest.mark.parametrize("size", [1, 4, 5, 13])
def test_epochs_over_a_finite_set_do_not_depend_on_the_split(
    mask, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 60 // size
    whole = finite(13, size, last=steps, mask=mask)
    for workers in (w for w in (1, 2, 3) if w <= size):
        shares = [finite(13, size, last=steps, mask=mask, world=World(r, workers)) for r in range(workers)]
        for batch, *parts in zip(whole, *shares, strict=True):
            assert torch.equal(torch.cat([p.ids for p in parts]), batch.ids)
            assert torch.equal(torch.cat([p.targets for p in parts]), batch.targets)
    monkeypatch.setattr(fakes.Walk, "drawn_at_once", 9)
    for batch, again in zip(whole[2:], finite(13, size, last=steps, mask=mask, first=3), strict=True):
        assert torch.equal(batch.ids, again.ids)
        assert torch.equal(batch.index, again.index)


def test_a_finite_set_is_the_same_for_all_batch_sizes_and_has_fresh_masks() -> None:
    sentences = [tuple(row) for row in fakes.Walk().sample(13, seed=seeding.derive(3, "train")).tolist()]
    orders = []
    for size in (1, 4, 13):
        found = finite(13, size, last=78 // size + 1)
        rows = [row for batch in found for row in unmasked(batch)][:78]
        orders.append((rows, [int(at) for batch in found for at in batch.index][:78]))
        for epoch in range(6):
            assert Counter(rows[13 * epoch : 13 * epoch + 13]) == Counter(sentences)
    assert orders[0] == orders[1] == orders[2]
    rows, positions = orders[0]
    pairs = list(zip(rows, positions, strict=True))
    assert len({tuple(sorted(pairs[k : k + 13])) for k in range(0, 78, 13)}) == 6


@pytest.mark.parametrize("mask", ["one", 0.5])
def test_the_first_epoch_is_that_of_fresh_sentences(mask) -> None:
    for fresh, one in zip(drawn(mask, last=4), finite(20, 5, last=4, mask=mask), strict=True):
        assert torch.equal(fresh.ids, one.ids)
        assert torch.equal(fresh.index, one.index)


def test_sets_that_make_no_sense() -> None:
    for sentences, message in (
        (0, "greater than 0"),
        (-1, "greater than 0"),
        (7, "7 sentences do not fill a batch of 8; use at least 8, or lower batch_size to 7"),
    ):
        with pytest.raises(ValidationError, match=message):
            PretrainConfig(steps=1, batch_size=8, sentences=sentences)
    assert PretrainConfig(steps=1, batch_size=8, sentences=8).content()["sentences"] == 8
    assert "sentences" not in PretrainConfig(steps=1, batch_size=8).content()


def test_more_sentences_than_a_corpus_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fakes.Walk, "distinct", 1234)
    config = PretrainConfig(steps=1, batch_size=8, sentences=1235)
    message = "1,235 are asked for, the language has 1,234 for training; ask for no more"
    assert config.problems(fakes.Walk()) == [("sentences", message)]
    with pytest.raises(ConfigError, match=f"pretrain.sentences: {message}"):
        next(batches(fakes.Walk(), config, seed=0, first=1, last=1))
    assert PretrainConfig(steps=1, batch_size=8, sentences=1234).problems(fakes.Walk()) == []


def by_sentence(batch: Batch) -> list[tuple[int, list[int], int, list[tuple[int, int]]]]:
    """Return (number, words as seen, length, [(position, hidden word)]) of every sentence of a batch."""
    width = batch.ids.shape[1]
    hidden: list[list[tuple[int, int]]] = [[] for _ in batch.ids]
    for k, (at, target) in enumerate(zip(batch.index.tolist(), batch.targets.tolist(), strict=True)):
        row, position = (k, at) if batch.single else divmod(at, width)
        hidden[row].append((position, target))
    rows = zip(batch.ids.tolist(), batch.lengths.tolist(), hidden, strict=True)
    return [(row, *sentence) for row, sentence in zip(batch.rows, rows, strict=True)]


@pytest.mark.parametrize("mask", ["one", 0.5])
@pytest.mark.parametrize("sentences", [1, 2, 3, 4, 13, 100])
def test_the_parts_of_a_batch_are_the_batch(mask, sentences: int) -> None:
    config = PretrainConfig(steps=3, batch_size=26, mask=mask)
    for whole in batches(fakes.Walk(), config, seed=3, first=1, last=3, world=World(1, 2)):
        parts = whole.split(sentences)
        sizes = [len(part.ids) for part in parts]
        assert len(parts) == -(-13 // sentences)
        assert max(sizes) <= sentences
        assert max(sizes) - min(sizes) <= 1
        assert {(part.count, part.single) for part in parts} == {(whole.count, whole.single)}
        assert [line for part in parts for line in by_sentence(part)] == by_sentence(whole)


def test_parts_of_no_sentence_are_refused() -> None:
    with pytest.raises(ValueError, match="parts of 0 sentences; use at least 1"):
        drawn("one")[0].split(0)


@pytest.mark.parametrize("mask", ["one", 0.5])
def test_gradients_of_the_parts_add_up_to_that_of_the_whole(mask) -> None:
    language = fakes.Walk()
    model = EncoderConfig(shape="8/2/2/16", dropout=0.0).build(language, seed=0).double()
    config = PretrainConfig(steps=1, batch_size=13, mask=mask)
    [whole] = batches(language, config, seed=3, first=1, last=1)

    def gradient(parts: list[Batch]) -> tuple[list[torch.Tensor], float]:
        model.zero_grad()
        total = 0.0
        for part in parts:
            logits = (model if part.single else model.logits_at)(part.ids, part.index)
            loss = F.cross_entropy(logits, part.targets, reduction="sum") / part.count
            loss.backward()
            total += loss.item()
        return [p.grad for p in model.parameters()], total

    expected, loss = gradient([whole])
    for sentences in (1, 5, 12):
        found, total = gradient(whole.split(sentences))
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)
        assert total == pytest.approx(loss, rel=1e-12)


def test_one_position_is_uniform() -> None:
    n, length = 60_000, 6
    positions = seeding.one_position(1, torch.arange(n), torch.full((n,), length))
    counts = Counter(positions.tolist())
    assert set(counts) == set(range(length))
    # Binomial standard deviation of a count; five of them.
    bound = 5 * (n / length * (1 - 1 / length)) ** 0.5
    assert all(abs(count - n / length) < bound for count in counts.values())


@pytest.mark.parametrize(("rate", "expected"), [(0.15, [1, 1, 1, 1, 1, 1]), (0.5, [1, 1, 2, 2, 2, 3])])
def test_a_rate_marks_a_rounded_number_of_words_uniformly(rate: float, expected: list[int]) -> None:
    n, width = 12_000, 6
    lengths = torch.arange(n) % width + 1
    marked = some_positions(lengths, width, rate, seed=1, sentences=torch.arange(n))
    for length, count in enumerate(expected, start=1):
        rows = marked[lengths == length]
        assert bool((rows.sum(dim=1) == count).all())
        assert not bool(rows[:, length:].any())
        share = rows[:, :length].double().mean(dim=0)
        p = count / length
        assert bool(((share - p).abs() < 5 * (p * (1 - p) / len(rows)) ** 0.5 + 1e-12).all())


def test_masks_belong_to_sentences() -> None:
    lengths = torch.full((50,), 6)
    at = torch.arange(50)
    whole = some_positions(lengths, 6, 0.4, seed=1, sentences=at)
    assert torch.equal(some_positions(lengths[7:9], 6, 0.4, seed=1, sentences=at[7:9]), whole[7:9])
    assert not torch.equal(some_positions(lengths, 6, 0.4, seed=2, sentences=at), whole)


GOOD = {"steps": 100, "batch_size": 4}


def test_milestones_default_to_the_last_step() -> None:
    assert PretrainConfig.decode(GOOD).milestones == (100,)
    assert PretrainConfig.decode({**GOOD, "milestones": None}).milestones == (100,)
    assert PretrainConfig.decode({**GOOD, "milestones": [10, 100]}).milestones == (10, 100)
    assert PretrainConfig.decode({**GOOD, "milestones": [0, 100]}).milestones == (0, 100)
    decoded = PretrainConfig.decode({**GOOD, "mask": 0.15})
    assert PretrainConfig.decode(decoded.encode()) == decoded


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("milestones", [10, 200], "200 lies past the last step, 100; drop it, or raise steps to 200"),
        ("milestones", [10, 50], r"nothing would be kept of the training after step 50; end with 100"),
        ("milestones", [50, 10, 100], "must be ascending from 0 or more"),
        ("milestones", [50, 50, 100], "must be ascending from 0 or more"),
        ("milestones", [-1, 100], "must be ascending from 0 or more"),
        ("milestones", ["10", 100], "valid integer"),
        ("milestones", 100, "valid array"),
        ("mask", 0.0, "0.0 is neither 'one' nor a rate between 0 and 1"),
        ("mask", 1.5, "1.5 is neither"),
        ("mask", "two", "'two' is neither"),
        ("mask", True, "True is neither"),
        ("steps", 0, "greater than 0"),
        ("batch_size", -3, "greater than 0"),
        ("checkpoint_every", 0, "greater than 0"),
        ("step", 7, "Extra inputs"),
    ],
)
def test_a_wrong_value_is_one_error_at_its_field(field: str, value: object, message: str) -> None:
    with pytest.raises(ValidationError, match=message) as caught:
        PretrainConfig.decode({**GOOD, field: value})
    assert [error["loc"][0] for error in caught.value.errors()] == [field]
    assert len(caught.value.errors()) == 1


def test_words_are_replaced_as_in_bert() -> None:
    """80 % mask token, 10 % a uniform word, 10 % the word itself, of the marked words alone; z-tests."""
    language, n = fakes.Walk(max_length=8), 20_000
    ids = language.sample(n, seed=4)
    sentences = torch.arange(n)
    marked = some_positions(language.lengths(ids), 8, 0.5, seed=1, sentences=sentences)
    new = replaced(ids, marked, language, seed=1, sentences=sentences)
    assert torch.equal(new[~marked], ids[~marked])
    before, after = ids[marked], new[marked]
    total, V = len(before), language.vocabulary_size
    counts = {
        0.8: int((after == language.mask_id).sum()),
        # A word drawn uniformly is the same one in one of V cases.
        0.1 + 0.1 / V: int((after == before).sum()),
        0.1 * (1 - 1 / V): int(((after != before) & (after < V)).sum()),
    }
    assert sum(counts.values()) == total
    for p, count in counts.items():
        assert abs(count - p * total) < 4.5 * (p * (1 - p) * total) ** 0.5
    other = after[(after != before) & (after < V)]
    # The walk's words are uniform, so the drawn ones that differ from them are.
    for word in range(V):
        p = 1 / V
        assert abs(int((other == word).sum()) - p * len(other)) < 4.5 * (p * (1 - p) * len(other)) ** 0.5


@pytest.mark.parametrize("mask", ["one", 0.5])
def test_replacing_changes_what_is_seen_and_nothing_else(mask) -> None:
    def run(replace: str, **where):
        config = PretrainConfig(steps=100, batch_size=5, mask=mask, replace=replace)
        return list(batches(fakes.Walk(), config, seed=3, **{"first": 1, "last": 40, **where}))

    plain, bert = run("mask"), run("bert")
    for a, b in zip(plain, bert, strict=True):
        assert torch.equal(a.index, b.index)
        assert torch.equal(a.targets, b.targets)
        assert (a.count, a.single) == (b.count, b.single)
        hidden = a.ids == fakes.Walk().mask_id
        assert torch.equal(a.ids[~hidden], b.ids[~hidden])
    assert any(not torch.equal(a.ids, b.ids) for a, b in zip(plain, bert, strict=True))
    for whole, late in zip(bert[17:], run("bert", first=18), strict=True):
        assert torch.equal(whole.ids, late.ids)
    shares = [run("bert", world=World(rank, 3)) for rank in range(3)]
    for whole, *parts in zip(bert, *shares, strict=True):
        assert torch.equal(torch.cat([p.ids for p in parts]), whole.ids)


def test_the_replacement_is_part_of_an_identity() -> None:
    def content(**fields: str):
        pretrain = PretrainConfig.decode({**GOOD, **fields}).encode()
        common = {"model": {}, "algorithm": {}, "trains": True, "depends_on_steps": False}
        return training_content(fingerprint="f", pretrain=pretrain, **common)["pretrain"]

    assert content() == content(replace="mask")
    assert content()["replace"] == "mask"
    assert content(replace="bert") == content() | {"replace": "bert"}
