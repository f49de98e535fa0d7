"""Pre-training in plain torch: batches and masks, the loop, checkpoints."""

from raysweep.training.checkpoint import (
    CheckpointRecord,
    CurvePoint,
    FileDigest,
    checkpoint_directory,
    load_model,
    verify,
)
from raysweep.training.config import PretrainConfig
from raysweep.training.data import World
from raysweep.training.journal import Journal
from raysweep.training.loop import pretrain
from raysweep.training.progress import Progress
from raysweep.training.seeds import Seeds
from raysweep.training.start import InitFrom, Start
from raysweep.training.timing import StepTimes, step_seconds

__all__ = [
    "CheckpointRecord",
    "CurvePoint",
    "FileDigest",
    "InitFrom",
    "Journal",
    "PretrainConfig",
    "Progress",
    "Seeds",
    "Start",
    "StepTimes",
    "World",
    "checkpoint_directory",
    "load_model",
    "pretrain",
    "step_seconds",
    "verify",
]
