"""The peers of raysweep: adapters of other libraries, and straightforward programs."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from raysweep.bench.harness import UnavailableError

#: The command that installs most peers.
EXTRA = "pip install 'raysweep[bench]'"

#: The command that installs curvlinops.  It needs backpack, and backpack names torchvision as a requirement,
#: which only its examples import.  PyPI's torchvision does not fit a CPU build of torch, and its presence
#: then breaks transformers; so both are installed without their requirements, which are in the extra.
CURVLINOPS = "pip install --no-deps 'curvlinops-for-pytorch>=3,<4' 'backpack-for-pytorch>=1.7,<2'"


def peer(module: str, remedy: str = EXTRA) -> Any:
    """Import a module of a peer, without its warnings.

    Raises `UnavailableError`, with the command that installs it, where the import fails.

    >>> peer("math").sqrt(4.0)
    2.0
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UnavailableError(f"{name} cannot be imported: {error}; {remedy} installs it") from error
