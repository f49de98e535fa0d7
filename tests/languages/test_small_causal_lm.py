"""Small causal LMs that learn a language: against enumeration, as folders, and to the byte."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import torch

from raysweep.errors import ConfigError
from raysweep.languages import CausalLM, CorpusConfig, HMMConfig, Language, PCFGConfig
from raysweep.languages.causal_lm.small import Learnt, _tokens, train_small
from raysweep.languages.spelled import word_names

TINY = {"width": 16, "layers": 1}


@pytest.fixture(scope="module")
def language() -> Language:
    """An HMM of sentences of three of six words, which can be enumerated."""
    return HMMConfig(states=4, vocabulary=6, length=3, blocks=2, concentration=0.3, tasks=(2,)).build()


@pytest.fixture(scope="module")
def trained(language: Language, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Learnt]:
    folder = tmp_path_factory.mktemp("small") / "model"
    return folder, train_small(language, folder, sentences=20_000, **TINY)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_causal_lm_loads_it_with_the_words_of_the_text(
    language: Language, trained: tuple[Path, Learnt]
) -> None:
    loaded = CausalLM.load(trained[0], keep=6, length=3)
    assert loaded.words == word_names(language)
    assert loaded.notes == ()
    ids = language.sample(5, seed=1)
    texts = [" ".join(word_names(language)[word] for word in row) for row in ids.tolist()]
    assert [loaded.text(row) for row in ids] == texts
    tokenizer = loaded._source.tokenizer
    first = len(tokenizer) - 6
    assert torch.equal(torch.tensor(tokenizer(texts)["input_ids"]), ids + first)
    # Words that it does not have are no words of the language.
    assert tokenizer(f"{texts[0]} nonsense")["input_ids"][-1] in loaded._source.special


def test_its_distance_from_the_language_is_that_of_enumeration(
    language: Language, trained: tuple[Path, Learnt]
) -> None:
    ids = torch.tensor(list(itertools.product(range(6), repeat=3)))
    true, own = language.log_prob(ids), CausalLM.load(trained[0], keep=6, length=3).log_prob(ids)
    possible = true.exp() > 0
    distance = float((true.exp() * (true - own))[possible].sum()) / 3
    excess, loss = trained[1].excess, trained[1].loss
    assert excess is not None
    assert abs(excess.value - distance) < 4 * excess.standard_error
    least = -float((true.exp() * true)[possible].sum()) / 3
    assert abs(loss.value - least - distance) < 4 * loss.standard_error
    # Uniform words would be this far away.
    uniform = torch.tensor(6.0).log().item() - least
    assert distance < 0.1 * uniform


def test_the_same_arguments_give_the_same_bytes(language: Language, tmp_path: Path) -> None:
    """On any number of threads, and whatever was drawn before."""
    threads = torch.get_num_threads()
    seen: list[tuple[int, int]] = []
    made = []
    for k in (1, 2):
        torch.set_num_threads(k)
        torch.manual_seed(k)
        before = torch.random.get_rng_state()
        try:
            train_small(
                language,
                tmp_path / str(k),
                sentences=300,
                seed=3,
                progress=lambda *at: seen.append(at),
                **TINY,
            )
            assert torch.get_num_threads() == k
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(torch.random.get_rng_state(), before)
        made.append(files(tmp_path / str(k)))
    assert made[0] == made[1]
    assert seen == 2 * [(0, 300), (128, 300), (256, 300), (300, 300)]
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(made[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2"]
    train_small(language, tmp_path / "other", sentences=300, seed=4, **TINY)
    assert files(tmp_path / "other")["model.safetensors"] != made[0]["model.safetensors"]


def test_a_row_goes_on_with_the_sentences_that_follow(tmp_path: Path) -> None:
    language = PCFGConfig(roots=2, layers=2, symbols=3, rules=4, words=6, vocabulary=12, stop=0.4).build()
    ids = language.sample(20, seed=1)
    sentences = [[word for word in row if word != 12] for row in ids.tolist()]
    assert len({*map(len, sentences)}) > 1
    wanted = []
    for k in range(20):
        text = [word for sentence in sentences[k:] + sentences for word in sentence]
        wanted.append([0, *(word + 3 for word in text[: language.max_length])])
    assert _tokens(language, ids, 3).tolist() == wanted
    learnt = train_small(language, tmp_path / "model", sentences=200, **TINY)
    assert learnt.excess is None
    assert learnt.loss.n == 4096


def test_what_makes_no_model_is_refused_before_anything_starts(language: Language, tmp_path: Path) -> None:
    def refused(message: str, language: Language = language, name: str = "new", **sizes: int) -> None:
        with pytest.raises(ConfigError, match=message):
            train_small(
                language, tmp_path / name, progress=lambda *at: pytest.fail("begun"),
                **{"sentences": 100, **TINY, **sizes},
            )  # fmt: skip

    refused(r"width: 40 is no multiple of 16", width=40)
    refused(r"sentences: 0, so there is nothing to learn", sentences=0)
    (tmp_path / "corpus").mkdir()
    corpus = CorpusConfig.example(tmp_path / "corpus").build()
    refused(r"a corpus is not; name the file of a pcfg or an hmm", corpus)
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "config.json").write_text("{}")
    refused(r"output: .*old already exists; name a new folder", name="old")
    assert files(tmp_path / "old") == {"config.json": b"{}"}
    assert not (tmp_path / "new").exists()
