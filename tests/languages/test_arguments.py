"""The line that a Python prompt shows for a language, and wrong arguments, for all kinds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import raysweep as rs
from raysweep.errors import CheckpointError, DataError
from raysweep.registry import languages


@pytest.fixture(scope="module", params=sorted(set(languages.kinds()) - {"dice"}))
def language(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The example of each kind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAYSWEEP_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield languages.get(request.param).example(tmp_path_factory.mktemp("example")).build()


def test_a_prompt_shows_kind_words_and_length(language: rs.Language) -> None:
    shown = repr(language)
    assert shown.startswith(f"{type(language).__name__}({language.vocabulary_size:,} words, sentences of ")
    assert shown.endswith(f" {language.max_length})")
    assert ("at most" in shown) is not language.fixed_length


def test_a_prompt_shows_a_drawn_language() -> None:
    assert repr(rs.PCFG.random(seed=0)) == "PCFG(200 words, sentences of at most 16)"


@pytest.mark.parametrize("wrong", [-1, 3.5, "3", None])
def test_a_number_of_sentences_that_is_none_is_named(language: rs.Language, wrong: Any) -> None:
    for draw in (language.sample, language.sample_latent):
        with pytest.raises(DataError, match=f"^n: {wrong!r} is not a whole number ≥ 0$"):
            draw(wrong, seed=0)
        with pytest.raises(DataError, match=f"^start: {wrong!r} is not a whole number ≥ 0$"):
            draw(2, seed=0, start=wrong)
    assert language.sample(np.int64(2), seed=0).shape == (2, language.max_length)


def test_lists_in_place_of_tensors_are_refused() -> None:
    language: Any = rs.HMM.random(seed=0)
    ids = language.sample(1, seed=0)
    for call in (language.conditionals, language.log_prob):
        with pytest.raises(DataError, match=r"^ids must be a tensor, not list \[\[1, 2, 3\]\]; torch.tensor"):
            call([[1, 2, 3]])
    with pytest.raises(DataError, match=r"^mask must be a tensor, not list \[True\]"):
        language.conditionals(ids, [True])


def test_a_model_of_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    given: Any = None
    with pytest.raises(CheckpointError, match=r"nope: there is no such folder; name that of a checkpoint"):
        rs.load_model(tmp_path / "nope", given, given)
