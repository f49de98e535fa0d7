"""Causal language models of Hugging Face as languages with exact conditionals.

Sentences are drawn from the model left to right, restricted to K of its tokens, as in Liu, Xie, Li and Ma,
"Same Pre-training Loss, Better Downstream", ICML 2023, appendix A.1.  The exact conditional at position t
weighs all K candidates by the probability of the whole sentence, which takes K (T - t) token passes of the
model; this is the most expensive language, so its conditionals are stored.
"""

from raysweep.languages.causal_lm.config import CausalLMConfig
from raysweep.languages.causal_lm.language import CausalLM

__all__ = ["CausalLM", "CausalLMConfig"]
