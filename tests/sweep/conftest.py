"""Every test has a folder of its own, and the evaluation that needs no model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from helpers.tiny_sweeps import AXES, BASE, CountedConfig, WeightedConfig
from raysweep import registry
from raysweep.sweep import Sweep, load_sweep


@pytest.fixture(autouse=True)
def _evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.evaluations._classes, "counted", CountedConfig)
    monkeypatch.setitem(registry.evaluations._classes, "weighted", WeightedConfig)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("RAYSWEEP_STORAGE", raising=False)
    monkeypatch.chdir(tmp_path)


Load = Callable[..., Sweep]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Return a function that loads a sweep from text."""

    def load_text(text: str = BASE + AXES, *overrides: str, name: str = "s.yaml", **options: Any) -> Sweep:
        (tmp_path / name).write_text(text)
        return load_sweep(name, overrides, **options)

    return load_text
