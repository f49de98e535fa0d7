"""Probabilistic context-free grammars: drawn from a seed or read from a file.

A sentence is drawn by expanding the start symbol with the rules until only words are left; sentences are
conditioned on at most `max_length` words.  One inside-outside pass (Baker 1979; Lari and Young, "The
estimation of stochastic context-free grammars using the inside-outside algorithm", Computer Speech and
Language, 1990) gives the conditionals of all positions of a sentence.  It costs about N^2 T^3 + 2 N^3 T^2
operations for T words and N symbols with all rules; with few rules, only the symbols and rules that a
sentence of T words can use are visited.  The random layered grammars follow Liu, Xie, Li and Ma, "Same
Pre-training Loss, Better Downstream", ICML 2023.
"""

from raysweep.languages.pcfg.config import PCFGConfig
from raysweep.languages.pcfg.grammar import Grammar
from raysweep.languages.pcfg.language import PCFG

__all__ = ["PCFG", "Grammar", "PCFGConfig"]
