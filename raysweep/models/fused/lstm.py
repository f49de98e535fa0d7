"""The masked-LM loss of an LSTM with its gradient, on a processor, without padding.

It computes what `raysweep.models.lstm.LSTM` does in training, on packed sentences chunk by chunk
(raysweep.models.fused.packing).  Each direction of a layer has the words in rows of its own, in the order in
which it reads them, so that a step of time is a range of rows, and reversing sentences costs nothing: a word
is written to wherever it is read next.  A step is one matrix product of [x; h] with both weights of the
direction (`Matrix`), and one compiled pass (raysweep.models.fused.recurrent); their gradients are one product
over all steps.  Cells, their gradients, the loss and sums of gradients are float32.

The last layer stops in each direction at the last masked word that it reads, and the head is computed for
masked words alone.

Cost, with D the width and L layers: the products of `training_flops`, less what the last layer leaves out,
and about 18 D L bytes of activations for each word of a chunk in bfloat16.  Weights are laid out twice for
compiled products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from raysweep.models.batch import Batch
from raysweep.models.dropout import cut_of, streams
from raysweep.models.fused import recurrent
from raysweep.models.fused.packing import Chunk
from raysweep.models.fused.products import array, empty
from raysweep.models.fused.states import states
from raysweep.models.fused.step import Step
from raysweep.models.fused.weights import Matrix, Vector, Weights
from raysweep.models.lstm import LSTM, LSTMLayer

#: Numbers in the hidden states of a chunk, words times width: with fewer, the products of a step are too
#: small to be fast; with more, activations take more memory.
CHUNK = 2**21


@dataclass(frozen=True)
class Direction:
    """Parameters of one direction of a layer.

    `weight` [4H, D + H] is that of the input beside that of the recurrence, `bias` the sum of the two.
    """

    weight: Matrix
    bias: Vector


class LSTMWeights(Weights):
    """The parameters of an LSTM."""

    def __init__(self, model: LSTM, dtype: torch.dtype) -> None:
        super().__init__(model, dtype)
        self._biases: list[list[Tensor]] = []
        self.tokens = self._matrix(model.token_embedding.weight)
        self.decoder_bias = self._vector(model.decoder.bias)
        self.token_values = array(model.token_embedding.weight)
        self.layers = []
        for layer in model.layers:
            both = cast(LSTMLayer, layer)
            self.layers.append((self._direction(both.left_to_right), self._direction(both.right_to_left)))

    def renew(self) -> None:
        super().renew()
        for total, of_input, of_state in self._biases:
            torch.add(of_input, of_state, out=total)

    def _direction(self, module: nn.LSTM) -> Direction:
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        biases = [module.get_parameter(name).detach() for name in names[2:]]
        bias = biases[0] + biases[1]
        self._biases.append([bias, *biases])
        # The gradients of both biases are the same.
        total = self.room(bias.shape)
        self.sums.update({id(module.get_parameter(name)): total for name in names[2:]})
        weight = self._matrix(*map(module.get_parameter, names[:2]), dim=1)
        return Direction(weight, Vector(array(bias), array(total)))


@dataclass(frozen=True)
class Order:
    """The rows in which a direction has the N words of a chunk; see `raysweep.models.fused.recurrent`.

    `starts` [steps + 1] where each step's rows begin, `row` [N] the row of each word, negative for one that
    is not read, `word` [R] the word of each row.
    """

    starts: np.ndarray
    row: np.ndarray
    word: np.ndarray

    @classmethod
    def of(cls, chunk: Chunk, step: np.ndarray, steps: np.ndarray) -> Order:
        """Return the order for words read in `step` [N], in sentences with so many `steps` [S]."""
        by_steps = (-steps).argsort(kind="stable")
        rank = np.empty_like(by_steps)
        rank[by_steps] = np.arange(len(steps))
        counts = len(steps) - np.searchsorted(steps[by_steps[::-1]], np.arange(steps.max()), side="right")
        starts = np.concatenate([[0], counts.cumsum()])
        sentence = np.repeat(np.arange(len(steps)), np.diff(chunk.starts))
        read = step < steps[sentence]
        row = np.where(read, starts[np.minimum(step, len(counts) - 1)] + rank[sentence], -1)
        word = np.empty(starts[-1], dtype=np.int64)
        word[row[read]] = read.nonzero()[0]
        return cls(starts, row, word)


@dataclass
class Kept:
    """The arrays that the backward pass of one direction of a layer needs."""

    order: Order
    z: np.ndarray
    gates: np.ndarray
    cells: np.ndarray

    def copy(self) -> Kept:
        """Return the same with gates of its own, which a backward pass may write over."""
        gates = empty(len(self.gates), self.gates.shape[1], self.gates.dtype)
        gates[...] = self.gates
        return replace(self, gates=gates)


@dataclass(frozen=True)
class Place:
    """Two low matrices with rows for words, and the row [N] of each word in them or -1."""

    left_row: np.ndarray
    right_row: np.ndarray
    left: np.ndarray
    right: np.ndarray

    @property
    def arguments(self) -> tuple[np.ndarray, ...]:
        """All four as the kernels take them."""
        return self.left_row, self.right_row, self.left, self.right


class Pass:
    """The forward and the backward pass of one chunk.

    Call `forward` first, then `backward`, which adds the gradients of all parameters behind the embedding to
    the weights' sums.  Dropout is keyed by `seed`, and off where that is None or the model is in evaluation
    mode.  Arrays are as `raysweep.models.fused.products.array` returns them.
    """

    def __init__(self, model: LSTM, weights: LSTMWeights, chunk: Chunk, seed: int | None) -> None:
        self.weights, self.chunk, self.width = weights, chunk, model.width
        self.cut = cut_of(model.dropout.p) if model.training and seed is not None else 0
        # The streams of the sites: the embedding's, and one a direction of a layer;
        # without dropout they are not used, and those of one seed are at hand.
        self.sites = streams(seed if seed and self.cut else 0, 1 + 2 * len(weights.layers))
        self._kept: list[tuple[Kept, Kept]] = []

    @property
    def hidden(self) -> np.ndarray:
        """The hidden states [M, D] at masked words, which enter the decoder."""
        return self._head.left

    def forward(self) -> np.ndarray:
        """Return the logits [M, V] at masked words, without the decoder's bias."""
        return self.weights.tokens.apply(self.encode())

    def encode(self) -> np.ndarray:
        """Return the hidden states [M, D] at masked words; keep the arrays of the backward pass."""
        self._head = self._encode()
        return self.hidden

    def backward(self, d_logits: np.ndarray, *, again: bool = False) -> Place:
        """Return the gradients of the first layer's inputs, given that of the logits [M, V].

        The arrays of a layer are freed behind it, unless `again` says that another backward pass follows.
        """
        return self._body_backward(self.weights.tokens.back(d_logits, self.hidden), again=again)

    def _body_backward(self, d_hidden: np.ndarray, *, again: bool = False) -> Place:
        """Return what `backward` returns, given the gradient of the hidden states [M, D]."""
        kept = self._kept
        if again:
            # Gates become their gradients where they stand.
            self._kept = [(left.copy(), right.copy()) for left, right in kept]
        d_place = Place(self._head.left_row, self._head.right_row, d_hidden, d_hidden)
        while self._kept:
            k = len(self._kept) - 1
            both = self._kept.pop()
            d_left, d_right = (self._direction_backward(k, side, both[side], d_place) for side in (0, 1))
            d_place = Place(both[0].order.row, both[1].order.row, d_left, d_right)
        self._kept = kept
        return d_place

    def embed_backward(self, rows: np.ndarray, d_place: Place, table: np.ndarray) -> None:
        """Add the gradient of each word's embedding, given those of `backward`, to its row of `table`."""
        recurrent.enter_backward(rows, self.chunk.place, self.sites[0], self.cut, *d_place.arguments, table)

    def learn(self, d_logits: np.ndarray) -> None:
        """Do the backward pass, and add the gradients of the embedding to the weights' sums as well."""
        self.embed_backward(self.chunk.ids, self.backward(d_logits), self.weights.tokens.gradient)

    def learn_states(self, d_states: np.ndarray) -> None:
        """Do what `learn` does, given the gradient of the hidden states [M, D]; the head has no part."""
        place = self._body_backward(d_states)
        self.embed_backward(self.chunk.ids, place, self.weights.tokens.gradient)

    def _encode(self) -> Place:
        """Return the hidden states at masked words; keep the arrays of the backward pass."""
        chunk, w = self.chunk, self.weights
        layers = len(w.layers)
        every, last = self._orders()
        orders = [*[every] * (layers - 1), last]
        place = self._inputs(orders[0])
        recurrent.enter(chunk.ids, chunk.place, w.token_values, self.sites[0], self.cut, *place.arguments)
        head = self._outputs()
        for k in range(layers):
            above = head if k + 1 == layers else self._inputs(orders[k + 1])
            self._kept.append(
                (
                    self._direction(k, 0, orders[k][0], place.left, above),
                    self._direction(k, 1, orders[k][1], place.right, above),
                )
            )
            place = above
        return head

    def _orders(self) -> tuple[tuple[Order, Order], tuple[Order, Order]]:
        """Return the orders of both directions: where all words are read, and in the last layer."""
        chunk = self.chunk
        lengths, masked = np.diff(chunk.starts), np.diff(chunk.asking)
        back = np.repeat(lengths, lengths) - 1 - chunk.at
        # Sentences without a masked word are not read at all in the last layer.
        some = masked > 0
        far, near = np.zeros_like(lengths), np.zeros_like(lengths)
        far[some] = chunk.at[chunk.masked[chunk.asking[1:][some] - 1]] + 1
        near[some] = back[chunk.masked[chunk.asking[:-1][some]]] + 1
        every = Order.of(chunk, chunk.at, lengths), Order.of(chunk, back, lengths)
        return every, (Order.of(chunk, chunk.at, far), Order.of(chunk, back, near))

    def _inputs(self, orders: tuple[Order, Order]) -> Place:
        """Return empty z [R, D + H] of both directions, with zeros for the first hidden states."""
        made = []
        for order in orders:
            z = self.weights.low(len(order.word), self.width + self.width // 2)
            z[: order.starts[1:2].sum(), self.width :] = 0
            made.append(z)
        return Place(orders[0].row, orders[1].row, *made)

    def _outputs(self) -> Place:
        """Return an empty matrix [M, D] for the hidden states at masked words."""
        masked = self.chunk.masked
        row, nowhere = np.full((2, len(self.chunk.ids)), -1)
        row[masked] = np.arange(len(masked))
        made = self.weights.low(len(masked), self.width)
        return Place(row, nowhere, made, made)

    def _direction(self, k: int, side: int, order: Order, z: np.ndarray, above: Place) -> Kept:
        """Do all steps of a direction of layer k, and write its output to the layer above."""
        weight, H = self.weights.layers[k][side], self.width // 2
        rows, starts = len(order.word), order.starts.tolist()
        gates = self.weights.low(rows, 4 * H)
        cells = np.empty((rows, H), dtype=np.float32)
        most = starts[1] if len(starts) > 1 else 0
        pre = self.weights.low(most, 4 * H)
        key = self.sites[1 + 2 * k + side]
        arguments = (order.word, self.chunk.place, key, self.cut, *above.arguments, side * H)
        for t in range(len(starts) - 1):
            first, after = starts[t], starts[t + 1]
            n = after - first
            weight.weight.apply(z[first:after], out=pre[:n])
            recurrent.advance(
                pre[:n], weight.bias.value, first, starts[t - 1] if t > 0 else -1, after,
                _following(starts, t), gates, cells, z, *arguments,
            )  # fmt: skip
        return Kept(order, z, gates, cells)

    def _direction_backward(self, k: int, side: int, kept: Kept, above: Place) -> np.ndarray:
        """Return the gradient of z, given those of the direction's output."""
        weight, H = self.weights.layers[k][side], self.width // 2
        starts = kept.order.starts.tolist()
        d_z = self.weights.low(*kept.z.shape)
        d_cells = np.zeros((starts[1] if len(starts) > 1 else 0, H), dtype=np.float32)
        key = self.sites[1 + 2 * k + side]
        arguments = (kept.order.word, self.chunk.place, key, self.cut, *above.arguments, side * H)
        for t in range(len(starts) - 2, -1, -1):
            first, after = starts[t], starts[t + 1]
            recurrent.retreat(
                after - first, first, starts[t - 1] if t > 0 else -1, after, _following(starts, t),
                kept.gates, kept.cells, d_z, d_cells, *arguments, weight.bias.gradient,
            )  # fmt: skip
            weight.weight.through(kept.gates[first:after], out=d_z[first:after])
        weight.weight.learn(kept.gates, kept.z, kept.order.row)
        return d_z


def _following(starts: list[int], t: int) -> int:
    """Return the rows of the step behind step t."""
    return starts[t + 2] - starts[t + 1] if t + 2 < len(starts) else 0


def step(model: LSTM, words: Batch, *, seed: int, dtype: torch.dtype) -> Step[LSTMWeights]:
    """Return the step with `MaskedLM.masked_loss` as its loss; dropout is keyed by (seed, sentences' rows).

    Its methods raise `DataError` for words, positions or targets that the model does not have.
    """

    def begin(weights: LSTMWeights, chunk: Chunk) -> Pass:
        return Pass(model, weights, chunk, seed)

    return Step(model, words, max(1, CHUNK // model.width), dtype, LSTMWeights, begin)


def hidden_at(model: LSTM, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
    """Return the hidden states of `MaskedLM.hidden_at`; dropout is keyed as in `masked_loss`.

    Raises `DataError` for words and positions that the model does not have.
    """

    def begin(weights: LSTMWeights, chunk: Chunk) -> Pass:
        return Pass(model, weights, chunk, seed)

    size = max(1, CHUNK // model.width)
    return states(model, words, size, lambda: LSTMWeights(model, dtype), begin)
