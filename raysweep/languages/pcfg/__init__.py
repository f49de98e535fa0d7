"""Probabilistic context-free grammars: drawn from a seed or read from a file."""

from raysweep.languages.pcfg.config import PCFGConfig
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.language import PCFG

__all__ = ["PCFG", "Grammar", "PCFGConfig"]
