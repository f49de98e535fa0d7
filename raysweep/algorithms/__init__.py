"""How a model is trained: optimizers with their schedules and regularisation."""

from raysweep.algorithms.adamw import AdamWConfig
from raysweep.algorithms.base import AlgorithmConfig, decay_groups
from raysweep.algorithms.lookup_table import LookupTableConfig

__all__ = ["AdamWConfig", "AlgorithmConfig", "LookupTableConfig", "decay_groups"]
