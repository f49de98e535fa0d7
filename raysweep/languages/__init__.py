"""What the text is: sampling, exact conditionals, entropy and labels."""

from raysweep.languages.base import Estimate, Language, LanguageConfig, Sample, Task

__all__ = ["Estimate", "Language", "LanguageConfig", "Sample", "Task"]
