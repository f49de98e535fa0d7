"""Folders of Hugging Face's, written and read: logits against AutoModelForMaskedLM's own."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from raysweep.errors import ConfigError
from raysweep.models import (
    Encoder,
    EncoderConfig,
    LSTMConfig,
    enlarge,
    from_huggingface,
    to_huggingface,
)
from raysweep.models.pretrained import HuggingFaceConfig

V = 11
LANGUAGE: Any = SimpleNamespace(vocabulary_size=V, pad_id=V, mask_id=V + 1, cls_id=V + 2, max_length=7)
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
#: A language whose words are the tokens of the tokenizer below.
TEXT: Any = SimpleNamespace(
    vocabulary_size=20,
    pad_id=20,
    mask_id=21,
    cls_id=22,
    max_length=7,
    text=lambda ids: " ".join(WORDS[k] for k in ids.tolist()),
)


def shaken(model: Any, scale: float = 0.3) -> Any:
    """Return the model in evaluation mode, none of its parameters special."""
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += scale * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def make(norm: str = "pre", shape: str = "12/3/2/20", **fields: Any) -> Encoder:
    model = EncoderConfig(shape=shape, norm=norm, **fields).build(LANGUAGE, seed=4)
    assert isinstance(model, Encoder)
    found: Encoder = shaken(model)
    return found


def sentences(language: Any = LANGUAGE, first: int = 0, n: int = 14) -> Tensor:
    """Return sentences [n, 7] of every length, padded, with a mask in each."""
    generator = torch.Generator().manual_seed(2)
    ids = torch.randint(first, language.vocabulary_size, (n, 7), generator=generator)
    lengths = torch.arange(n) % 7 + 1
    ids[torch.arange(7) >= lengths[:, None]] = language.pad_id
    positions = (torch.rand(n, generator=generator) * lengths).long()
    return ids.scatter(1, positions[:, None], language.mask_id)


def open_folder(folder: Path) -> Any:
    """Open a folder as anybody would."""
    import transformers

    return transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()


def logits(model: Encoder, ids: Tensor) -> Tensor:
    with torch.no_grad():
        return model.eval().head(model.encode(ids))


class TestExport:
    @pytest.mark.parametrize("norm", ["pre", "post"])
    @pytest.mark.parametrize("fields", [{}, {"vocabulary": "faithful"}, {"layer_norm_eps": 1e-3}])
    def test_anybody_gets_our_logits(self, norm: str, fields: dict[str, Any], tmp_path: Path) -> None:
        model = make(norm, **fields)
        state = torch.get_rng_state()
        to_huggingface(model, tmp_path)
        assert torch.equal(torch.get_rng_state(), state)
        assert (tmp_path / "model.safetensors").is_file()
        other = open_folder(tmp_path)
        name = {"pre": "RobertaPreLayerNormForMaskedLM", "post": "BertForMaskedLM"}[norm]
        assert type(other).__name__ == name
        ids = sentences()
        real = ids != V
        with torch.no_grad():
            found = other(input_ids=ids, attention_mask=real.long()).logits
        expected = logits(model, ids)
        torch.testing.assert_close(found[real], expected[real], rtol=0, atol=1e-5)
        assert expected[real].std() > 0.1
        assert other.config.pad_token_id == V

    @pytest.mark.parametrize("norm", ["pre", "post"])
    def test_a_round_trip_changes_no_bit(self, norm: str, tmp_path: Path) -> None:
        model = make(norm, vocabulary="faithful")
        to_huggingface(model, tmp_path)
        again = from_huggingface(tmp_path, LANGUAGE)
        assert again.training
        assert (again.shape, again.norm, again.max_length) == (model.shape, norm, 7)
        state = again.state_dict()
        assert all(torch.equal(state[name], tensor) for name, tensor in model.state_dict().items())

    def test_words_between_spaces(self, tmp_path: Path) -> None:
        import transformers

        words = [f"w{k}" for k in range(V)]
        model = make()
        to_huggingface(model, tmp_path, words=words)
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(tmp_path)
        batch = tokenizer(["w3 [MASK] w10", "w0"], padding=True, return_tensors="pt")
        assert batch["input_ids"].tolist() == [[3, V + 1, 10], [0, V, V]]
        found = open_folder(tmp_path)(**batch).logits
        expected = logits(model, batch["input_ids"])
        torch.testing.assert_close(found[0], expected[0], rtol=0, atol=1e-5)
        torch.testing.assert_close(found[1, 0], expected[1, 0], rtol=0, atol=1e-5)
        assert tokenizer.decode([3, 10]) == "w3 w10"

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["a"] * V, "takes 11 different names without spaces"),
            (["a b", *(f"w{k}" for k in range(V - 1))], "without spaces"),
            (["[MASK]", *(f"w{k}" for k in range(V - 1))], "'\\[MASK\\]' is the name of a special token"),
        ],
    )
    def test_names_must_serve(self, words: list[str], message: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=message):
            to_huggingface(make(), tmp_path / "out", words=words)
        assert not (tmp_path / "out").exists()

    def test_what_the_format_cannot_hold_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="have 2 epsilons"):
            to_huggingface(enlarge(make(), "24/6/2/40"), tmp_path)
        lstm = LSTMConfig(shape="8/1").build(LANGUAGE, seed=0)
        with pytest.raises(ConfigError, match="a model of type LSTM cannot be exported"):
            to_huggingface(lstm, tmp_path)


def foreign(kind: str, folder: Path, *, tokenizer: bool = True, rows: int = 20, **settings: Any) -> Path:
    """Save a small random model of transformers with its tokenizer, as its users do."""
    import tokenizers
    import transformers

    padding = 0
    common: dict[str, Any] = {
        "vocab_size": rows,
        "hidden_size": 12,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "intermediate_size": 20,
        "max_position_embeddings": 9,
        "type_vocab_size": 2,
        "layer_norm_eps": 1e-6,
        "pad_token_id": padding,
        **settings,
    }
    model: Any = {
        "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**common)),
        "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**common)),
        "roberta-prelayernorm": lambda: transformers.RobertaPreLayerNormForMaskedLM(
            transformers.RobertaPreLayerNormConfig(**common)
        ),
    }[kind]()
    shaken(model).save_pretrained(folder)
    if tokenizer:
        made = tokenizers.Tokenizer(
            tokenizers.models.WordLevel({word: k for k, word in enumerate(WORDS)}, unk_token="[UNK]")
        )
        made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=made,
            unk_token="[UNK]",
            pad_token="[PAD]",
            mask_token="[MASK]",
            cls_token="[CLS]",
        ).save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class TestImport:
    def test_both_texts_of_a_pair_are_in_the_first_segment(self, tmp_path: Path) -> None:
        folder = foreign("bert", tmp_path / "m")
        model, theirs = from_huggingface(folder, TEXT), open_folder(folder)
        # A [SEP] B [SEP]
        ids = torch.tensor([[5, 6, 3, 7, 8, 9, 3]])
        with torch.no_grad():
            expected = theirs(input_ids=ids, token_type_ids=torch.zeros_like(ids)).logits
            other = theirs(input_ids=ids, token_type_ids=torch.tensor([[0, 0, 0, 1, 1, 1, 1]])).logits
        found = logits(model, ids)[..., :20]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
        assert (found - other).abs().max() > 0.1

    @pytest.mark.parametrize("kind", ["bert", "roberta", "roberta-prelayernorm"])
    @pytest.mark.parametrize("rows", [20, 24])
    def test_logits_are_the_folders(self, kind: str, rows: int, tmp_path: Path) -> None:
        folder = foreign(kind, tmp_path / "m", rows=rows)
        model = from_huggingface(folder, TEXT, dropout=0.2)
        assert (str(model.shape), model.dropout.p) == ("12/3/2/20", 0.2)
        assert model.norm == ("pre" if kind.endswith("norm") else "post")
        assert model.max_length == (9 if kind == "bert" else 8)
        assert model.total_vocabulary == 24
        ids = sentences(TEXT, first=5)
        real = ids != TEXT.pad_id
        theirs = ids.clone()
        theirs[ids == TEXT.pad_id], theirs[ids == TEXT.mask_id] = 0, 4
        with torch.no_grad():
            expected = open_folder(folder)(input_ids=theirs, attention_mask=real.long()).logits[real]
        found = logits(model, ids)[real]
        torch.testing.assert_close(found[:, :20], expected[:, :20], rtol=0, atol=1e-5)
        assert expected.std() > 0.1
        if rows == 20:
            # The copies of special tokens have no part in the conditionals.
            torch.testing.assert_close(
                found.log_softmax(-1)[:, :20], expected.log_softmax(-1), rtol=0, atol=1e-5
            )
        cls = model.encode(torch.tensor([[TEXT.cls_id, 7]]))
        torch.testing.assert_close(cls, model.encode(torch.tensor([[2, 7]])), rtol=0, atol=0)

    def test_it_can_be_trained_on(self, tmp_path: Path) -> None:
        model = from_huggingface(foreign("bert", tmp_path / "m"), TEXT, dropout=0.0)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        ids = sentences(TEXT, first=5)
        rows, at = torch.arange(len(ids)), (ids == TEXT.mask_id).long().argmax(1)
        losses = []
        for _ in range(20):
            loss = -model(ids, at).log_softmax(-1)[rows, 7].mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        assert losses[-1] < 0.2 * losses[0]

    def test_a_configuration_is_its_content_and_not_its_place(self, tmp_path: Path) -> None:
        folder = foreign("roberta", tmp_path / "one")
        shutil.copytree(folder, tmp_path / "two")
        first, second = (HuggingFaceConfig(path=str(tmp_path / name)) for name in ("one", "two"))
        assert first.content() == second.content()
        assert first.problems(TEXT) == []
        model = first.build(TEXT, seed=0)
        assert sum(p.numel() for p in model.parameters()) == first.parameters(TEXT)
        changed = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(changed | {"layer_norm_eps": 1e-3}))
        assert HuggingFaceConfig(path=str(folder)).content() != first.content()
        with pytest.raises(ConfigError, match="has other content than when this run was configured"):
            first.build(TEXT, seed=0)
        # What is stored is read without the folder.
        shutil.rmtree(tmp_path / "two")
        assert HuggingFaceConfig.decode(second.encode()).content() == second.content()
        assert first.label == "one"
        assert HuggingFaceConfig(path=str(folder), dropout=0.0).label == "one-dropout0"

    def test_a_folder_that_holds_no_model_is_an_error_at_its_field(self, tmp_path: Path) -> None:
        with pytest.raises(ValidationError, match=r"there is no config\.json in") as caught:
            HuggingFaceConfig(path=str(tmp_path))
        assert [error["loc"] for error in caught.value.errors()] == [("path",)]
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(ValidationError, match="there are no weights in"):
            HuggingFaceConfig(path=str(tmp_path))
        with pytest.raises(ConfigError, match="there is no folder"):
            from_huggingface(tmp_path / "nowhere", TEXT)
        with pytest.raises(ConfigError, match="there is no folder"):
            HuggingFaceConfig(path=str(tmp_path / "nowhere")).build(TEXT, seed=0)

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"hidden_act": "relu"}, "its hidden_act is 'relu'; an encoder's is 'gelu'"),
            ({"is_decoder": True}, "its is_decoder is True"),
            ({"tokenizer": False}, "there is no tokenizer, so the mask token is unknown"),
            ({"max_position_embeddings": 6}, "reads 6 positions, sentences of the language have up to 7"),
            ({"rows": 16}, "its tokenizer has 20 tokens, but its embedding 16 rows"),
        ],
    )
    def test_what_does_not_fit_is_refused(
        self, settings: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        folder = foreign("bert", tmp_path / "m", **settings)
        with pytest.raises(ConfigError, match=message):
            from_huggingface(folder, TEXT)

    def test_the_words_must_be_the_languages(self, tmp_path: Path) -> None:
        folder = foreign("bert", tmp_path / "m")
        [(field, message)] = HuggingFaceConfig(path=str(folder)).problems(LANGUAGE)
        assert field == "path"
        assert message == (
            "the model has 20 words, the language 11; use a corpus with the model's own tokenizer "
            f"(language.tokenizer: {folder})"
        )
        to_huggingface(make(), tmp_path / "ours")
        with pytest.raises(ConfigError, match="has 11 words, the language 20; use the language it was"):
            from_huggingface(tmp_path / "ours", TEXT)

    def test_words_of_another_tokenizer_are_refused(self, tmp_path: Path) -> None:
        folder = foreign("bert", tmp_path / "m")
        other = SimpleNamespace(**vars(TEXT) | {"text": lambda ids: TEXT.text(ids).replace("k", "q")})
        with pytest.raises(
            ConfigError, match="word 15 is 'k' to its tokenizer, but 'q' in the language; use a"
        ):
            from_huggingface(folder, other)

    def test_other_models_are_refused(self, tmp_path: Path) -> None:
        import transformers

        config = transformers.GPT2Config(vocab_size=20, n_embd=12, n_layer=1, n_head=3)
        transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
        with pytest.raises(ConfigError, match="'gpt2' is not a known type of encoder"):
            from_huggingface(tmp_path / "gpt2", TEXT)
        foreign("bert", tmp_path / "body")
        body = transformers.BertModel.from_pretrained(tmp_path / "body")
        body.save_pretrained(tmp_path / "body")
        with pytest.raises(ConfigError, match="save the model with its masked-LM head"):
            from_huggingface(tmp_path / "body", TEXT)
