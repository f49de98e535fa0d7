"""Ghost norms of encoders and LSTMs on a processor, by the compiled passes that training uses.

The forward and backward pass are those of `raysweep.models.fused`: packed sentences, no padding, no
autograd.  Where training adds to a parameter's gradient, this takes the norms of
`raysweep.flatness.norms.ghost` for every sentence, by compiled loops over its words
(raysweep.flatness.fused.kernels).  Test vectors are made from the logits between the two passes; each of
several takes a backward pass of its own.  Where all products of an encoder are compiled ones, each pass of a
chunk is one call (raysweep.flatness.fused.whole).

It takes models that are exactly `Encoder` or `LSTM`, in float32 on a processor, with the decoder tied to the
embedding and no hooks or replaced forwards, and inputs of at most `LONGEST` words with one masked word each
(`fits`).  Before a model's first inputs, the norms of the shortest and the longest of them must be those of
autograd (`FusedNorms.agrees`); a warning says where they are not.  Everything else is left to the hooks of
`raysweep.flatness.norms.ghost`.  Torch has one thread meanwhile.  Values may differ between two calls by the
rounding of float32 where torch computes products, because MKL groups sums by the place of memory unless
MKL_CBWR=COMPATIBLE is set.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeGuard
from weakref import WeakSet

import torch
from torch import Tensor, nn

from raysweep.flatness.norms.base import Forward
from raysweep.flatness.norms.ghost import TOLERANCE, own_norms, require_finite, some_signs, split_parameters
from raysweep.flatness.vectors import Drawing, draw_seed
from raysweep.models.batch import Batch
from raysweep.models.encoder import Encoder
from raysweep.models.lstm import LSTM

if TYPE_CHECKING:
    from raysweep.flatness.fused.taps import ChunkNorms
    from raysweep.flatness.fused.whole import WholeNorms
    from raysweep.models.fused.packing import Chunk

log = logging.getLogger("raysweep.flatness")

#: The longest sentence.  Up to here, sums over pairs of words are faster than hooks, as measured even with
#: models much narrower than that.
LONGEST = 256

#: Numbers in a chunk's hidden states, and the fewest words of a chunk.  Smaller chunks spend their time on
#: calls, larger ones on memory.
NUMBERS, WORDS = 2**19, 2048

#: Share of the total by which the norm of a parameter may differ where that norm is close to zero.  Rounding
#: changes it by 4e-7 at most, as measured in new and in trained models.
ROUNDING = 1e-6

#: Models that have been compared with autograd; one comparison holds for all weights of a model.
_agreed: WeakSet[nn.Module] = WeakSet()


def chunk_words(width: int) -> int:
    """Return the number of words in a chunk of a model of this width."""
    return max(WORDS, NUMBERS // width)


def fits(model: nn.Module, positions: Tensor, longest: int) -> TypeGuard[Encoder | LSTM]:
    """Return whether the compiled passes can take this model, with one masked position a sentence."""
    if not isinstance(model, Encoder | LSTM) or type(model) not in (Encoder, LSTM):
        return False
    if positions.dim() != 1 or longest > LONGEST:
        return False
    from raysweep.models.fused.step import known

    now = known(model)
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in now.parameters)
    modules = (model, *now.inside)
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in modules)
    tied = model.decoder.weight is model.token_embedding.weight
    return plain and tied and not hooked


class FusedNorms:
    """Squared norms of Jᵀv by input and parameter, of a model that `fits`; use it within `one_thread`.

    It is an implementation of `raysweep.flatness.norms.base.Norms`.
    """

    method = "ghost norms"
    reason: str | None = None

    def __init__(self, model: Encoder | LSTM) -> None:
        self.model = model
        parameters, self.excluded = split_parameters(model)
        self.names = list(parameters)
        self._parameters = list(parameters.values())

    def batches(
        self, masked: Tensor, positions: Tensor, *, at: nn.Module | None = None, batch: int | None = None
    ) -> Iterator[Forward]:
        """Yield the forward pass of every chunk; hidden states are those of the head, whatever `at` is."""
        from raysweep.models.fused.packing import packed

        words = Batch(
            ids=masked,
            index=positions,
            targets=torch.zeros_like(positions),
            lengths=(masked != self.model.pad_id).sum(dim=1),
            count=1,
            rows=range(len(masked)),
            single=True,
        )
        with self._maker() as made:
            for chunk in packed(words, self.model, chunk_words(self.model.width)):
                norms = made(chunk)
                logits, hidden = norms.forward()
                yield Forward(
                    rows=torch.from_numpy(chunk.place[chunk.starts[:-1]] // self.model.max_length),
                    logits=logits,
                    real=None,
                    hidden=hidden,
                    norms=partial(self._norms, norms),
                )

    def vectors(self, drawing: Drawing, forward: Forward, index: Tensor) -> Iterator[tuple[Tensor, float]]:
        """Yield the test vectors of a chunk, each with its weight; random signs are made by compiled code."""
        from raysweep.flatness.fused.vectors import sign_vectors

        if drawing.kind != "rademacher":
            yield from drawing.vectors(forward.logits, index)
            return
        for draw in range(drawing.draws):
            yield sign_vectors(forward.logits, index, seed=draw_seed(drawing.seed, draw)), 1.0 / drawing.draws

    def agrees(self, masked: Tensor, positions: Tensor) -> bool:
        """Return whether each parameter's norms are autograd's on `masked` ids [B, T], up to rounding.

        Raises `RunFailedError` where these are not finite.
        """
        cotangents = some_signs(torch.empty(len(masked), self.model.total_vocabulary), positions)
        found = torch.empty(len(masked), len(self.names), dtype=torch.float64)
        for forward in self.batches(masked, positions):
            found[forward.rows] = forward.norms(cotangents[forward.rows], True)
        with torch.enable_grad():
            logits = self.model(masked, positions)
            require_finite(logits)
            for row in range(len(masked)):
                keep = row + 1 < len(masked)
                dense = own_norms(logits[row], self._parameters, cotangents[row], keep=keep)
                # The bound is relative to each parameter's own norm, so that small ones count; the floor is
                # for rounding.
                allowed = (TOLERANCE[torch.float32] * dense).clamp(min=float(ROUNDING * dense.sum()))
                if not bool(((dense - found[row]).abs() <= allowed).all()):
                    return False
        return True

    @contextmanager
    def _maker(self) -> Iterator[Callable[[Chunk], ChunkNorms | WholeNorms]]:
        """Give a maker of the norms of a chunk, with the model's weights as they are now."""
        from raysweep.flatness.fused import encoder, lstm, whole

        if isinstance(self.model, LSTM):
            yield partial(lstm.LSTMNorms, self.model, lstm.TappedLSTM(self.model))
            return
        with whole.maker(self.model) as at_once:
            yield at_once or partial(encoder.EncoderNorms, self.model, encoder.TappedEncoder(self.model))

    def _norms(self, norms: ChunkNorms | WholeNorms, v: Tensor, last: bool) -> Tensor:
        """Return ‖Jᵀv‖² [b, P], float64, of a chunk's test vectors v [b, V]."""
        return norms.norms(v, self.names, last=last)


def agreed(norms: FusedNorms, masked: Tensor, positions: Tensor) -> bool:
    """Return whether a model's norms are those of autograd; each model is compared once.

    Logs a warning where they are not.
    """
    if norms.model in _agreed:
        return True
    if norms.agrees(masked, positions):
        _agreed.add(norms.model)
        return True
    log.warning(
        "the compiled gradient norms of this %s are not autograd's, so slower hooks are taken: a "
        "defect of raysweep that is worth a report, unless the model is so steep that rounding is the cause",
        type(norms.model).__name__,
    )
    return False
