"""Hidden Markov models with block-diagonal transitions and emissions.

    Pr(z, x) = initial[z_1] emission[z_1, x_1] prod_{t=2..T} transition[z_{t-1}, z_t] emission[z_t, x_t]

States and words fall into as many blocks as the configuration says; a state moves and emits only within its
block.  Tables are Dirichlet draws of a seed (Liu, Xie, Li and Ma, "Same Pre-training Loss, Better
Downstream", ICML 2023, appendix A.1: 100 states, 200 words, sentences of 16 words, random block-diagonal
matrices, tasks on the 6th and 10th state; the number of blocks is not given there).

The conditionals of all positions come from one forward-backward pass (Rabiner, "A tutorial on
hidden Markov models and selected applications in speech recognition", Proceedings of the IEEE, 1989):

    Pr(x_t = c | x_-t)  is proportional to  sum_s (a_{t-1} transition)[s] b_t[s] emission[s, c]

with a the forward and b the backward vector, each normalised at every step.  A pass costs 2 T S (S + V)
multiply-adds for T words, with S states and V words per block.

>>> language = HMM.random(states=4, vocabulary=6, length=3, blocks=2, tasks=(2,))
>>> ids = language.sample(5, seed=0)
>>> bool((language.conditionals(ids).exp().sum(-1) - 1).abs().max() < 1e-5)
True
"""

from raysweep.languages.hmm.config import HMMConfig
from raysweep.languages.hmm.language import HMM

__all__ = ["HMM", "HMMConfig"]
