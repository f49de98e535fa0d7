"""The folder of a sweep."""

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A sweep's folder, with nothing in it."""
    return tmp_path
