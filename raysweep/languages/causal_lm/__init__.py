"""Causal language models of Hugging Face as languages whose conditionals are known exactly."""

from raysweep.languages.causal_lm.config import CausalLMConfig
from raysweep.languages.causal_lm.language import CausalLM

__all__ = ["CausalLM", "CausalLMConfig"]
