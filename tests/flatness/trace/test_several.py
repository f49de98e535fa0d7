"""Several masked positions a sentence, and the models of transformers."""

import pytest
import torch

from raysweep.errors import ConfigError, DataError
from raysweep.flatness import HuggingFaceMaskedLM, fisher_trace
from raysweep.flatness.trace.control import Control
from raysweep.flatness.trace.fisher import input_traces
from raysweep.languages.quiet import quiet
from raysweep.models.lstm import LSTMConfig

LENGTH = 5


def dense_trace(model, logits, row, mask):
    """Return Σ over masked positions of Tr J_tᵀ(diag p_t − p_t p_tᵀ)J_t by parameter, of one sentence."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    total = torch.zeros(len(parameters), dtype=torch.float64)
    for t in mask.nonzero()[:, 0].tolist():
        z = logits(row)[t]
        p = z.detach().double().softmax(0)
        middle = torch.diag(p) - torch.outer(p, p)
        rows = [torch.autograd.grad(c, parameters, retain_graph=True, allow_unused=True) for c in z]
        for k, parameter in enumerate(parameters):
            zero = torch.zeros_like(parameter)
            j = torch.stack([(zero if g[k] is None else g[k]).flatten() for g in rows]).double()
            total[k] += torch.trace(j.T @ middle @ j)
    return total


def sentences_masked(make_ids, n, rate):
    """Return sentences with none to all words masked beside the first, as a mask [n, T]."""
    ids, _ = make_ids(n, LENGTH)
    mask = torch.rand(ids.shape, generator=torch.Generator().manual_seed(4)) < rate
    mask[:, 0] = True
    return ids, mask & (ids != 5)


def with_gaps(mask):
    """Return the marked positions [n, T], −1 behind the last."""
    slots = torch.full(mask.shape, -1)
    for i, row in enumerate(mask):
        found = row.nonzero()[:, 0]
        slots[i, : len(found)] = found
    return slots


@pytest.fixture(scope="module")
def sentences(make_ids):
    return sentences_masked(make_ids, 10, 0.4)


@pytest.mark.parametrize("kind", ["pre", "post", "lstm"])
def test_sum_over_positions_is_the_dense_one(make_model, sentences, kind):
    if kind == "lstm":
        model = LSTMConfig(shape="6/2").build(make_model(length=LENGTH), seed=1).double().eval()
    else:
        model = make_model(kind, length=LENGTH).eval()
    ids, mask = sentences
    masked = ids.masked_fill(mask, 6)
    traces = input_traces(model, ids, mask, vectors="exact", batch=4)
    assert traces.method == "ghost norms"
    assert traces.weights.tolist() == mask.sum(dim=1).tolist()

    def logits(row):
        return model.head(model.encode(row[None])[0])

    for i in range(len(ids)):
        length = int((ids[i] != 5).sum())
        truth = dense_trace(model, logits, masked[i, :length], mask[i, :length])
        torch.testing.assert_close(traces.values[i], truth, rtol=1e-9, atol=1e-12)
    estimate = fisher_trace(model, ids, mask, vectors="exact")
    assert estimate.value == pytest.approx(traces.values.sum().item() / mask.sum().item(), rel=1e-12)


@pytest.mark.parametrize("vectors", ["rademacher", "gaussian", "label"])
def test_random_vectors_are_unbiased_for_the_sum(make_model, sentences, vectors):
    model = make_model(length=LENGTH)
    ids, mask = sentences
    exact = input_traces(model, ids, mask, vectors="exact").values.sum(dim=1)
    many = input_traces(
        model, ids.repeat(300, 1), mask.repeat(300, 1), vectors=vectors, seed=6, batch=500
    ).values.sum(dim=1).view(300, len(ids))  # fmt: skip
    pooled = many.mean(dim=1)
    z = (pooled.mean() - exact.mean()) / (pooled.std() / 300**0.5)
    assert abs(z) < 4
    if vectors != "label":
        assert (many.var(dim=0) / exact.square()).max() < 2.5


def test_gaps_have_no_part_in_the_control(make_model, make_ids, monkeypatch):
    """z-test of the mean against exact vectors, which counting gaps fails by 23 standard errors."""
    model = make_model(length=LENGTH, noise=0.1)
    ids, mask = sentences_masked(make_ids, 32, 0.2)
    slots = with_gaps(mask)
    assert (slots < 0).sum() > 50
    exact = fisher_trace(model, ids, slots, vectors="exact").value
    many = {"ids": ids.repeat(20, 1), "positions": slots.repeat(20, 1), "draws": 2, "seed": 6}
    right = fisher_trace(model, **many)
    assert right.standard_error < right.plain_standard_error
    assert abs(right.value - exact) < 4 * right.pool_standard_error

    statistics = Control.statistics

    def heedless(self, logits, hidden, v, real=None):
        return statistics(self, logits, hidden, v, None if real is None else torch.ones_like(real))

    monkeypatch.setattr(Control, "statistics", heedless)
    wrong = fisher_trace(model, **many)
    assert abs(wrong.value - exact) > 12 * wrong.pool_standard_error


def test_vectors_do_not_depend_on_how_many_positions_others_have(make_model, sentences):
    model = make_model(length=LENGTH)
    ids, mask = sentences
    whole = input_traces(model, ids, mask, seed=1)
    for k in range(0, 10, 5):
        part = input_traces(model, ids[k : k + 5], mask[k : k + 5], seed=1, start=k, batch=2)
        torch.testing.assert_close(part.values, whole.values[k : k + 5], rtol=1e-10, atol=1e-12)
    alone = torch.zeros_like(mask)
    alone[:, 0] = True
    one = input_traces(model, ids, alone, seed=1)
    same = input_traces(model, ids, torch.zeros(10, dtype=torch.long), seed=1)
    torch.testing.assert_close(one.values, same.values, rtol=1e-10, atol=1e-12)


def test_positions_may_be_numbers_with_gaps(make_model, sentences):
    model = make_model(length=LENGTH)
    ids, mask = sentences
    a, b = (input_traces(model, ids, x, seed=3) for x in (mask, with_gaps(mask)))
    torch.testing.assert_close(a.values, b.values, rtol=1e-10, atol=1e-12)
    assert torch.equal(a.keys, b.keys)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (torch.tensor([[0, 2], [1, -1]]), "sentence 1: masked position 1 is not one of its 1"),
        (torch.tensor([[0, 0], [0, -1]]), "sentence 0: a position twice"),
        (torch.tensor([[0, -1], [-1, -1]]), "sentence 1: no position"),
        (torch.zeros(2, 4, dtype=torch.bool), "several"),
        (torch.zeros(2, 3, dtype=torch.bool), "sentence 0: no position"),
    ],
)
def test_malformed_positions(make_model, positions, message):
    ids = torch.tensor([[0, 1, 2], [3, 5, 5]])
    with pytest.raises(DataError, match=message):
        fisher_trace(make_model(), ids, positions)


SMALL = {
    "vocab_size": 12,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 12,
}


@pytest.fixture(scope="module", params=["bert", "roberta", "untied"])
def theirs(request):
    import transformers

    torch.manual_seed(0)
    with quiet():
        if request.param == "roberta":
            config = transformers.RobertaConfig(**SMALL, pad_token_id=1, initializer_range=0.4)
            return transformers.RobertaForMaskedLM(config).double(), 3
        tied = request.param == "bert"
        config = transformers.BertConfig(**SMALL, initializer_range=0.4, tie_word_embeddings=tied)
        return transformers.BertForMaskedLM(config).double(), 4


def test_transformers_encoders_as_they_are(theirs):
    model, mask_id = theirs
    wrapped = HuggingFaceMaskedLM(model, mask_id=mask_id)
    pad = model.config.pad_token_id
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 12, (6, LENGTH), generator=generator)
    ids[torch.arange(LENGTH) >= torch.tensor([5, 4, 3, 2, 5, 5])[:, None]] = pad
    mask = (torch.rand(ids.shape, generator=generator) < 0.4) & (ids != pad)
    mask[:, 1] = True
    masked = ids.masked_fill(mask, mask_id)

    def logits(row):
        return model(input_ids=row[None], attention_mask=torch.ones_like(row)[None]).logits[0]

    model.eval()
    traces = input_traces(wrapped, ids, mask, vectors="exact")
    assert traces.method == "ghost norms", traces.reason
    assert sorted({name.removeprefix("model.") for name in traces.names}) == sorted(
        name for name, _ in model.named_parameters()
    )
    for i in (0, 3):
        length = int((ids[i] != pad).sum())
        truth = dense_trace(model, logits, masked[i, :length], mask[i, :length])
        assert ((traces.values[i] - truth).abs() / truth.sum()).max() < 1e-9
    estimate = fisher_trace(wrapped, ids, mask[:, 1].long(), vectors="exact")
    assert list(estimate.per_group) == ["embedding", "layers.0", "layers.1", "head"]


def test_models_without_a_head_are_refused():
    import transformers

    with quiet():
        model = transformers.BertModel(transformers.BertConfig(**SMALL))
    with pytest.raises(ConfigError, match="AutoModelForMaskedLM"):
        HuggingFaceMaskedLM(model, mask_id=4)
