"""What the text is: sampling, exact conditionals, entropy and labels."""

from raysweep.languages.base import Estimate, Language, LanguageConfig, Sample, Task
from raysweep.languages.hmm import HMM, HMMConfig

__all__ = ["HMM", "Estimate", "HMMConfig", "Language", "LanguageConfig", "Sample", "Task"]
