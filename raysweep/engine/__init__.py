"""Running sweeps on Ray: the only room that imports it."""

from raysweep.engine.cluster import Cluster, connected
from raysweep.engine.driver import Results, launch
from raysweep.engine.monitor import LaunchState, RunState, run_states

__all__ = ["Cluster", "LaunchState", "Results", "RunState", "connected", "launch", "run_states"]
