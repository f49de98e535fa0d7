"""The base of all contracts: tests that run for each of the configurations that a subclass names."""

from __future__ import annotations

import atexit
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, ClassVar

import pytest

from raysweep.languages import Language
from raysweep.languages.hmm import HMMConfig
from raysweep.registry import KindConfig, languages

#: A configuration, or a function that makes one and writes the files that it names into a folder.
Given = KindConfig | Callable[[Path], KindConfig]


class Contract:
    """Tests of one family; each runs once for each of `configs`.

    `configs` holds configurations, or functions of an empty folder such as `MyConfig.example`; the keys of a
    mapping name the tests.  What languages cache goes into a temporary folder.
    """

    configs: ClassVar[Sequence[Any] | Mapping[str, Any]] = ()

    @classmethod
    def given(cls) -> dict[str, Given]:
        """Return the entries of `configs` by name."""
        if isinstance(cls.configs, Mapping):
            return dict(cls.configs)
        return {f"{_kind(entry)}{k}": entry for k, entry in enumerate(cls.configs)}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Make one test for each configuration.  A contract without any is an error, not an empty suite."""
        given = self.given()
        if not given:
            raise pytest.UsageError(f"{type(self).__name__}: give `configs` at least one configuration")
        if "given_config" in metafunc.fixturenames:
            metafunc.parametrize("given_config", list(given.values()), ids=list(given), scope="class")
        if "config_name" in metafunc.fixturenames:
            metafunc.parametrize("config_name", list(given))

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _temporary_cache(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAYSWEEP_CACHE", str(tmp_path_factory.mktemp("cache")))
            yield

    @pytest.fixture(scope="class")
    @classmethod
    def config(cls, given_config: Given, tmp_path_factory: pytest.TempPathFactory) -> Any:
        """The configuration under test."""
        return made(given_config, tmp_path_factory.mktemp("example"))


@cache
def example_language(name: str) -> Language:
    """Return a small language: the example of a kind, or `pair`, sentences of two words over two."""
    if name == "pair":
        return HMMConfig(states=3, vocabulary=2, length=2, blocks=1, tasks=(1,)).build()
    language: Language = languages.get(name).example(kept_folder()).build()
    return language


def kept_folder() -> Path:
    """Return an empty folder that is removed when this process ends."""
    folder = Path(mkdtemp(prefix="raysweep-example-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def made(given: Given, folder: Path) -> Any:
    """Return a configuration that stands in `configs`, or make it."""
    return given if isinstance(given, KindConfig) else given(folder)


def _kind(given: Given) -> str:
    """Return a name for a configuration or for the class whose `example` it is."""
    if isinstance(given, KindConfig):
        return given.kind
    owner = getattr(given, "__self__", None)
    return owner.__name__ if isinstance(owner, type) else getattr(given, "__name__", "config")
