"""Masked language models, their configurations and their initial weights."""

from raysweep.models.base import MaskedLM, ModelConfig, parameter_count, total_vocabulary
from raysweep.models.common import common_shape
from raysweep.models.encoder import Encoder, EncoderConfig
from raysweep.models.enlarge import enlarge
from raysweep.models.huggingface import from_huggingface, to_huggingface
from raysweep.models.lstm import LSTM, LSTMConfig
from raysweep.models.shapes import NAMED_SHAPES, Shape

__all__ = [
    "LSTM",
    "NAMED_SHAPES",
    "Encoder",
    "EncoderConfig",
    "LSTMConfig",
    "MaskedLM",
    "ModelConfig",
    "Shape",
    "common_shape",
    "enlarge",
    "from_huggingface",
    "parameter_count",
    "to_huggingface",
    "total_vocabulary",
]
