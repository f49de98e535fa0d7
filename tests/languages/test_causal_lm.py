"""Causal LMs against plain forward passes of transformers: enumeration, architectures, loading, words."""

from __future__ import annotations

import functools
import itertools
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from pydantic import ValidationError
from torch import Tensor

from helpers import local_models
from raysweep.errors import ConfigError, DataError
from raysweep.languages import CausalLM, CausalLMConfig
from raysweep.languages.causal_lm import language as language_module
from raysweep.languages.causal_lm import sampling, vocabulary
from raysweep.languages.causal_lm.network import Network
from raysweep.seeding import uniforms

BOS = 0


def factors(folder: Path, language: CausalLM, ids: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """log p(x_s | bos, x_<s) [B, T] of sentences: one plain pass of the whole model over whole sentences."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    tokens = torch.cat([torch.full((len(ids), 1), language.bos), language.kept[ids]], dim=1)
    with torch.no_grad():
        logits = model(tokens, use_cache=False).logits[:, :-1, language.kept]
    return logits.double().log_softmax(-1).gather(2, ids[:, :, None])[:, :, 0]


def reforward(folder: Path, language: CausalLM, ids: Tensor, dtype: torch.dtype = torch.float64) -> Tensor:
    """Pr(x_t = . | x_-t) [B, T, K]: every candidate's whole sentence."""
    B, T, K = *ids.shape, language.vocabulary_size
    candidates = ids[:, None, None].repeat(1, T, K, 1)
    for t in range(T):
        candidates[:, t, :, t] = torch.arange(K)
    return factors(folder, language, candidates.view(-1, T), dtype).sum(1).view(B, T, K).softmax(-1)


def test_conditionals_equal_the_enumerated_joint() -> None:
    folder = local_models.random_opt(2)
    language = CausalLM.load(folder, keep=5, length=3)
    ids = torch.tensor(list(itertools.product(range(5), repeat=3)))
    joint = factors(folder, language, ids).sum(1).exp()
    assert abs(joint.sum() - 1) < 1e-12
    torch.testing.assert_close(language.log_prob(ids).exp(), joint, rtol=1e-12, atol=0)
    exact = language.conditionals(ids, dtype=torch.float64).exp()
    usual = language.conditionals(ids).double().exp()
    table = joint.view(5, 5, 5)
    for t in range(3):
        rows = (table / table.sum(dim=t, keepdim=True)).unsqueeze(3).transpose(t, 3).expand(5, 5, 5, 5)
        torch.testing.assert_close(exact[:, t], rows.reshape(-1, 5), rtol=0, atol=1e-12)
        assert (usual[:, t] - rows.reshape(-1, 5)).abs().sum(-1).max() / 2 < 5e-7


@pytest.mark.parametrize("elements", [1, 40 * 32, 100 * 32, 10**9])
def test_conditionals_equal_every_candidates_sentence(elements: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many candidates and sentences go into one pass."""
    folder = local_models.trained_opt()
    language = CausalLM.load(folder, keep=30, length=6)
    monkeypatch.setattr(language_module, "_PASS_ELEMENTS", {"cpu": elements})
    monkeypatch.setattr(language_module, "_LEAST_ROWS", 1)
    ids = language.sample(3, seed=1)
    wanted = reforward(folder, language, ids)
    found = language.conditionals(ids, dtype=torch.float64).exp()
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    usual = language.conditionals(ids).double().exp()
    assert (usual - wanted).abs().sum(-1).max() / 2 < 2e-6
    positions = torch.tensor([5, 0, 3])
    one = language.conditionals_at(ids, positions).double().exp()
    assert (one - wanted[torch.arange(3), positions]).abs().sum(-1).max() / 2 < 2e-6


def saved(model: Any, tmp_path: Path) -> Path:
    """Save a model beside the tokenizer of `random_opt`, which has ten tokens."""
    shutil.copytree(local_models.random_opt(), tmp_path / "model")
    for old in (tmp_path / "model").glob("model*"):
        old.unlink()
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


SMALL = {"vocab_size": 10, "bos_token_id": BOS, "eos_token_id": BOS, "pad_token_id": 1}
NARROW = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32}


def post_norm_opt() -> Any:
    """As OPT-350M is: embeddings narrower than the layers, normalised behind them."""
    return local_models.opt(10, word_embed_proj_dim=8, do_layer_norm_before=False, init_std=0.2)


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, initializer_range=0.3, **SMALL)
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    config = transformers.LlamaConfig(
        num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.3, **SMALL, **NARROW
    )
    return transformers.LlamaForCausalLM(config)


def gemma2() -> Any:
    config = transformers.Gemma2Config(
        num_key_value_heads=2,
        head_dim=8,
        final_logit_softcapping=2.0,
        sliding_window=3,
        initializer_range=0.3,
        **SMALL,
        **NARROW,
    )
    return transformers.Gemma2ForCausalLM(config)


def mamba() -> Any:
    config = transformers.MambaConfig(
        hidden_size=16, state_size=4, num_hidden_layers=2, initializer_range=0.3, **SMALL
    )
    return transformers.MambaForCausalLM(config)


@pytest.mark.parametrize(
    ("make", "slow"),
    [
        pytest.param(post_norm_opt, [], id="opt-350m"),
        pytest.param(gpt2, [], id="gpt2"),
        pytest.param(llama, [], id="llama"),
        pytest.param(gemma2, ["all of its vocabulary"], id="gemma2"),
        pytest.param(mamba, ["cannot be shared"], id="mamba"),
    ],
)
def test_other_architectures(
    make: Callable[[], Any], slow: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A model that cannot be read in the fast way is read in the slow one, and the log says so."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        folder = saved(make(), tmp_path)
    language = CausalLM.load(folder, keep=6, length=5)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("raysweep")]
    assert len(said) == len(slow)
    assert all(part in line for part, line in zip(slow, said, strict=True))
    assert language.notes == tuple(said)
    ids = language.sample(8, seed=1)
    wanted = reforward(folder, language, ids, torch.float32)
    torch.testing.assert_close(language.conditionals(ids).exp().double(), wanted, rtol=0, atol=2e-6)
    model = factors(folder, language, ids, torch.float32).sum(1)
    torch.testing.assert_close(language.log_prob(ids), model, rtol=0, atol=2e-5)


def test_the_words_are_chosen_by_a_bounded_number_of_sentences() -> None:
    """`validate` drew 2,147,483,648 of them."""
    CausalLMConfig(samples=100_000)
    with pytest.raises(ValidationError, match=r"samples\n.*less than or equal to 100000"):
        CausalLMConfig(samples=100_001)


def test_a_model_that_sees_what_comes_later_is_refused(tmp_path: Path) -> None:
    config = transformers.BertConfig(max_position_embeddings=32, **SMALL, **NARROW)
    folder = saved(transformers.BertLMHeadModel(config), tmp_path)
    with pytest.raises(DataError, match="not causal"):
        CausalLM.load(folder, keep=4, length=3)


def written(folder: Path, language: CausalLM, numbers: list[int], *, seed: int) -> Tensor:
    """Draw sentences one at a time by plain float64 passes over the whole text so far, without a cache."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    rows = []
    for number in numbers:
        u = uniforms(seed, "causal_lm", torch.tensor([number]), language.max_length)[0]
        tokens, words = [language.bos], []
        for t in range(language.max_length):
            with torch.no_grad():
                logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
            probs = logits[language.kept].softmax(-1)
            word, edge = 0, 0.0
            for mass in probs.tolist():
                edge += mass
                if u[t] < edge:
                    break
                word += 1
            words.append(word)
            tokens.append(int(language.kept[word]))
        rows.append(words)
    return torch.tensor(rows)


@pytest.mark.parametrize("room", [1, 100_000, 1 << 28])
def test_sentences_are_those_of_the_exact_model_one_by_one(
    room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is drawn together: one sentence, a few, or all."""
    folder = local_models.trained_opt()
    language = CausalLM.load(folder, keep=100, length=8)
    monkeypatch.setattr(sampling, "_BYTES", {"cpu": room})
    numbers = torch.tensor([5, 3, 999_999_999_999, 3, *range(60, 100)])
    found = language.sample_at(numbers, seed=4)
    near = numbers < 100
    assert torch.equal(found[near], hundred()[numbers[near]])
    assert torch.equal(found[~near], written(folder, language, [999_999_999_999], seed=4))
    assert torch.equal(language.sample(7, seed=4, start=62), found[6:13])
    assert len(torch.unique(found, dim=0)) == len(numbers) - 1
    assert language.sample(0, seed=4, start=30).shape == (0, 8)


@functools.cache
def hundred() -> Tensor:
    """Return `written` of the sentences 0 .. 99 of a trained model."""
    folder = local_models.trained_opt()
    return written(folder, CausalLM.load(folder, keep=100, length=8), list(range(100)), seed=4)


class Rounded(Network):
    """A network whose logits are off by `error`, as those of another device or of half precision are."""

    error = 0.0

    def _forward(self, tokens: Tensor, states: Any, last: int) -> tuple[Tensor, Any]:
        logits, states = super()._forward(tokens, states, last)
        noise = torch.randn(logits.shape, generator=torch.Generator().manual_seed(tokens.numel()))
        return logits + self.error * noise, states


@pytest.mark.parametrize("error", [1e-5, 1e-3, 0.1, torch.nan])
def test_rounding_changes_no_sentence(error: float, caplog: pytest.LogCaptureFixture) -> None:
    """Words near an edge are drawn again exactly, though the sampler knew nothing of such errors before."""
    language = CausalLM.load(local_models.trained_opt(), keep=100, length=8)
    exact = Network(language._source, language.kept).moved(torch.device("cpu"), torch.float64)
    rounded = Rounded(language._source, language.kept)
    sampler = sampling.Sampler(rounded, exact, language.bos, 8)
    small = sampler.tolerance
    assert 1e-8 < small < 1e-4
    rounded.error = error
    u = uniforms(4, "causal_lm", torch.arange(100), 8)
    with torch.no_grad():
        found = sampler.draw(u)
        plain = sampling._left_to_right(
            rounded, 0, u, lambda t, prefix: sampling._place(sampling._edges(prefix.logits), u[:, t])
        )
    assert torch.equal(found, hundred())
    if error >= 1e-3:
        # Without the exact passes, some would have been others.
        assert not torch.equal(plain, found)
        assert sampler.tolerance > 10 * small
    assert ("many words are drawn again" in caplog.text) == (error != 1e-5)


def test_few_words_are_drawn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    language = CausalLM.load(local_models.trained_opt(), keep=100, length=8)
    sampler = language._sampler()
    again = []
    read = sampler._exact.read
    monkeypatch.setattr(sampler._exact, "read", lambda tokens: again.append(len(tokens)) or read(tokens))
    language.sample(4000, seed=0)
    assert 0 < sum(again) < 0.02 * 4000 * 8


def test_the_bytes_of_a_sentence_are_those_of_its_cache() -> None:
    language = CausalLM.load(local_models.trained_opt(), keep=100, length=8)
    network = language._network(torch.device("cpu"), torch.float32)
    with torch.no_grad():
        prefix = network.read(torch.zeros(3, 8, dtype=torch.int64))
    held = sum(t.nbytes for layer in prefix.states.layers for t in (layer.keys, layer.values))
    assert sampling.sentence_bytes(network, 8) == held / 3 + 24 * 100


def test_words_are_texts_of_tokens() -> None:
    language = CausalLM.load(local_models.trained_opt(), keep=200, length=10)
    assert len(language.words) == 200
    for ids in language.sample(3, seed=0):
        assert language.text(ids) == "".join(language.words[word] for word in ids)
    assert local_models.BOS not in language.words


def test_words_the_model_writes_most() -> None:
    """Of one word a sentence, the frequencies are the model's own probabilities behind bos."""
    folder = local_models.random_opt(3)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(torch.tensor([[BOS]])).logits[0, 0]
    logits[:2] = -torch.inf  # bos and padding
    wanted = logits.topk(4).indices.sort().values
    assert torch.equal(CausalLM.load(folder, keep=4, length=1, samples=1).kept, wanted)
    # Of two words, half of the weight is on the second: a mean over the first.
    language = CausalLM.load(folder, keep=8, length=2)
    pairs = torch.tensor(list(itertools.product(range(8), repeat=2)))
    joint = factors(folder, language, pairs).sum(1).exp().view(8, 8)
    common = (joint.sum(0) + joint.sum(1)).argsort(descending=True)
    assert torch.equal(
        CausalLM.load(folder, keep=4, length=2, samples=4096).kept, language.kept[common[:4]].sort().values
    )


def test_words_are_chosen_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path))
    folder = local_models.random_opt()
    first = CausalLM.load(folder, keep=4, length=3, seed=7)

    def fail(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(vocabulary, "draw_block", fail)
    assert torch.equal(CausalLM.load(folder, keep=4, length=3, seed=7).kept, first.kept)
    with pytest.raises(AssertionError, match="drawn again"):
        CausalLM.load(folder, keep=4, length=3, seed=8)


def test_a_cache_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAYSWEEP_CACHE", str(tmp_path / "file"))
    assert len(CausalLM.load(local_models.random_opt(), keep=4, length=3).kept) == 4
    assert "computed again next time" in caplog.text


def test_words_of_a_corpus(tmp_path: Path) -> None:
    """a .. h are tokens 2 .. 9; of equally frequent ones the lower id is kept."""
    text = tmp_path / "text.txt"
    text.write_text("h h h\n\nb b g g\nc c </s> </s> </s> </s>\n", encoding="utf-8")

    def load(keep: int) -> CausalLM:
        return CausalLM.load(local_models.random_opt(), keep=keep, keep_by="corpus", path=str(text), length=2)

    assert load(3).words == ("b", "c", "h")
    assert load(4).words == ("b", "c", "g", "h")
    with pytest.raises(DataError, match=r"path: only 4 different tokens .* fewer than keep: 5"):
        load(5)
    text.write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(DataError, match="no text file"):
        load(3)


def copy(tmp_path: Path, name: str = "copy") -> Path:
    return Path(shutil.copytree(local_models.random_opt(), tmp_path / name))


def as_torch_file(folder: Path) -> None:
    """Replace the weights by the same ones in PyTorch's own format."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")


def test_the_fingerprint_is_of_the_content(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"keep": 4, "length": 3}
    first = CausalLM.load(local_models.random_opt(), **fields)
    elsewhere = copy(tmp_path)
    assert CausalLM.load(elsewhere, **fields).fingerprint == first.fingerprint
    as_torch_file(elsewhere)
    again = CausalLM.load(elsewhere, **fields)
    assert again.fingerprint == first.fingerprint
    assert torch.equal(again.sample(20, seed=1), first.sample(20, seed=1))
    for other in ({"keep": 5}, {"length": 2}, {"bos": "<pad>"}, {"model": str(local_models.random_opt(1))}):
        data = {"model": str(local_models.random_opt()), **fields, **other}
        assert CausalLMConfig.decode(data).build().fingerprint != first.fingerprint
    settings = json.loads((elsewhere / "config.json").read_text())
    (elsewhere / "config.json").write_text(json.dumps(settings | {"activation_function": "gelu"}))
    assert CausalLM.load(elsewhere, **fields).fingerprint != first.fingerprint


class Bomb:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.target,))


def test_weights_that_would_run_code_are_refused(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    as_torch_file(folder)
    weights = torch.load(folder / "pytorch_model.bin", weights_only=True)
    torch.save({**weights, "bomb": Bomb(tmp_path / "gone")}, folder / "pytorch_model.bin")
    with pytest.raises(DataError, match="no causal LM that can be loaded"):
        CausalLM.load(folder, keep=4, length=3)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "gone"), protocol=2))
    with pytest.raises(DataError, match="no causal LM that can be loaded"):
        CausalLM.load(folder, keep=4, length=3)
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model": "/nowhere/opt"}, "model: there is no folder '/nowhere/opt'"),
        (
            {"model": "./nowhere"},
            "no folder './nowhere'.*`raysweep language model GRAMMAR.yaml",
        ),
        ({"revision": "main"}, "revision: 'main' belongs to a model on the hub"),
        ({"keep": 9}, "keep: 9 words, but .* has 8 tokens that are not special; keep at most 8"),
        ({"length": 33}, "length: 33 words, but .* reads 32 positions"),
        ({"bos": "nonsense"}, "bos: 'nonsense' is no token of"),
        ({"path": "x.txt"}, "path: belongs to keep_by 'corpus', not 'samples'"),
        ({"keep_by": "corpus"}, "path: missing"),
        ({"keep_by": "corpus", "path": "/nowhere.txt"}, "path: there is no file '/nowhere.txt'"),
        ({"keeps": 3}, "keeps: unknown field — did you mean 'keep'"),
    ],
)
def test_fields_that_do_not_fit(fields: dict[str, Any], message: str) -> None:
    data: dict[str, Any] = {"model": str(local_models.random_opt()), "keep": 4, "length": 3, **fields}
    with pytest.raises(ConfigError, match=message):
        CausalLM.load(**data)


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("tokenizer*"):
        file.unlink()


def with_other_weights(folder: Path) -> None:
    shutil.copy(local_models.trained_opt() / "model.safetensors", folder)


def with_some_weights(folder: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    state = {k: v for k, v in model.state_dict().items() if "layers.1" not in k and "lm_head" not in k}
    model.save_pretrained(folder, state_dict=state)


def with_torn_weights(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:1000])


def with_an_image_model(folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "vit"}))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_config, "no config.json in"),
        (without_weights, "no weights"),
        (without_tokenizer, "no tokenizer"),
        (with_other_weights, "not those of|no causal LM"),
        (with_some_weights, "not those of a OPTForCausalLM: 16 missing"),
        (with_torn_weights, "no causal LM that can be loaded"),
        (with_an_image_model, "no causal LM that can be loaded"),
    ],
)
def test_folders_that_cannot_serve(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    folder = copy(tmp_path)
    damage(folder)
    with pytest.raises(DataError, match=f"model: .*({message})"):
        CausalLM.load(folder, keep=4, length=3)


def test_a_model_without_a_beginning_needs_one(tmp_path: Path) -> None:
    folder = copy(tmp_path)
    for name in ("config.json", "tokenizer_config.json", "generation_config.json"):
        data = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(data | {"bos_token_id": None, "bos_token": None}))
    with pytest.raises(ConfigError, match=r"bos: .* set bos to one of its tokens, such as '</s>'"):
        CausalLM.load(folder, keep=4, length=3)
    fields: dict[str, Any] = {"keep": 4, "length": 3}
    named = CausalLM.load(folder, bos="</s>", **fields)
    assert torch.equal(
        named.sample(9, seed=0), CausalLM.load(local_models.random_opt(), **fields).sample(9, seed=0)
    )


def test_a_hub_that_cannot_be_reached() -> None:
    with pytest.raises(
        DataError, match=r"hub cannot be reached from here; copy the model .* give its folder"
    ):
        CausalLM.load("raysweep-tests/no-such-model", keep=4, length=3)
    with pytest.raises(DataError, match="no folder 'no such model' and no such model on"):
        CausalLM.load("no such model")


def serve(hub: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """Let the hub be a folder of this machine; return what is asked of it."""
    asked: list[list[str]] = []

    def snapshot_download(name: str, **options: Any) -> str:
        assert (name, options["revision"]) == ("some/opt", "v1")
        asked.append(options["allow_patterns"])
        there = tmp_path / "downloaded"
        there.mkdir(exist_ok=True)
        for pattern in options["allow_patterns"]:
            for file in hub.glob(pattern):
                shutil.copy(file, there)
        return str(there)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_weights_of_the_hub_are_safetensors_where_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub = copy(tmp_path, "hub")
    (hub / "pytorch_model.bin").write_bytes(b"never read")
    asked = serve(hub, monkeypatch, tmp_path)
    language = CausalLM.load("some/opt", revision="v1", keep=4, length=3)
    local = CausalLM.load(local_models.random_opt(), keep=4, length=3)
    assert language.fingerprint == local.fingerprint
    assert len(asked) == 1
    assert not (tmp_path / "downloaded" / "pytorch_model.bin").exists()


def test_weights_of_the_hub_are_pytorchs_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As models of the time before safetensors are stored."""
    hub = copy(tmp_path, "hub")
    as_torch_file(hub)
    asked = serve(hub, monkeypatch, tmp_path)
    language = CausalLM.load("some/opt", revision="v1", keep=4, length=3)
    local = CausalLM.load(local_models.random_opt(), keep=4, length=3)
    assert language.fingerprint == local.fingerprint
    assert len(asked) == 2


def test_a_language_moves_to_its_ids() -> None:
    """A second precision or device is a copy beside the first, made once."""
    language = CausalLM.load(local_models.random_opt(), keep=4, length=3)
    before = language.sample(5, seed=0)
    language.log_prob(before)
    assert torch.equal(language.to("cpu").sample(5, seed=0), before)
    assert language.conditionals(before).dtype == torch.float32


@pytest.mark.gpu
def test_conditionals_on_a_gpu() -> None:
    language = CausalLM.load(local_models.trained_opt(), keep=100, length=8)
    ids = language.sample(4, seed=0)
    there = language.conditionals(ids.cuda())
    assert there.device.type == "cuda"
    torch.testing.assert_close(there.cpu().exp(), language.conditionals(ids).exp(), rtol=0, atol=1e-5)


@pytest.mark.gpu
def test_sentences_of_a_gpu_are_those_of_the_cpu() -> None:
    folder = local_models.trained_opt()
    language = CausalLM.load(folder, keep=100, length=8)
    here = language.sample(20_000, seed=3)
    there = language.to("cuda").sample(20_000, seed=3)
    assert there.device.type == "cpu"
    assert torch.equal(there, here)
    numbers = [19_999, 0, 77]
    assert torch.equal(language.sample_at(torch.tensor(numbers), seed=3), here[numbers])
    assert torch.equal(here[:50], written(folder, language, list(range(50)), seed=3))
