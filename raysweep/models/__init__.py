"""What is trained: masked language models, their configurations and their initial weights."""

from raysweep.models.base import MaskedLM, ModelConfig, parameter_count, total_vocabulary
from raysweep.models.encoder import Encoder, EncoderConfig

__all__ = ["Encoder", "EncoderConfig", "MaskedLM", "ModelConfig", "parameter_count", "total_vocabulary"]
