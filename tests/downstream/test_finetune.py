"""Fine-tuning beside Hugging Face's models, and beside a loop written out over padded batches."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor

from helpers import local_glue, local_texts
from raysweep.downstream.classifier import Classifier
from raysweep.downstream.finetune import DivergedError, FineTuned, Recipe, fine_tune, label_loss
from raysweep.downstream.tasks import task_groups
from raysweep.errors import DataError, RunFailedError
from raysweep.languages.corpus import Corpus, tokenizer
from raysweep.models import EncoderConfig, LSTMConfig, MaskedLM, from_huggingface, to_huggingface
from raysweep.models.dropout import Dropout
from raysweep.seeding import generator

V, T = 11, 8
#: Sentences have up to seven words, so that the sentence-level token fits in front of them.
LANGUAGE: Any = SimpleNamespace(vocabulary_size=V, pad_id=V, mask_id=V + 1, cls_id=V + 2, max_length=T)
CONFIGS: dict[str, tuple[type[Any], str, dict[str, Any]]] = {
    "pre": (EncoderConfig, "16/2/2/24", {"norm": "pre"}),
    "post": (EncoderConfig, "16/2/2/24", {"norm": "post"}),
    "lstm": (LSTMConfig, "16/2", {}),
}
FAST = Recipe(lr=1e-2, warmup_steps=10, epochs=10, batch_size=32, dropout=0.0)


def make(kind: str, dropout: float = 0.1) -> MaskedLM:
    cls, shape, fields = CONFIGS[kind]
    model: MaskedLM = cls(shape=shape, dropout=dropout, **fields).build(LANGUAGE, seed=3)
    noise = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn(p.shape, generator=noise)
    return model.eval()


def examples(n: int = 150, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return padded sentences of one to seven words, labelled by their first word's remainder by three."""
    draws = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, V, (n, T - 1), generator=draws)
    lengths = torch.randint(1, T, (n,), generator=draws)
    ids[torch.arange(T - 1) >= lengths[:, None]] = V
    return ids, ids[:, 0] % 3


def tuned(
    kind: str = "post", recipe: Recipe = FAST, pooling: Any = "cls", seed: int = 5, **given: Any
) -> FineTuned:
    ids, labels = examples()
    given = {"ids": ids, "labels": labels, "classes": 3, **given}
    return fine_tune(make(kind), recipe=recipe, pooling=pooling, seed=seed, **given)


def with_cls(ids: Tensor) -> Tensor:
    return F.pad(ids, (1, 0), value=V + 2)


def slow_losses(
    model: torch.nn.Module, scores: Callable[[Tensor], Tensor], labels: Tensor, recipe: Recipe, seed: int
) -> list[float]:
    """Return the losses of all steps: `scores` maps row numbers to logits, torch does the rest."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": recipe.weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps)
    order, losses = generator(seed, "order"), []
    total = recipe.epochs * -(-len(labels) // recipe.batch_size)
    for _ in range(recipe.epochs):
        for rows in torch.randperm(len(labels), generator=order).split(recipe.batch_size):
            step = len(losses) + 1
            falling = (total - max(step - 1, recipe.warmup_steps)) / (total - recipe.warmup_steps)
            for group in optimizer.param_groups:
                group["lr"] = recipe.lr * min(step / recipe.warmup_steps, 1, falling)
            z = scores(rows)
            loss = F.cross_entropy(z, labels[rows]) if z.shape[1] > 1 else F.mse_loss(z[:, 0], labels[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            torch.nn.utils.clip_grad_norm_(trained, recipe.clip_norm or float("inf"))
            optimizer.step()
            losses.append(loss.item())
    return losses


def first_classifier(kind: str, recipe: Recipe, pooling: Any, outputs: int, seed: int) -> Classifier:
    """Return the classifier that `fine_tune` starts from."""
    return Classifier(
        make(kind), outputs=outputs, longest=T - 1, pooling=pooling, head=recipe.head,
        dropout=recipe.dropout, generator=generator(seed, "head"),
    )  # fmt: skip


class TestHuggingFace:
    @pytest.mark.parametrize("kind", ["pre", "post"])
    def test_losses_are_those_of_a_sequence_classifier(self, kind: str, tmp_path: Path) -> None:
        import transformers

        found = tuned(kind)
        assert len(found.losses) == 50
        ours = first_classifier(kind, FAST, "cls", 3, seed=5)
        assert ours.dense is not None
        to_huggingface(make(kind), tmp_path)
        settings = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "num_labels": 3}
        other: Any
        if kind == "post":
            other = transformers.BertForSequenceClassification.from_pretrained(tmp_path, **settings)
            dense, out = other.bert.pooler.dense, other.classifier
        else:
            other = transformers.RobertaPreLayerNormForSequenceClassification.from_pretrained(
                tmp_path, **settings
            )
            dense, out = other.classifier.dense, other.classifier.out_proj
        dense.load_state_dict(ours.dense.state_dict())
        out.load_state_dict(ours.out.state_dict())
        # An encoder has no segment embeddings.
        other.base_model.embeddings.token_type_embeddings.requires_grad_(False)
        other.train()
        ids, labels = examples()

        def scores(rows: Tensor) -> Tensor:
            read = with_cls(ids[rows])
            z: Tensor = other(input_ids=read, attention_mask=(read != V).long()).logits
            return z

        wanted = slow_losses(other, scores, labels, FAST, seed=5)
        torch.testing.assert_close(found.losses, torch.tensor(wanted).double(), rtol=0, atol=1e-4)
        assert found.losses[-1] < 0.5 * found.losses[0]

    def test_a_folder_from_elsewhere_is_fine_tuned_as_itself(self, tmp_path: Path) -> None:
        """Its mean state under a linear head, with the words of its own model."""
        import transformers

        recipe = FAST.model_copy(update={"head": "linear", "schedule": "linear"})
        found = tuned("post", recipe, "mean")
        ours = first_classifier("post", recipe, "mean", 3, seed=5)
        to_huggingface(make("post"), tmp_path)
        body: Any = transformers.BertModel.from_pretrained(
            tmp_path, add_pooling_layer=False, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        body.embeddings.token_type_embeddings.requires_grad_(False)
        both = torch.nn.ModuleList([body, ours.out])
        ids, labels = examples()

        def scores(rows: Tensor) -> Tensor:
            real = (ids[rows] != V).long()
            states = body(input_ids=ids[rows], attention_mask=real).last_hidden_state * real[:, :, None]
            z: Tensor = ours.out(states.sum(dim=1) / real.sum(dim=1, keepdim=True))
            return z

        wanted = slow_losses(both, scores, labels, recipe, seed=5)
        torch.testing.assert_close(found.losses, torch.tensor(wanted).double(), rtol=0, atol=1e-4)

    def test_sentences_of_glue_are_those_of_its_own_tokenizer(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A BERT from elsewhere, its token in front as in pre-training, texts as transformers has them."""
        import transformers

        # At a larger rate, rounding of some thousand words grows beyond 1e-4 within the steps.
        recipe = FAST.model_copy(update={"lr": 2e-3})
        monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "cache"))
        folder = tmp_path / "bert"
        words = vocabulary(folder)
        torch.manual_seed(0)
        settings = transformers.BertConfig(
            vocab_size=len(words), hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
            intermediate_size=24, max_position_embeddings=40, pad_token_id=words.pad_token_id,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, num_labels=2,
        )  # fmt: skip
        pretrained = transformers.BertForMaskedLM(settings)
        with torch.no_grad():
            for p in pretrained.parameters():
                p += 0.2 * torch.randn(p.shape)
        pretrained.save_pretrained(folder)
        glue = local_glue.write(tmp_path / "sst2", "sst2", train=120)
        language = Corpus.open(
            str(local_texts.files()["jsonl"]), tokenizer=str(folder), length=24,
            tasks=[{"glue": "sst2", "source": str(glue)}],
        )  # fmt: skip
        model = from_huggingface(folder, language)
        (group,) = task_groups(language)
        given = group.examples("train", 120, seed=0)
        labels = given.labels["sst2"]
        assert recipe.pooling_of(model, cls=model.reads_cls, longest=24) == ("cls", None)
        found = fine_tune(model, given.ids, labels, classes=2, recipe=recipe, pooling="cls", seed=5)

        other: Any = transformers.BertForSequenceClassification.from_pretrained(folder, num_labels=2)
        ours = Classifier(
            model, outputs=2, longest=24, pooling="cls", head="bert", dropout=0.0,
            generator=generator(5, "head"),
        )  # fmt: skip
        assert ours.dense is not None
        other.bert.pooler.dense.load_state_dict(ours.dense.state_dict())
        other.classifier.load_state_dict(ours.out.state_dict())
        other.base_model.embeddings.token_type_embeddings.requires_grad_(False)
        other.train()
        cut = {"truncation": True, "max_length": 25}
        # Examples come in an order of their own: each is found by its text.
        texts = {
            tuple(words(row["sentence"], **cut)["input_ids"][1:]): row for row in local_glue.rows("sst2", 120)
        }
        rows = [texts[tuple(ids[ids != language.pad_id].tolist())] for ids in given.ids]
        assert [row["label"] for row in rows] == labels.tolist()

        def scores(picked: Tensor) -> Tensor:
            chosen = [rows[k]["sentence"] for k in picked.tolist()]
            z: Tensor = other(**words(chosen, padding=True, return_tensors="pt", **cut)).logits
            return z

        wanted = slow_losses(other, scores, labels, recipe, seed=5)
        torch.testing.assert_close(found.losses, torch.tensor(wanted).double(), rtol=0, atol=1e-4)


def vocabulary(folder: Path) -> Any:
    """Train BERT's tokenizer on local texts, write it into `folder`, and return it as transformers does."""
    import transformers

    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer.train(lambda: iter(local_texts.documents()), 300))
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "pad", "mask", "cls", "sep")}
    words = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **special)
    cls, sep = ((name, words.convert_tokens_to_ids(name)) for name in ("[CLS]", "[SEP]"))
    words.backend_tokenizer.post_processor = tokenizers.processors.BertProcessing(sep, cls)
    words.save_pretrained(folder)
    return words


@pytest.mark.parametrize("pooling", ["cls", "mean"])
@pytest.mark.parametrize("head", ["bert", "linear"])
def test_an_lstm_beside_its_modules(pooling: Any, head: Any) -> None:
    recipe = FAST.model_copy(update={"head": head})
    found = tuned("lstm", recipe, pooling)
    ours = first_classifier("lstm", recipe, pooling, 3, seed=5)
    ids, labels = examples()

    def scores(rows: Tensor) -> Tensor:
        read = with_cls(ids[rows]) if pooling == "cls" else ids[rows]
        states = ours.model.encode(read)
        words = read != V
        mean = (states * words[:, :, None]).sum(dim=1) / words.sum(dim=1, keepdim=True)
        r = states[:, 0] if pooling == "cls" else mean
        z: Tensor = ours.out(r if ours.dense is None else ours.dense(r).tanh())
        return z

    wanted = slow_losses(ours, scores, labels, recipe, seed=5)
    torch.testing.assert_close(found.losses, torch.tensor(wanted).double(), rtol=0, atol=1e-4)


def test_a_regression_is_on_squared_errors() -> None:
    recipe, targets = FAST.model_copy(update={"head": "linear"}), torch.linspace(0, 5, 150)
    found = tuned("post", recipe, "mean", labels=targets, classes=None)
    ours, (ids, _) = first_classifier("post", recipe, "mean", 1, seed=5), examples()

    def scores(rows: Tensor) -> Tensor:
        words = ids[rows] != V
        states = ours.model.encode(ids[rows]) * words[:, :, None]
        z: Tensor = ours.out(states.sum(dim=1) / words.sum(dim=1, keepdim=True))
        return z

    wanted = slow_losses(ours, scores, targets, recipe, seed=5)
    torch.testing.assert_close(found.losses, torch.tensor(wanted).double(), rtol=1e-4, atol=1e-4)
    assert found.scores(ids).shape == (150, 1)


@pytest.mark.parametrize("kind", list(CONFIGS))
def test_labels_are_learnt(kind: str) -> None:
    recipe = FAST.model_copy(update={"epochs": 20, "dropout": None})
    found = tuned(kind, recipe)
    ids, labels = examples(400, seed=1)
    assert (found.scores(ids).argmax(dim=1) == labels).double().mean() > 0.95


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_scores_do_not_depend_on_the_company(pooling: Any) -> None:
    found, (ids, _) = (
        tuned(pooling=pooling, recipe=FAST.model_copy(update={"epochs": 1, "dropout": 0.5})),
        examples(),
    )
    together = found.scores(ids)
    alone = torch.cat([found.scores(ids[k : k + 1]) for k in range(12)])
    torch.testing.assert_close(together[:12], alone, rtol=1e-5, atol=1e-5)
    assert found.classifier.training


def test_the_model_stays_as_it_was_and_its_head_is_not_trained() -> None:
    model = make("post")
    before = copy.deepcopy(model.state_dict())
    ids, labels = examples()
    state = torch.get_rng_state()
    found = fine_tune(model, ids, labels, classes=3, recipe=FAST, pooling="cls", seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(model.state_dict()[name], value) for name, value in before.items())
    assert model.dropout.p == 0.1
    after = found.classifier.model
    assert {p.data_ptr() for p in after.parameters()}.isdisjoint(p.data_ptr() for p in model.parameters())
    assert all(
        torch.equal(p, q) for p, q in zip(after.head_parameters(), model.head_parameters(), strict=True)
    )
    assert after.decoder.weight is after.token_embedding.weight
    assert not torch.equal(after.token_embedding.weight, model.token_embedding.weight)


def test_the_seed_decides_everything() -> None:
    recipe = FAST.model_copy(update={"epochs": 2, "dropout": 0.2})
    first, again, other = (tuned(recipe=recipe, seed=s) for s in (1, 1, 2))
    assert torch.equal(first.losses, again.losses)
    assert all(
        torch.equal(p, q)
        for p, q in zip(first.classifier.parameters(), again.classifier.parameters(), strict=True)
    )
    assert not torch.equal(first.losses, other.losses)


def test_dropout_is_the_models_own_unless_given() -> None:
    for given, rate in ((None, 0.1), (0.3, 0.3)):
        made = first_classifier("pre", FAST.model_copy(update={"dropout": given}), "cls", 3, seed=0)
        assert {m.p for m in made.modules() if isinstance(m, Dropout)} == {rate}


def test_the_default_is_the_recipe_of_the_paper() -> None:
    recipe = Recipe()
    assert (recipe.lr, recipe.warmup_steps, recipe.epochs, recipe.batch_size) == (1e-4, 200, 10, 128)
    rates = [recipe.algorithm().learning_rate(step, 1000) for step in (1, 200, 201, 600, 1000)]
    assert rates == pytest.approx([1e-4 / 200, 1e-4, 1e-4, 1e-4 * 401 / 800, 1e-4 / 800])
    assert [recipe.steps(n) for n in (1, 128, 129)] == [10, 10, 20]


def test_pooling_is_chosen_by_pre_training() -> None:
    model, auto = make("pre"), Recipe()
    assert auto.pooling_of(model, cls=True, longest=7) == ("cls", None)
    chosen, reason = auto.pooling_of(model, cls=False, longest=7)
    assert (chosen, "without the sentence-level token" in str(reason)) == ("mean", True)
    chosen, reason = auto.pooling_of(model, cls=True, longest=8)
    assert (chosen, "fill the model's 8 positions" in str(reason)) == ("mean", True)
    assert Recipe(pooling="cls").pooling_of(model, cls=False, longest=7) == ("cls", None)


class TestFailures:
    @pytest.mark.parametrize("fields", [{"lr": 1e30, "clip_norm": None}, {"lr": 1e38}])
    def test_divergence_names_its_step(self, fields: dict[str, Any]) -> None:
        recipe = FAST.model_copy(update={"warmup_steps": 0, **fields})
        with pytest.raises(DivergedError, match=r"step \d+: the loss of fine-tuning is not finite") as caught:
            tuned(recipe=recipe)
        assert 1 <= caught.value.step <= 50

    def test_divergence_in_the_last_update(self) -> None:
        recipe = FAST.model_copy(
            update={"warmup_steps": 0, "lr": 1e38, "epochs": 1, "batch_size": 150, "eps": 1e-30}
        )
        with pytest.raises(DivergedError) as caught:
            tuned(recipe=recipe.model_copy(update={"weight_decay": 1e10}))
        assert caught.value.step == 1

    def test_a_broken_model_is_not_fine_tuned(self) -> None:
        model, (ids, labels) = make("pre"), examples()
        with torch.no_grad():
            model.final_norm.weight[0] = float("nan")
        with pytest.raises(RunFailedError, match="the model's weights are not finite"):
            fine_tune(model, ids, labels, classes=3, recipe=FAST, pooling="mean", seed=0)

    def test_labels_must_be_classes(self) -> None:
        with pytest.raises(DataError, match="label 2 is none of 2 classes, 0 to 1"):
            tuned(classes=2)
        with pytest.raises(DataError, match="no training sentences"):
            tuned(ids=examples()[0][:0], labels=examples()[1][:0])

    def test_the_token_needs_a_place(self) -> None:
        ids, labels = examples()
        with pytest.raises(DataError, match="sentences of 8 words leave no place"):
            tuned(ids=with_cls(ids), labels=labels)

    @pytest.mark.parametrize(
        "fields",
        [
            {"lr": 0.0}, {"epochs": 0}, {"batch_size": 0}, {"warmup_steps": -1}, {"betas": (0.9, 1.0)},
            {"clip_norm": 0.0}, {"dropout": 1.0}, {"pooling": "max"}, {"head": "mlp"}, {"schedule": "step"},
        ],
    )  # fmt: skip
    def test_fields_must_make_sense(self, fields: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            Recipe.decode(fields)


def test_losses_of_both_kinds() -> None:
    z = torch.tensor([[1.0, 3.0], [0.0, 0.0]])
    assert label_loss(z, torch.tensor([1, 0])).item() == pytest.approx(
        (-z[0].log_softmax(0)[1] - z[1].log_softmax(0)[0]).item() / 2
    )
    assert label_loss(z[:, :1], torch.tensor([0.0, 2.0])).item() == pytest.approx((1 + 4) / 2)
