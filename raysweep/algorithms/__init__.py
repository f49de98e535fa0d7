"""Algorithms: optimizers with their schedules, regularisation and objectives."""

from raysweep.algorithms.adamw import AdamWConfig
from raysweep.algorithms.adversarial import AdversarialConfig
from raysweep.algorithms.average import WeightAverage
from raysweep.algorithms.base import AlgorithmConfig, Backward, ExtraLoss, decay_groups
from raysweep.algorithms.lookup_table import LookupTableConfig
from raysweep.algorithms.muon import MuonConfig
from raysweep.algorithms.sam import SAMConfig
from raysweep.algorithms.sgd import SGDConfig
from raysweep.algorithms.trained import TrainedConfig

__all__ = [
    "AdamWConfig",
    "AdversarialConfig",
    "AlgorithmConfig",
    "Backward",
    "ExtraLoss",
    "LookupTableConfig",
    "MuonConfig",
    "SAMConfig",
    "SGDConfig",
    "TrainedConfig",
    "WeightAverage",
    "decay_groups",
]
