"""Give the tests, and the processes they start, the fakes beside them."""

import sys
from pathlib import Path
from types import ModuleType

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import training_fakes


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    return training_fakes
