"""One model in one state, and every way to its trace."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

import torch
from torch import Tensor

from raysweep.bench.harness import Case, Contestant, Difference, Peer, Prepared
from raysweep.bench.record import Figure, Goal, Peak, Timing
from raysweep.bench.peers.gradient_norms import untied
from raysweep.bench.trace.subject import State, Subject, drawn, stepper_of, subject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.evaluation.subject import ModelSubject
from raysweep.flatness.evaluating import twice_differentiable
from raysweep.flatness.fisher import input_traces
from raysweep.flatness.ghost import GhostNorms
from raysweep.languages.base import Estimate
from raysweep.training.memory import keep_freed_memory

#: Millionths of a trace to 1 % that an input of relative variance 1 makes.
MILLIONTHS = 1e6 * 1e-4

LABELS = 50  # an input, in the paper's text
SEEDS = 20  # replicates of the claimed standard error


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many inputs each contestant takes at once; `draws` an input or batch tell its variance."""

    ours: int
    naive: int
    batch: int
    draws: int


def trace(shape: str, state: State, quick: bool) -> Case:
    """The case of a model of `shape` in a state of training."""
    keep_freed_memory()
    sizes = (
        Sizes(ours=32, naive=1, batch=8, draws=8) if quick else Sizes(ours=512, naive=1, batch=128, draws=50)
    )
    what = subject(
        "16/1/1/32" if quick and shape.count("/") == 3 else "16/1" if quick else shape, state, quick
    )
    ids, positions, _ = what.inputs(sizes.ours)
    spread = Spread.of(what, sizes)
    variance = spread.between + spread.signs

    def ours() -> None:
        input_traces(what.model, ids, positions)

    peers = _label_peers(what, sizes, spread) + _hutchinson_peers(what, sizes, spread)
    return Case(
        unit="millionth",
        ours=Contestant(units=units(sizes.ours, variance), work=ours),
        peers=peers,
        rounds=3 if quick else 5,
        figures=partial(_figures, what, sizes, variance),
    )


def units(inputs: int, variance: float) -> int:
    """Return the millionths of a trace to 1 % that so many draws of a relative variance make."""
    return max(1, round(MILLIONTHS * inputs / variance))


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Relative variances, in squares of the `mean`: `between` inputs, and of one input's `signs`, `label`."""

    mean: float
    between: float
    signs: float
    label: float

    @classmethod
    def of(cls, what: Subject, sizes: Sizes) -> Spread:
        """Measure them on the inputs of a batch."""
        ids, positions, _ = what.inputs(sizes.batch)
        signs, label = (
            input_traces(what.model, ids, positions, vectors=kind, draws=sizes.draws)
            for kind in ("rademacher", "label")
        )
        if signs.spread is None or label.spread is None:
            raise ValueError("a variance takes two draws")
        values, own = signs.values.sum(dim=1), signs.spread.mean()
        mean = values.mean()
        return cls(
            mean=mean.item(),
            # The spread of the means of draws holds some of the draws' own.
            between=max(0.0, ((values.var() - own) / mean**2).item()),
            signs=(sizes.draws * own / mean**2).item(),
            label=(sizes.draws * label.spread.mean() / mean**2).item(),
        )


def _label_peers(what: Subject, sizes: Sizes, spread: Spread) -> list[Peer]:
    """The peers that draw labels: an input's value has the same distribution, whoever computes it."""
    one = spread.between + spread.label
    all_labels = spread.between + spread.label / LABELS
    generator = torch.Generator().manual_seed(0)
    _, positions, masked = what.inputs(sizes.batch)

    def naive() -> Prepared:
        from raysweep.bench.peers.gradient_norms import draw, naive

        def work(count: int = sizes.naive) -> Tensor:
            with torch.no_grad():
                logits = what.model(masked[:count], positions[:count])
            labels = torch.stack([draw(logits, generator) for _ in range(LABELS)], dim=1)
            return naive(what.model, masked[:count], positions[:count], labels)

        def found(labels: Tensor, k: int) -> Tensor:
            return naive(what.model, masked[:k], positions[:k], labels[:, None])[:, 0]

        return _label_prepared(what, found, work, units(sizes.naive, all_labels), min(4, sizes.batch))

    def vmapped() -> Prepared:
        from raysweep.bench.peers.gradient_norms import draw, vectorised

        model = without_padding(what)

        def work() -> Tensor:
            with torch.no_grad():
                labels = draw(model(masked, positions), generator)
            return vectorised(model, masked, positions, labels)

        def found(labels: Tensor, k: int) -> Tensor:
            return vectorised(model, masked[:k], positions[:k], labels)

        return _label_prepared(what, found, work, units(sizes.batch, one), sizes.batch)

    def opacus() -> Prepared:
        from raysweep.bench.peers.gradient_norms import Opacus

        loose = what if not hasattr(what.model, "head_dense") else _untied(what)
        peer = Opacus(_copy(loose))

        def found(labels: Tensor, k: int) -> Tensor:
            return peer.of(peer.logits(masked[:k], positions[:k]), labels)

        work = partial(peer.norms, masked, positions, generator)
        return _label_prepared(loose, found, work, units(sizes.batch, one), sizes.batch)

    return [
        Peer(name=f"{LABELS} labels, a backward pass each", goal=150, prepare=naive, note="the paper's text"),
        Peer(name="vmap of grad, one label", goal=10, prepare=vmapped),
        Peer(
            name="Opacus' norms, one label",
            goal=6,
            prepare=opacus,
            note="the decoder untied, as Opacus asks",
        ),
    ]


def _label_prepared(
    what: Subject,
    found: Callable[[Tensor, int], Tensor],
    work: Callable[[], object],
    made: int,
    checked: int,
) -> Prepared:
    """Return a peer whose norms at given labels are compared with ghost norms at the same."""
    _, positions, masked = what.inputs(checked)

    def check() -> Difference:
        with GhostNorms(what.model) as ghost:
            logits = ghost.forward(masked, positions)
            labels = logits.argsort(dim=1, descending=True)[:, 1]
            p = logits.softmax(dim=-1)
            v = torch.zeros_like(p).scatter_(1, labels[:, None], 1.0) - p
            truth = ghost.norms(v).sum(dim=1)
        theirs = found(labels, checked).detach().double()
        # What is compiled or cached at first use is there when it is timed.
        work()
        return Difference(
            quantity=f"largest relative difference of {checked} inputs' gradient norms",
            value=((theirs - truth).abs() / truth).max().item(),
            tolerance=1e-4,
        )

    return Prepared(check=check, contestant=Contestant(units=made, work=work))


def _hutchinson_peers(what: Subject, sizes: Sizes, spread: Spread) -> list[Peer]:
    """The peers that take one random vector over all parameters for a batch."""
    generator = torch.Generator().manual_seed(1)

    _, positions, masked = what.inputs(sizes.batch)

    def prepared(estimate: Callable[..., Tensor], known: Callable[..., Tensor]) -> Prepared:
        from raysweep.bench.peers.hutchinson import by_slopes, signs

        def one() -> Tensor:
            # PyTorch's fused LSTM has no second derivatives.
            with twice_differentiable(what.model):
                return estimate(masked, positions, signs(what.model, generator))

        values = torch.stack([one().detach().double() for _ in range(sizes.draws)])
        # About the batch's trace, which is known far better than these tell it.
        own = (values / spread.mean - 1).square().mean().item()
        variance = spread.between / sizes.batch + own

        def check() -> Difference:
            vector = signs(what.model, torch.Generator().manual_seed(2))
            with twice_differentiable(what.model):
                truth = float(by_slopes(what.model, masked, positions, vector))
                theirs = float(known(masked, positions, vector))
            return Difference(
                quantity="relative difference of vᵀGv from that by slopes of the logits",
                value=abs(theirs / truth - 1),
                tolerance=1e-3,
            )

        return Prepared(check=check, contestant=Contestant(units=units(1, variance), work=one))

    def curvlinops() -> Prepared:
        from raysweep.bench.peers.hutchinson import Curvlinops

        peer = Curvlinops(without_padding(what))
        return prepared(peer.product, peer.product)

    def released() -> Prepared:
        from raysweep.bench.peers.hutchinson import Released

        peer = Released(what.model)
        return prepared(partial(peer.product, generator=generator), peer.expected)

    note = f"one vector and {sizes.batch} inputs at a time; variance from {sizes.draws} vectors"
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
    """Return a copy of the model that does not look for padding, as the language has none.

    What a tensor holds cannot be asked for under vmap.
    """
    model = _copy(what)
    if hasattr(model, "_padding"):
        object.__setattr__(model, "_padding", lambda ids: None)
    return model


def _copy(what: Subject) -> torch.nn.Module:
    return copy.deepcopy(what.model)


def _untied(what: Subject) -> Subject:
    return replace(what, model=untied(what.model))


def _figures(
    what: Subject, sizes: Sizes, variance: float, timing: Timing | None, peak: Peak
) -> Sequence[Figure]:
    """Return what an input costs beside training, how true standard errors are, and what pairing gains."""
    ids, positions, _ = what.inputs(sizes.ours)
    text, subject = what.language, ModelSubject(what.language, what.model)
    losses = ExcessLossConfig(sentences=sizes.ours)
    found = losses.combine([losses.measure(subject, k) for k in range(losses.shards())])
    [excess] = [metric.value for metric in found if metric.name == "excess_loss"]
    stepper = stepper_of(what.config, text, steps=1, batch_size=sizes.ours)
    [batch] = drawn(stepper, text, 1)
    training = partial(stepper.update, batch, 1)
    ratio = paired_ratio(partial(input_traces, what.model, ids, positions), training)
    estimates = []
    for seed in range(SEEDS):
        pool, at, _ = what.inputs(sizes.ours, start=200_000 + seed * sizes.ours)
        estimates.append(Estimate.of(input_traces(what.model, pool, at, seed=seed).values.sum(dim=1)))
    claimed = torch.tensor([e.standard_error for e in estimates]).square().mean().sqrt()
    spread = torch.tensor([e.value for e in estimates]).std()
    x, y = (input_traces(m, ids, positions).values.sum(dim=1) for m in (what.model, what.earlier))
    figures = [
        Figure(name="excess loss of the model", unit="nats", value=excess),
        Figure(name="relative variance of an input", unit="", value=variance),
        Figure(
            name="an input beside one of a training step, float32",
            unit="",
            value=ratio,
            goal=Goal(sense="at most", value=0.8),
        ),
        Figure(
            name=f"claimed standard error by the spread over {SEEDS} seeds",
            unit="",
            value=(claimed / spread).item(),
        ),
    ]
    apart = (x - y).var().item()
    if apart > 0:
        gain = (x.var() + y.var()).item() / apart
        figures.append(
            Figure(
                name="variance of a contrast with 1/20 earlier, without and with common random numbers",
                unit="",
                value=gain,
                goal=Goal(sense="at least", value=10),
            )
        )
    return figures


def paired_ratio(one: Callable[[], object], other: Callable[[], object], rounds: int = 5) -> float:
    """Return the median over rounds of the CPU seconds of one by those of the other."""
    one(), other()
    ratios = []
    for _ in range(rounds):
        marks = [time.process_time()]
        for work in (one, other):
            work()
            marks.append(time.process_time())
        ratios.append((marks[1] - marks[0]) / (marks[2] - marks[1]))
    return median(ratios)
