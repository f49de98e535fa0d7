"""Corpora: real text, tokenised and packed, whose truth nobody knows."""

from raysweep.languages.corpus.config import CorpusConfig
from raysweep.languages.corpus.fields import TrainedTokenizer
from raysweep.languages.corpus.language import Corpus

__all__ = ["Corpus", "CorpusConfig", "TrainedTokenizer"]
