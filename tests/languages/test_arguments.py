"""The line that a Python prompt shows for a language, and wrong arguments, for all kinds."""

from __future__ import annotations

from typing import Any

import pytest

import raysweep as rs
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
