"""Ghost norms of encoders and LSTMs on a processor, through the compiled passes that training uses.

The forward and backward pass are those of `raysweep.models.fused`: packed sentences, no padding, no
autograd.  Where these add to a parameter's gradient, the norms of `raysweep.flatness.norms.ghost` are taken
of every sentence instead, by compiled loops over its words (raysweep.flatness.fused.kernels).  Test vectors
are made in the middle of a pass, from its logits; of several, each takes a backward pass of its own.

The compiled way is taken for models that are exactly `Encoder` or `LSTM`, in float32 on a processor, with the
decoder tied to the embedding and no hooks or replaced forwards, on inputs of at most `LONGEST` words with one
masked word each (`fits`); before a model's first inputs, the norms of the shortest and the longest of them
must be those of autograd (`PackedNorms.agrees`), and a warning says where they are not.  All else is for the
hooks of `raysweep.flatness.norms.ghost`.  Torch is held to one thread meanwhile, whatever its number; values
may differ from one time to the next by the rounding of float32, as MKL groups sums by where memory lies
unless MKL_CBWR=COMPATIBLE is set.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from raysweep.flatness.norms.ghost import TOLERANCE, own_norms, require_finite, some_signs, split_parameters
from raysweep.flatness.trace.control import Control
from raysweep.flatness.trace.draws import Draws
from raysweep.flatness.trace.vectors import Vectors, cotangents, count, draw_seed
from raysweep.models.encoder import Encoder
from raysweep.models.lstm import LSTM

if TYPE_CHECKING:
    from raysweep.flatness.fused.taps import Norms

log = logging.getLogger("raysweep.flatness")

#: The longest sentence: up to here sums over pairs of words are measured to be faster than hooks, even of
#: models much narrower than that.
LONGEST = 256

#: Numbers in a chunk's hidden states, and the least words of a chunk: with smaller ones calls are what costs,
#: with larger ones memory.
NUMBERS, WORDS = 2**19, 2048

#: Share of the total by which the norm of a parameter may differ that is next to nothing itself: rounding is
#: measured to change it by 4e-7 at most, in new and in trained models.
ROUNDING = 1e-6

#: Models that have been compared with autograd: what they compute is their class's, whatever their weights.
_agreed: WeakSet[nn.Module] = WeakSet()


def chunk_words(width: int) -> int:
    """Return the words of a chunk of a model so wide."""
    return max(WORDS, NUMBERS // width)


def fits(model: nn.Module, positions: Tensor, longest: int) -> bool:
    """Return whether the compiled passes are made for this model, and one position a sentence."""
    if not isinstance(model, Encoder | LSTM) or type(model) not in (Encoder, LSTM):
        return False
    if positions.dim() != 1 or longest > LONGEST:
        return False
    parameters = list(model.parameters())
    plain = all(p.dtype == torch.float32 and p.device.type == "cpu" for p in parameters)
    hooked = any(m._forward_hooks or m._forward_pre_hooks or "forward" in vars(m) for m in model.modules())
    tied = model.decoder.weight is model.token_embedding.weight
    return plain and tied and not hooked


@contextmanager
def _one_thread() -> Iterator[None]:
    """Hold torch to one thread, as it is in training's passes, and put its number back after."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True, kw_only=True)
class _Words:
    """Sentences with one masked word each, as `raysweep.models.fused.packing` takes them."""

    ids: Tensor
    index: Tensor
    targets: Tensor
    lengths: Tensor
    count: int
    rows: range
    single: bool = True


class PackedNorms:
    """Squared norms of Jᵀv by input and parameter, of a model that `fits`."""

    def __init__(self, model: nn.Module) -> None:
        self.model: Any = model
        parameters, self.excluded = split_parameters(model)
        self.names = list(parameters)
        self._parameters = list(parameters.values())

    def chunks(self, ids: Tensor, positions: Tensor) -> Iterator[tuple[Tensor, Norms]]:
        """Yield the rows [b] and the pass of each chunk of masked `ids` [B, T] at `positions` [B]."""
        from raysweep.flatness.fused import encoder, lstm
        from raysweep.models.fused.packing import packed

        way: Any = lstm if isinstance(self.model, LSTM) else encoder
        words = _Words(
            ids=ids,
            index=positions,
            targets=torch.zeros_like(positions),
            lengths=(ids != self.model.pad_id).sum(dim=1),
            count=1,
            rows=range(len(ids)),
        )
        weights = way.GhostWeights(self.model)
        for chunk in packed(words, self.model, chunk_words(self.model.width)):
            rows = torch.from_numpy(chunk.place[chunk.starts[:-1]] // self.model.max_length)
            yield rows, way.GhostPass(self.model, weights, chunk)

    def norms(self, work: Norms, v: Tensor, *, last: bool = True) -> Tensor:
        """Return ‖Jᵀv‖² [b, P], float64, of a chunk's test vectors v [b, V]; see `Norms.norms`."""
        found = work.norms(v, last=last)
        return torch.stack([found[name] for name in self.names], dim=1)

    def agrees(self, ids: Tensor, positions: Tensor) -> bool:
        """Return whether each parameter's norms are autograd's on `ids` [B, T], up to rounding.

        Raises `RunFailedError` where these are not finite.
        """
        cotangents = some_signs(torch.empty(len(ids), self.model.total_vocabulary), positions)
        found = torch.empty(len(ids), len(self.names), dtype=torch.float64)
        for rows, work in self.chunks(ids, positions):
            work.forward()
            found[rows] = self.norms(work, cotangents[rows])
        with torch.enable_grad():
            logits = self.model(ids, positions)
            require_finite(logits)
            for row in range(len(ids)):
                dense = own_norms(logits[row], self._parameters, cotangents[row], keep=row + 1 < len(ids))
                # By each parameter's own norm, so that small ones count; the floor is for rounding.
                allowed = (TOLERANCE[torch.float32] * dense).clamp(min=float(ROUNDING * dense.sum()))
                if not bool(((dense - found[row]).abs() <= allowed).all()):
                    return False
        return True


@_one_thread()
def compiled_values(
    model: nn.Module,
    masked: Tensor,
    positions: Tensor,
    lengths: Tensor,
    index: Tensor,
    drawn: tuple[Vectors, int, int, int],
    control: Control | None = None,
) -> tuple[list[str], list[str], Draws] | None:
    """Return (names, excluded, sums over draws) of inputs with one masked position each, or None.

    None where the compiled passes are not made for it, or are not quite autograd's: then it is for
    `raysweep.flatness.norms.ghost`, whose values are the same up to rounding.  A model is compared once;
    raises `RunFailedError` for values that are not finite.
    """
    kind, draws, seed, _ = drawn
    if not fits(model, positions, int(lengths.max())):
        return None
    from raysweep.flatness.fused.vectors import sign_vectors

    def vectors(logits: Tensor, index: Tensor) -> Iterator[tuple[Tensor, float]]:
        if kind != "rademacher":
            yield from cotangents(logits, index, kind=kind, seed=seed, draws=draws)
            return
        for draw in range(draws):
            yield sign_vectors(logits, index, seed=draw_seed(seed, draw)), 1.0 / draws

    norms = PackedNorms(model)
    if model not in _agreed:
        ends = lengths.argsort(stable=True)[[0, -1]]
        if not norms.agrees(masked[ends], positions[ends]):
            log.warning(
                "the compiled gradient norms of this %s are not autograd's, so slower hooks are taken: a "
                "defect of raysweep that is worth a report, unless the model is so steep that rounding tells",
                type(model).__name__,
            )
            return None
        _agreed.add(model)
    size = 0 if control is None else control.size
    sums = Draws(len(masked), len(norms.names), size, masked.device, several=draws > 1)
    for rows, work in norms.chunks(masked, positions):
        logits, hidden = work.forward()
        number = count(kind, logits, draws)
        for k, (v, weight) in enumerate(vectors(logits, index[rows])):
            known = None if control is None else control.statistics(logits, hidden, v)
            sums.add(rows, weight, norms.norms(work, v, last=k + 1 == number), known)
    require_finite(sums.values)
    return norms.names, norms.excluded, sums
