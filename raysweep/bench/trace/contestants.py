"""The peers of a case: their checks, their best batch sizes, and the work that is timed.

Each peer is timed on batches of the size at which it is cheapest, among the sizes tried in this run on this
model.  The cost is seconds for an input where a peer gives a value for each input, and seconds times the
relative variance where it gives one value for a batch.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from raysweep.bench.harness import Contestant, Difference, Peer, Prepared, cheapest, seconds
from raysweep.bench.trace.subject import Subject
from raysweep.bench.trace.variance import Spread, traces
from raysweep.flatness.evaluating import twice_differentiable
from raysweep.flatness.norms.ghost import GhostNorms

#: Labels for each input, in the paper's text.
LABELS = 50

#: First inputs of the draws that measure a variance.
_TRIED, _MEASURED = 3_000_000, 4_000_000


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The sizes of a case: raysweep takes `ours` inputs in a call; the others set the accuracy of variances.

    - `replicates` traces from `replicate` inputs each check raysweep's standard error.
    - `residuals` inputs measure the gain of soft labels.
    - Peers try `batches`, or `small_batches` where a whole batch has one vector.
    - `inputs` with two draws each measure the variances of inputs and of labels.
    - `draws` pairs of a vector and a batch measure the variance of Hutchinson's estimate: fewer where batches
      are large, but at least twice `trial`.  At least `trial` pairs choose the best batch.
    """

    ours: int
    replicates: int
    replicate: int
    inputs: int
    residuals: int
    batches: tuple[int, ...]
    small_batches: tuple[int, ...]
    trial: int
    draws: int


def label_peers(what: Subject, sizes: Sizes, spread: Spread) -> list[Peer]:
    """Return the peers that draw labels; the value of an input has the same distribution for all of them."""
    one = spread.between + spread.label
    all_labels = spread.between + spread.label / LABELS
    generator = torch.Generator().manual_seed(0)
    checked = min(128, max(sizes.batches))
    _, positions, masked = what.inputs(max(sizes.batches))

    def naive() -> Prepared:
        from raysweep.bench.peers.gradient_norms import draw, naive

        def work() -> Tensor:
            with torch.no_grad():
                logits = what.model(masked[:1], positions[:1])
            labels = torch.stack([draw(logits, generator) for _ in range(LABELS)], dim=1)
            return naive(what.model, masked[:1], positions[:1], labels)

        def found(labels: Tensor) -> Tensor:
            k = len(labels)
            return naive(what.model, masked[:k], positions[:k], labels[:, None])[:, 0]

        contestant = Contestant(units=traces(1, all_labels), work=work)
        return Prepared(check=partial(_norms_differ, what, found, 4, work), contestant=contestant)

    def batched(
        loose: Subject,
        found: Callable[[Tensor], Tensor],
        work: Callable[[int], object],
        batches: Sequence[int],
    ) -> Prepared:
        size = cheapest(batches, lambda b: seconds(partial(work, b)) / b)
        return Prepared(
            check=partial(_norms_differ, loose, found, checked, partial(work, size)),
            contestant=Contestant(units=traces(size, one), work=partial(work, size)),
            note=_tried(batches, size),
        )

    def vmapped() -> Prepared:
        from raysweep.bench.peers.gradient_norms import draw, vectorised

        model = without_padding(what)

        def work(b: int) -> Tensor:
            with torch.no_grad():
                labels = draw(model(masked[:b], positions[:b]), generator)
            return found(labels)

        def found(labels: Tensor) -> Tensor:
            return vectorised(model, masked[: len(labels)], positions[: len(labels)], labels)

        # vmap holds the gradients of all inputs of a batch in memory, so its batches are half as large.
        return batched(what, found, work, [b // 2 for b in sizes.batches])

    def opacus() -> Prepared:
        from raysweep.bench.peers.gradient_norms import Opacus, untied

        loose = replace(what, model=untied(what.model))
        peer = Opacus(copy.deepcopy(loose.model))

        def found(labels: Tensor) -> Tensor:
            k = len(labels)
            return peer.of(peer.logits(masked[:k], positions[:k]), labels)

        return batched(
            loose, found, lambda b: peer.norms(masked[:b], positions[:b], generator), sizes.batches
        )

    return [
        Peer(name=f"{LABELS} labels, a backward pass each", goal=150, prepare=naive, note="the paper's text"),
        Peer(name="vmap of grad, one label", goal=10, prepare=vmapped),
        Peer(
            name="Opacus' norms, one label",
            goal=6,
            prepare=opacus,
            note="with an untied decoder and Opacus' own LSTM, which Opacus needs",
        ),
    ]


def _norms_differ(
    what: Subject, found: Callable[[Tensor], Tensor], checked: int, work: Callable[[], object]
) -> Difference:
    """Compare a peer's norms at given labels with ghost norms at the same."""
    _, positions, masked = what.inputs(checked)
    with GhostNorms(what.model) as ghost:
        logits = ghost.forward(masked, positions)
        labels = logits.argsort(dim=1, descending=True)[:, 1]
        p = logits.softmax(dim=-1)
        v = torch.zeros_like(p).scatter_(1, labels[:, None], 1.0) - p
        truth = ghost.norms(v).sum(dim=1)
    theirs = found(labels).detach().double()
    # What is compiled or cached at first use is there when it is timed.
    work()
    return Difference(
        quantity=f"largest relative difference of {checked} inputs' gradient norms",
        value=((theirs - truth).abs() / truth).max().item(),
        tolerance=1e-5,
    )


def hutchinson_peers(what: Subject, sizes: Sizes, spread: Spread) -> list[Peer]:
    """Return the peers that take one random vector over all parameters for a batch."""
    generator = torch.Generator().manual_seed(1)

    def prepared(estimate: Callable[..., Tensor], known: Callable[..., Tensor]) -> Prepared:
        from raysweep.bench.peers.hutchinson import by_slopes, signs

        def drawn(batch: int, positions: Tensor, masked: Tensor) -> Tensor:
            """Return the values of all batches, with a new vector for each."""
            values = []
            # PyTorch's fused LSTM has no second derivatives.
            with twice_differentiable(what.model):
                for ids, at in zip(masked.split(batch), positions.split(batch), strict=True):
                    values.append(float(estimate(ids, at, signs(what.model, generator))))
            return torch.tensor(values, dtype=torch.float64)

        def variance(batch: int, count: int, start: int) -> float:
            _, positions, masked = what.inputs(count * batch, start=start)
            return (drawn(batch, positions, masked).var() / spread.mean**2).item()

        def cost(batch: int) -> float:
            count = max(sizes.trial, max(sizes.small_batches) // batch)
            drawn(batch, *what.inputs(batch)[1:])
            started = time.process_time()
            found = variance(batch, count, _TRIED)
            return (time.process_time() - started) / count * found

        size = cheapest(sizes.small_batches, cost)
        # A call does enough of them for the resolution of the clock.
        calls = max(1, 32 // size)
        timed = what.inputs(calls * size)[1:]

        def check() -> Difference:
            _, positions, masked = what.inputs(16)
            vector = signs(what.model, torch.Generator().manual_seed(2))
            with twice_differentiable(what.model):
                truth = float(by_slopes(what.model, masked, positions, vector))
                theirs = float(known(masked, positions, vector))
            return Difference(
                quantity="relative difference of vᵀGv from its value by slopes of the logits",
                value=abs(theirs / truth - 1),
                tolerance=1e-3,
            )

        draws = min(sizes.draws, max(2 * sizes.trial, 16 * max(sizes.small_batches) // size))
        found = variance(size, draws, _MEASURED)
        return Prepared(
            check=check,
            contestant=Contestant(units=traces(calls, found), work=partial(drawn, size, *timed)),
            note=f"{_tried(sizes.small_batches, size)}; variance from {draws} others",
        )

    def curvlinops() -> Prepared:
        from raysweep.bench.peers.hutchinson import Curvlinops

        peer = Curvlinops(without_padding(what))
        return prepared(peer.product, peer.product)

    def released() -> Prepared:
        from raysweep.bench.peers.hutchinson import Released

        peer = Released(what.model)
        return prepared(partial(peer.product, generator=generator), peer.expected)

    note = "a new vector and a new batch for each value"
    return [
        Peer(name="curvlinops' GGN, Hutchinson", goal=6, prepare=curvlinops, note=note),
        Peer(
            name="the released form: Hutchinson by double backpropagation",
            goal=30,
            prepare=released,
            note=f"labels drawn from the model; {note}",
        ),
    ]


def without_padding(what: Subject) -> torch.nn.Module:
    """Return a copy of the model that does not look for padding, because the language has none.

    Under vmap, code cannot depend on the content of a tensor.
    """
    model = copy.deepcopy(what.model)
    if hasattr(model, "_padding"):
        object.__setattr__(model, "_padding", lambda ids: None)
    return model


def _tried(batches: Sequence[int], best: int) -> str:
    *others, last = batches
    return f"{best} inputs at a time, the best of {', '.join(map(str, others))} and {last}"
