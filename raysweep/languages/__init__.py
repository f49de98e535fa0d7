"""Languages, the text that models learn: sampling, exact conditionals, entropy and labels."""

from raysweep.languages.base import Estimate, Language, LanguageConfig, Sample, Task
from raysweep.languages.causal_lm import CausalLM, CausalLMConfig
from raysweep.languages.corpus import Corpus, CorpusConfig
from raysweep.languages.dyck import Dyck, DyckConfig
from raysweep.languages.hmm import HMM, HMMConfig
from raysweep.languages.pcfg import PCFG, PCFGConfig

__all__ = [
    "HMM",
    "PCFG",
    "CausalLM",
    "CausalLMConfig",
    "Corpus",
    "CorpusConfig",
    "Dyck",
    "DyckConfig",
    "Estimate",
    "HMMConfig",
    "Language",
    "LanguageConfig",
    "PCFGConfig",
    "Sample",
    "Task",
]
