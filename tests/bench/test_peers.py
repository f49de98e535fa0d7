"""Peers are oracles too: on small grammars and models all of them give raysweep's conditionals."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raysweep.bench import peers
from raysweep.bench.exact import pcfg
from raysweep.bench.exact.distance import total_variation
from raysweep.bench.harness import UnavailableError
from raysweep.bench.peers import inside_outside, inside_pass
from raysweep.bench.peers.hmm import Dynamax, HMMLearn
from raysweep.bench.peers.hutchinson import Curvlinops
from raysweep.bench.peers.nltk_sampling import NLTKSampler
from raysweep.bench.peers.torch_struct import TorchStruct
from raysweep.languages import HMM, PCFG

LANGUAGES = {
    "layered": {"layers": 3, "symbols": 4, "rules": 6, "stop": 0.3, "words": 8, "vocabulary": 12, "roots": 3},
    "dense": {"structure": "dense", "nonterminals": 5, "vocabulary": 7, "max_length": 6},
}


@pytest.fixture(params=LANGUAGES)
def language(request: pytest.FixtureRequest) -> PCFG:
    return PCFG.random(seed=4, **LANGUAGES[request.param])


def sentences(language: PCFG, shortest: int = 1) -> list[torch.Tensor]:
    """Return sentences of all lengths, a tensor [B, n] for each length n."""
    groups = pcfg.by_length(language, language.sample(100, seed=2))
    assert len(groups) >= 4
    return [words[:4] for words in groups if words.shape[1] >= shortest]


def truth(language: PCFG, words: torch.Tensor) -> np.ndarray:
    found: np.ndarray = language.conditionals(words, dtype=torch.float64).exp().numpy()
    return found


def test_an_inside_pass_for_every_word(language: PCFG) -> None:
    for words in sentences(language):
        found = inside_pass.conditionals(language.grammar, list(words.numpy()))
        np.testing.assert_allclose(np.stack(found), truth(language, words), rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize(("dtype", "rtol", "atol"), [(np.float64, 1e-10, 1e-15), (np.float32, 1e-5, 1e-8)])
@pytest.mark.parametrize("engine", [inside_outside.by_rules, inside_outside.by_pairs])
def test_numpy_inside_outside(
    language: PCFG, engine: Any, dtype: type[np.floating], rtol: float, atol: float
) -> None:
    for words in sentences(language):
        found = engine(language.grammar, words.numpy(), dtype)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, truth(language, words), rtol=rtol, atol=atol)


def test_torch_struct(language: PCFG) -> None:
    try:
        peer = TorchStruct(language.grammar, floor=pcfg.FLOOR)
    except UnavailableError as error:
        pytest.skip(f"of the bench extra: {error}")
    for words in sentences(language, shortest=2):
        np.testing.assert_allclose(
            peer.conditionals(words).numpy(), truth(language, words), rtol=1e-3, atol=1e-6
        )
    ids = language.sample(40, seed=3)
    ids = ids[language.lengths(ids) >= 2]
    lengths = language.lengths(ids)
    found = peer.conditionals(ids.where(ids != language.pad_id, 0), lengths)
    for p, words in zip(found, pcfg.words_of(language, ids), strict=True):
        np.testing.assert_allclose(
            p[: len(words)].numpy(), truth(language, words[None])[0], rtol=1e-3, atol=1e-6
        )


@pytest.mark.parametrize("cumulated", [False, True])
def test_nltk_samples_the_same_language(cumulated: bool) -> None:
    language = PCFG.random(seed=4, **LANGUAGES["layered"])
    sampler = NLTKSampler(language.grammar, cumulated=cumulated)
    number = {word: k for k, word in enumerate(language.words)}
    theirs = [[number[word] for word in words] for words in sampler.sample(4000, seed=1)]
    ours = [words.tolist() for words in pcfg.words_of(language, language.sample(4000, seed=1))]
    assert pcfg.sample_difference(language, theirs, ours).passed
    # Sentences of another language do not pass.
    other = PCFG.random(seed=5, **LANGUAGES["layered"])
    wrong = [words.tolist() for words in pcfg.words_of(other, other.sample(4000, seed=1))]
    assert not pcfg.sample_difference(language, wrong, ours).passed


@pytest.fixture(params=[1, 3])
def model(request: pytest.FixtureRequest) -> HMM:
    return HMM.random(seed=3, states=9, vocabulary=12, length=7, blocks=request.param, tasks=())


def test_hmmlearn(model: HMM) -> None:
    ids = model.sample(20, seed=1)
    found = HMMLearn(model).conditionals(ids.numpy())
    expected = model.conditionals(ids, dtype=torch.float64).exp().numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)


def test_dynamax(model: HMM) -> None:
    try:
        peer = Dynamax(model)
    except UnavailableError as error:
        pytest.skip(f"of the bench extra: {error}")
    ids = model.sample(20, seed=1)
    expected = model.conditionals(ids, dtype=torch.float64).exp().numpy()
    np.testing.assert_allclose(peer.conditionals(ids.numpy()), expected, rtol=1e-4, atol=1e-6)


def test_a_missing_peer_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "curvlinops", None)
    with pytest.raises(UnavailableError, match=r"curvlinops cannot be imported: .*; pip install --no-deps"):
        Curvlinops(torch.nn.Linear(1, 1))
    monkeypatch.setitem(sys.modules, "torch_struct", None)
    grammar = PCFG.random(seed=4, **LANGUAGES["dense"]).grammar
    with pytest.raises(UnavailableError, match=r"torch_struct cannot .*'raysweep\[bench\]' installs it"):
        TorchStruct(grammar, floor=pcfg.FLOOR)


def test_the_remedy_is_what_the_documents_and_the_checks_say() -> None:
    root = Path(__file__).parents[2]
    assert peers.CURVLINOPS in (root / "raysweep/bench/README.md").read_text()
    assert peers.CURVLINOPS.removeprefix("pip ") in (root / ".ci/run").read_text()
    # The extra holds the requirements that the command leaves out, except torchvision.
    extra = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]["bench"]
    names = {re.split("[<>=]", need)[0] for need in extra}
    assert {"einconv", "einops", "linear_operator", "opt-einsum", "tqdm", "unfoldNd"} <= names
    assert not {"curvlinops-for-pytorch", "backpack-for-pytorch", "torchvision"} & names


def test_total_variation_passes_nan_on() -> None:
    half = torch.tensor([[0.5, 0.5]])
    assert total_variation([(half, half), (half, torch.tensor([[0.25, 0.75]]))], 1.0).value == 0.25
    found = total_variation([(half * torch.nan, half), (half, half)], 1.0)
    assert not found.passed


@pytest.mark.parametrize(("N", "n"), [(1, 2), (2, 5), (3, 8)])
def test_operations_are_counted(N: int, n: int) -> None:
    # A product and a sum for each pair and split (inside, both sides outside) and rule and cell (twice).
    V, total = 4, 0
    for w in range(2, n + 1):
        for _ in range(n - w + 1):
            total += 3 * (w - 1) * N * N + 2 * N**3
    assert pcfg.dense_flops(N, n, V) == 2 * (total + n * N * V)
