"""Passes of a causal LM: next-token logits over the kept tokens, and many continuations of one prefix.

Two savings, each checked against the model's own plain forward pass before it is used:

- *sliced head*: the output layer is applied for the kept rows of its weight only;
- *shared prefix*: a prefix is read once; its keys and values are seen by all continuations through views
  that repeat them without a copy, whatever the number of continuations.

A model that does not allow one of them (a head that is not the last step, states that are no keys and values)
is read without it, and `slower` says so.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from raysweep.errors import DataError
from raysweep.languages.causal_lm.loading import Source, head

_log = logging.getLogger(__name__)

#: Greatest difference of logits, relative to the greatest logit, by which two ways of reading are the same.
_TOLERANCE = 1e-4


@dataclass
class Prefix:
    """Texts that were read: `tokens` [S, P], logits [S, K] of their next token, the model's own states."""

    tokens: Tensor
    logits: Tensor
    states: Any


class Network:
    """A causal LM whose next token is one of `kept` [K]; tokens are ids of the model's own vocabulary."""

    def __init__(self, source: Source, kept: Tensor) -> None:
        self.name, self.model, self.kept = source.name, source.model, kept
        self.width, self.layers = source.config.hidden_size, source.config.num_hidden_layers
        self._positions: int | None = getattr(source.config, "max_position_embeddings", None)
        self._head: tuple[Tensor, Tensor | None] | None = None
        self.shares_prefix = self._positions is None or self._positions > 2
        self._check()

    @property
    def slower(self) -> list[str]:
        """Return what this model does not allow, a sentence each."""
        found = []
        if self._head is None:
            found.append("its logits are more than its last layer's, so all of its vocabulary is computed")
        if not self.shares_prefix:
            found.append("its states cannot be shared, so every candidate's sentence is read from its start")
        return found

    def moved(self, device: torch.device, dtype: torch.dtype) -> Network:
        """Return a copy on another device or in another precision."""
        other = copy.copy(self)
        other.model = copy.deepcopy(self.model).to(device=device, dtype=dtype)
        other.kept = self.kept.to(device)
        if self._head is not None:
            weight, bias = self._head
            other._head = (weight.to(device, dtype), None if bias is None else bias.to(device, dtype))
        return other

    def read(self, tokens: Tensor) -> Prefix:
        """Read texts [S, P] from their beginning."""
        logits, states = self._forward(tokens, None, 1)
        return Prefix(tokens, logits[:, -1], states)

    def extended(self, prefix: Prefix, tokens: Tensor) -> Prefix:
        """Read `tokens` [S, n] after `prefix`, which must not be used again."""
        whole = torch.cat([prefix.tokens, tokens], dim=1)
        if not self.shares_prefix:
            return self.read(whole)
        logits, states = self._forward(tokens, prefix.states, 1)
        return Prefix(whole, logits[:, -1], states)

    def branches(self, prefix: Prefix, tokens: Tensor) -> Tensor:
        """Return logits [S, C, n, K]: what follows each of `tokens` [S, C, n], C continuations a text."""
        S, C, n = tokens.shape
        flat = tokens.reshape(S * C, n)
        if self.shares_prefix:
            logits = self._forward(flat, _repeated(prefix.states, C), n)[0]
        else:
            logits = self._forward(
                torch.cat([prefix.tokens.repeat_interleave(C, dim=0), flat], dim=1), None, n
            )[0]
        return logits.view(S, C, n, -1)

    def all_logits(self, tokens: Tensor) -> Tensor:
        """Return the logits [S, P, K] behind every token of texts [S, P]."""
        return self._forward(tokens, None, tokens.shape[1])[0]

    def _forward(self, tokens: Tensor, states: Any, last: int) -> tuple[Tensor, Any]:
        """Return the kept logits behind the `last` tokens of each text, and the states behind the text."""
        options = {"use_cache": self.shares_prefix}
        if states is not None:
            options["past_key_values"] = states
        if self._head is None:
            out = self.model(tokens, **options)
            logits = out.logits[:, -last:, self.kept]
        else:
            out = self.model.base_model(tokens, **options)
            logits = functional.linear(out.last_hidden_state[:, -last:], *self._head)
        return logits, getattr(out, "past_key_values", None)

    @torch.no_grad()
    def _check(self) -> None:
        """Find out which savings this model allows.  Raises `DataError` for one that is not causal."""
        size = min(6, self._positions or 6)
        # Any texts will do, but they should differ: kept tokens at even steps through the vocabulary.
        place = torch.linspace(0, len(self.kept) - 1, 3 * size).round().long()
        texts = self.kept[place].view(3, size)
        plain = self.model(texts, use_cache=False).logits[:, :, self.kept]
        if not plain.isfinite().all():
            raise DataError(f"model: {self.name} gives logits that are not finite")

        def same(found: Tensor, wanted: Tensor) -> bool:
            return bool((found - wanted).abs().max() <= _TOLERANCE * wanted.abs().max().clamp_min(1.0))

        if size > 1:
            ahead = self.model(texts[:, :-1], use_cache=False).logits[:, :, self.kept]
            if not same(ahead, plain[:, :-1]):
                raise DataError(
                    f"model: {self.name} is not causal: its logits depend on tokens that come later; "
                    f"give a left-to-right language model"
                )
        parts = head(self.model)
        if parts is not None:
            weight, bias = parts
            self._head = (weight[self.kept].clone(), None if bias is None else bias[self.kept].clone())
            if not _works(lambda: same(self.all_logits(texts), plain)):
                self._head = None
        if self.shares_prefix:
            tails = torch.stack([texts[:, 2:], texts.roll(1, 0)[:, 2:]], dim=1)

            def shared() -> bool:
                prefix, alone = self.read(texts[:, :2]), self.read(texts[:1, :2])
                branches = self.branches(prefix, tails)
                again = self.branches(prefix, tails)
                of_one = self.branches(alone, tails[:1])
                joined = torch.cat([texts[:, :2].repeat_interleave(2, dim=0), tails.flatten(0, 1)], dim=1)
                wanted = self.model(joined, use_cache=False).logits[:, 2:, self.kept].view_as(branches)
                on = self.extended(prefix, texts[:, 2:]).logits
                pairs = [(branches, wanted), (again, wanted), (of_one, wanted[:1]), (on, plain[:, -1])]
                return all(same(found, right) for found, right in pairs)

            self.shares_prefix = _works(shared)


def _works(attempt: Callable[[], bool]) -> bool:
    """Return what an attempt finds; False where the model's code cannot do it at all."""
    try:
        return attempt()
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError, NotImplementedError) as error:
        _log.debug("reading a model in a faster way: %r", error)
        return False


def _repeated(states: Any, times: int) -> Any:
    """Return a cache in which each row of `states` [S, heads, P, d] stands `times` times, without a copy.

    One row is repeated by a view; several rows are copied, as batches of several sentences are small.
    Raises `TypeError` for states that are more than keys and values.
    """
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    if type(states) is not DynamicCache:
        raise TypeError(f"states of {type(states).__name__}")
    other = copy.copy(states)
    other.layers = []
    for layer in states.layers:
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise TypeError(f"a layer of {type(layer).__name__}")
        twin = copy.copy(layer)
        for name in ("keys", "values"):
            rows = getattr(layer, name)
            spread = rows[:, None].expand(-1, times, -1, -1, -1)
            setattr(twin, name, spread.reshape(-1, *rows.shape[1:]))
        other.layers.append(twin)
    return other
