"""Corpora: real text, tokenised and packed into rows, with an unknown distribution.

There are no exact conditionals, no entropy and no tasks but those of labelled texts that a configuration
names; models are compared by their loss on held-out rows, as in BERT (Devlin, Chang, Lee and Toutanova,
"BERT: pre-training of deep bidirectional transformers for language understanding", NAACL 2019).  Preparing
takes one pass over the text, and once only: token shards are kept in the cache folder.
"""

from raysweep.languages.corpus.config import CorpusConfig
from raysweep.languages.corpus.fields import TrainedTokenizer
from raysweep.languages.corpus.language import Corpus

__all__ = ["Corpus", "CorpusConfig", "TrainedTokenizer"]
