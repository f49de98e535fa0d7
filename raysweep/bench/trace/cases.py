"""A model in one state, and every way to its trace."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

from raysweep.bench.harness import Case, Contestant, paired_ratio, shares
from raysweep.bench.products import call_by_call, products
from raysweep.bench.record import Figure, Goal, Peak, Timing
from raysweep.bench.trace.contestants import Sizes, hutchinson_peers, label_peers
from raysweep.bench.trace.subject import TOLERANCE, State, Subject, drawn, stepper_of, subject
from raysweep.bench.trace.variance import Replicates, Spread, estimated, traces
from raysweep.evaluation import ModelSubject
from raysweep.evaluation.excess_loss import ExcessLossConfig
from raysweep.flatness.pool import Pool
from raysweep.flatness.trace.contrast import compare
from raysweep.flatness.trace.control import Control
from raysweep.flatness.trace.estimate import summarise
from raysweep.flatness.trace.fisher import input_traces
from raysweep.flatness.trace.hessian import residual_traces

FULL = Sizes(
    ours=1024,
    replicates=40,
    replicate=1024,
    inputs=1024,
    residuals=256,
    batches=(32, 128, 512),
    small_batches=(4, 16, 64, 256),
    trial=6,
    draws=48,
)
QUICK = Sizes(
    ours=64,
    replicates=4,
    replicate=64,
    inputs=32,
    residuals=8,
    batches=(4, 8),
    small_batches=(2, 4),
    trial=3,
    draws=8,
)

#: Sentences of a training step, and inputs of the trace that is timed beside it.
STEP = 512


def trace(shape: str, state: State, quick: bool) -> Case:
    """Return the case of a model of `shape` in a state of training."""
    sizes = QUICK if quick else FULL
    what = subject(
        "16/1/1/32" if quick and shape.count("/") == 3 else "16/1" if quick else shape, state, quick
    )
    ids, positions, _ = what.inputs(sizes.ours)
    replicates = Replicates.of(what, inputs=sizes.replicate, seeds=sizes.replicates)
    spread = Spread.of(what, inputs=sizes.inputs, draws=2)
    return Case(
        unit="trace",
        ours=Contestant(
            units=traces(sizes.ours, replicates.variance),
            work=partial(estimated, what.model, ids, positions),
        ),
        peers=label_peers(what, sizes, spread) + hutchinson_peers(what, sizes, spread),
        rounds=3 if quick else 5,
        figures=partial(_figures, what, state, sizes, replicates),
    )


def _figures(
    what: Subject, state: State, sizes: Sizes, replicates: Replicates, timing: Timing | None, peak: Peak
) -> Sequence[Figure]:
    """Return the state of training, the cost of an input, and the gain of each device against noise."""
    saturated = state == "saturated"
    excess = excess_loss(what, sizes.residuals)
    figures = [
        Figure(
            name="excess loss of the model",
            unit="nats",
            value=excess,
            goal=Goal(sense="at most", value=TOLERANCE) if saturated else None,
        ),
        Figure(name="relative variance of an input", unit="", value=replicates.variance),
        Figure(
            name="the same without statistics of mean zero, divided by it",
            unit="×",
            value=replicates.plain / replicates.variance,
        ),
        Figure(
            # The relative standard error of the spread of so many normal values.
            name=f"claimed standard error divided by the spread over {sizes.replicates} seeds, "
            f"which is known to {math.sqrt(0.5 / (sizes.replicates - 1)):.0%}",
            unit="",
            value=replicates.honesty,
        ),
        Figure(
            name="an input beside one of a training step, float32",
            unit="",
            value=beside_training(what, STEP if sizes is FULL else sizes.ours),
            goal=Goal(sense="at most", value=0.8),
        ),
        *_shares(what, sizes.ours),
    ]
    if state != "init":
        figures += contrast(what, sizes)
    if saturated:
        gain = residual_gain(what, sizes.residuals)
        figures.append(
            Figure(
                name="variance of Tr H's residual, hard labels divided by soft",
                unit="×",
                value=gain,
                goal=Goal(sense="at least", value=30),
            )
        )
    return figures


def excess_loss(what: Subject, sentences: int) -> float:
    """Return the excess loss in nats, over every position of `sentences` sentences."""
    losses, one = ExcessLossConfig(sentences=sentences), ModelSubject(what.language, what.model)
    found = losses.combine([losses.measure(one, k) for k in range(losses.shards())])
    [excess] = [metric.value for metric in found if metric.name == "excess_loss"]
    return excess


def beside_training(what: Subject, inputs: int) -> float:
    """Return the cost of the trace at `inputs` inputs, divided by that of a training step on as many."""
    ids, positions, _ = what.inputs(inputs)
    stepper = stepper_of(what.config, what.language, steps=1, batch_size=inputs)
    [batch] = drawn(stepper, what.language, 1)
    return paired_ratio(partial(input_traces, what.model, ids, positions), partial(stepper.update, batch, 1))


def _shares(what: Subject, inputs: int) -> list[Figure]:
    """Return which shares of an input's time its parts take, and how fast products of matrices are."""
    from raysweep.flatness.fused.lstm import LSTMNorms
    from raysweep.flatness.fused.taps import ChunkNorms
    from raysweep.models.fused import attention, kernels, recurrent
    from raysweep.models.lstm import LSTM

    norms: type = ChunkNorms
    parts: dict[str, tuple[object, Sequence[str]]] = {
        "in attention": (attention, ["attend", "attend_backward", "gather", "gather_backward"]),
        "in activations": (kernels, ["gelu", "gelu_backward"]),
        "in LayerNorms, forward": (kernels, ["embed", "norm", "junction"]),
        "in LayerNorms, backward, with the norms of their gradients": (ChunkNorms, ["norm", "junction"]),
    }
    if isinstance(what.model, LSTM):
        norms = LSTMNorms
        parts = {
            "in the passes of the gates, forward": (recurrent, ["advance"]),
            "in the passes of the gates, backward": (recurrent, ["retreat"]),
        }
    ids, positions, _ = what.inputs(inputs)
    work = partial(input_traces, what.model, ids, positions)
    share, rate = products(work)
    return [
        Figure(name="share of an input in matrix products", unit="", value=share),
        Figure(name="rate of these products by the peak in float32", unit="", value=rate),
        *shares(
            {
                "share of an input in norms of matrices' gradients": (norms, ["linear"]),
                "in norms of embeddings' gradients": (ChunkNorms, ["_tables"]),
                **parts,
                "in control statistics": (Control, ["statistics"]),
            },
            work,
            partial(call_by_call, work),
        ),
    ]


def contrast(what: Subject, sizes: Sizes) -> list[Figure]:
    """Return the gain of common random numbers in the difference of two checkpoints' traces.

    Both ways take two estimates from equally many inputs, by the same estimator.  With different inputs and
    vectors, the variance is the sum of the two; with the same ones, it is that of the paired differences.
    With exact vectors in place of random ones, that variance is how much the models' difference varies from
    input to input, which no test vector changes.
    """
    ids, positions, _ = what.inputs(sizes.ours)
    models = what.earlier, what.model
    estimates = [estimated(model, ids, positions) for model in models]
    [paired] = compare(estimates)
    apart = sum(estimate.standard_error**2 for estimate in estimates)
    [exact] = compare(
        [summarise(input_traces(model, ids, positions, vectors="exact", uniform=True)) for model in models]
    )
    return [
        Figure(
            name="variance of a contrast, 19/20 of training and its end, separate by common random numbers",
            unit="×",
            value=apart / paired.standard_error**2,
            goal=Goal(sense="at least", value=10),
        ),
        Figure(name="correlation of the two checkpoints' inputs", unit="", value=paired.correlation),
        Figure(
            name="variance of the contrast by exact vectors, divided by that by random ones",
            unit="",
            value=exact.standard_error**2 / paired.standard_error**2,
        ),
    ]


def residual_gain(what: Subject, inputs: int) -> float:
    """Return the variance of Tr R at an input with words as labels, divided by that with conditionals."""
    ids, positions, _ = what.inputs(inputs)
    log_probs = what.language.conditionals_at(ids, positions)
    soft, hard = (
        residual_traces(what.model, Pool.of(what.model, ids, positions, log_probs=labels)).var().item()
        for labels in (log_probs, None)
    )
    return hard / soft
