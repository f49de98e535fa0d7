"""Give the tests the fakes beside them."""

from types import ModuleType

import pytest

from helpers import training_fakes


@pytest.fixture(scope="session")
def fakes() -> ModuleType:
    return training_fakes
