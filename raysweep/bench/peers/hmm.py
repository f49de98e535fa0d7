"""The hidden Markov models of hmmlearn and dynamax: conditionals from their forward-backward passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from raysweep.bench.peers import peer
from raysweep.languages import HMM


class HMMLearn:
    """hmmlearn's `CategoricalHMM` with its `scaling` implementation, float64.

    Its state posteriors give the conditionals:

        Pr(x_t = c | x_-t)  is proportional to  sum_s (Pr(z_t = s | x) / emission[s, x_t]) emission[s, c]

    The sum leaves out states that do not emit x_t.  In raysweep's models such a state belongs to a block of
    states that the other words exclude.
    """

    def __init__(self, language: HMM) -> None:
        self._model = peer("hmmlearn.hmm").CategoricalHMM(
            n_components=language.states, implementation="scaling", init_params="", params=""
        )
        self._model.n_features = language.vocabulary_size
        self._model.startprob_ = language.initial
        self._model.transmat_ = language.transition
        self._model.emissionprob_ = language.emission
        self._emission = language.emission

    def posteriors(self, words: np.ndarray) -> np.ndarray:
        """Return Pr(z_t = s | x) [B, T, S] of sentences [B, T]."""
        batch, T = words.shape
        found: np.ndarray = self._model.predict_proba(words.reshape(-1, 1), np.full(batch, T))
        return found.reshape(batch, T, -1)

    def conditionals(self, words: np.ndarray) -> np.ndarray:
        """Return Pr(x_t = . | x_-t) [B, T, V] of sentences [B, T]."""
        leaves = self._emission.T[words]
        posterior = self.posteriors(words)
        outside = np.divide(posterior, leaves, out=np.zeros_like(leaves), where=leaves > 0)
        joint = outside @ self._emission
        joint /= joint.sum(axis=-1, keepdims=True)
        return joint


class Dynamax:
    """dynamax's forward and backward filters, compiled for a batch, float32.

    The product of its forward and backward predictions is the context of a word.  Its smoother would also
    compute expected transitions, which are not needed here.
    """

    def __init__(self, language: HMM) -> None:
        jax, jnp, dynamax = peer("jax"), peer("jax.numpy"), peer("dynamax.hidden_markov_model")
        tables = (language.initial, language.transition, language.emission)
        initial, transition, emission = (jnp.asarray(table, dtype=jnp.float32) for table in tables)

        def one(words: Any) -> Any:
            log_leaves = jnp.log(emission.T[words])
            ahead = dynamax.hmm_filter(initial, transition, log_leaves).predicted_probs
            behind = dynamax.hmm_backward_filter(transition, log_leaves)[1]
            joint = (ahead * behind) @ emission
            return joint / joint.sum(axis=-1, keepdims=True)

        self._run = jax.jit(jax.vmap(one))

    def conditionals(self, words: np.ndarray) -> np.ndarray:
        """Return Pr(x_t = . | x_-t) [B, T, V] of sentences [B, T]."""
        return np.asarray(self._run(words).block_until_ready())
