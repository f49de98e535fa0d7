"""Hidden Markov models of hmmlearn and dynamax: conditionals from their forward-backward passes."""

from __future__ import annotations

from typing import Any

import numpy as np

from raysweep.bench.harness import UnavailableError
from raysweep.languages import HMM


class HMMLearn:
    """hmmlearn's `CategoricalHMM` with its `scaling` implementation, float64.

    It gives state posteriors, of which conditionals follow:

        Pr(x_t = c | x_-t)  is proportional to  sum_s (Pr(z_t = s | x) / emission[s, x_t]) emission[s, c]

    where a state that does not emit x_t is left out: in raysweep's models it belongs to a block of states
    that the other words exclude.
    """

    def __init__(self, language: HMM) -> None:
        try:
            from hmmlearn.hmm import CategoricalHMM
        except ImportError as error:
            raise UnavailableError(f"hmmlearn cannot be imported: {error}") from error
        self._model = CategoricalHMM(
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

    Its forward predictions times its backward ones are the contexts themselves; its smoother would add
    expected transitions that nobody asks for.
    """

    def __init__(self, language: HMM) -> None:
        try:
            import jax
            import jax.numpy as jnp
            from dynamax.hidden_markov_model import hmm_backward_filter, hmm_filter
        except ImportError as error:
            raise UnavailableError(f"dynamax cannot be imported: {error}") from error
        tables = (language.initial, language.transition, language.emission)
        initial, transition, emission = (jnp.asarray(table, dtype=jnp.float32) for table in tables)

        def one(words: Any) -> Any:
            log_leaves = jnp.log(emission.T[words])
            ahead = hmm_filter(initial, transition, log_leaves).predicted_probs
            behind = hmm_backward_filter(transition, log_leaves)[1]
            joint = (ahead * behind) @ emission
            return joint / joint.sum(axis=-1, keepdims=True)

        self._run = jax.jit(jax.vmap(one))

    def conditionals(self, words: np.ndarray) -> np.ndarray:
        """Return Pr(x_t = . | x_-t) [B, T, V] of sentences [B, T]."""
        return np.asarray(self._run(words).block_until_ready())
