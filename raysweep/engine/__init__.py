"""Sweeps on Ray: the only room that imports Ray, beside the benchmark of Ray alone.

Names are imported when they are first used.  Every task and actor of a sweep is a process that imports its
own module of this room, and it should not import the others.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raysweep.engine.cluster import Cluster, connected
    from raysweep.engine.driver import launch
    from raysweep.engine.results import Results, open_results

__all__ = ["Cluster", "Results", "connected", "launch", "open_results"]

_HOMES = {
    "Cluster": "raysweep.engine.cluster",
    "Results": "raysweep.engine.results",
    "connected": "raysweep.engine.cluster",
    "launch": "raysweep.engine.driver",
    "open_results": "raysweep.engine.results",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'raysweep.engine' has no attribute '{name}'")
