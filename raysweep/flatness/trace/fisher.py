"""The trace of the Fisher matrix of a masked language model, with its standard error.

    Tr F = E_{x,t} E_{y ~ f(x)} ‖∇_θ log f_y(x)‖²

over sentences x with a masked position t.  Where the model has reached the conditionals of its language this
is the trace of the Hessian of the pre-training loss (Liu, Xie, Li and Ma, "Same pre-training loss, better
downstream", ICML 2023, section 4); away from there it is the trace of the Gauss-Newton matrix and differs
from it.

With several masked positions M(x) in a sentence, as in training that masks 15 %, the loss is the mean over
all masked positions, and so is the trace:  Tr F = E Σ_{t∈M(x)} E_{y ~ f_t(x)} ‖∇_θ log f_{t,y}(x)‖² / E
|M(x)|.

Each input gives one unbiased value from one backward pass (raysweep.flatness.vectors) by ghost norms
(raysweep.flatness.norms.ghost), or slower, and said, for models that these do not know
(raysweep.flatness.norms.fallback).  Of models whose head is known, what the head alone tells of a test vector
is taken off the values, by statistics of mean zero (raysweep.flatness.trace.control), and where places are
drawn here, so is what the place of the masked word tells (raysweep.flatness.trace.places).  Inputs are
independent, so the mean's standard error is that of their values, which holds both the spread over inputs and
that of the test vectors (raysweep.flatness.trace.estimate).

>>> from raysweep.languages.hmm import HMM
>>> from raysweep.models.encoder import EncoderConfig
>>> language = HMM.random(states=4, vocabulary=6, length=3, blocks=2, tasks=(2,))
>>> model = EncoderConfig(shape="8/1/1/16").build(language, seed=0)
>>> estimate = fisher_trace(model, language.sample(64, seed=0))
>>> estimate.n, list(estimate.per_group)
(64, ['embedding', 'layers.0', 'head'])
"""

from __future__ import annotations

import logging
import math
from numbers import Integral

import torch
from torch import Tensor, nn

from raysweep.errors import ConfigError
from raysweep.flatness.choice import per_input_norms
from raysweep.flatness.inputs import (
    check_sentences,
    draw_positions,
    keys,
    mask_id,
    masked_places,
    padding_id,
)
from raysweep.flatness.norms.ghost import require_finite
from raysweep.flatness.trace.control import Control
from raysweep.flatness.trace.draws import Draws
from raysweep.flatness.trace.enlarged import enlarged
from raysweep.flatness.trace.estimate import (
    InputTraces,
    TraceEstimate,
    effective_sample_size,
    parameter_group,
    reaches,
    summarise,
)
from raysweep.flatness.trace.places import places_of
from raysweep.flatness.vectors import Drawing, Vectors, check_vectors

__all__ = [
    "InputTraces",
    "TraceEstimate",
    "draw_positions",
    "effective_sample_size",
    "fisher_trace",
    "input_traces",
    "parameter_group",
    "summarise",
]

log = logging.getLogger("raysweep.flatness")

#: Inputs at the first look of the sequential rule.
FIRST_LOOK = 2048


def input_traces(
    model: nn.Module,
    ids: Tensor,
    positions: Tensor,
    *,
    seed: int = 0,
    start: int = 0,
    vectors: Vectors = "rademacher",
    draws: int = 1,
    batch: int | None = None,
    uniform: bool = False,
) -> InputTraces:
    """Return an unbiased value of Tr F at each sentence of `ids` [n, T] with `positions` masked.

    With `uniform` the positions are one a sentence, drawn uniformly from its words (`draw_positions`); the
    estimate then takes off what they alone explain.  Other arguments and errors are those of `fisher_trace`.
    """
    check_sentences(ids)
    check_vectors(vectors)
    _check_numbers(seed=seed, start=start, draws=draws, batch=batch)
    pad_id = padding_id(model)
    device = next(model.parameters()).device
    ids = ids.to(device).long()
    positions, marked = masked_places(ids, positions, pad_id)
    masked = ids.masked_fill(marked, mask_id(model))
    index = torch.arange(start, start + len(ids), device=device)
    drawn = Drawing(kind=vectors, draws=1 if vectors == "exact" else draws, seed=seed, start=start)
    control = Control.of(model, vectors)
    with per_input_norms(model, masked, positions) as norms:
        sums = Draws(
            len(ids),
            len(norms.names),
            0 if control is None else control.size,
            device,
            several=drawn.draws > 1,
        )
        at = None if control is None else control.at
        for forward in norms.batches(masked, positions, at=at, batch=batch):
            number = drawn.count(forward.logits)
            for k, (v, weight) in enumerate(norms.vectors(drawn, forward, index[forward.rows])):
                found, known = forward.norms(v, k + 1 == number), None
                if control is not None and forward.hidden is not None:
                    known = control.statistics(forward.logits, forward.hidden, v, forward.real)
                sums.add(forward.rows, weight, found, known)
    require_finite(sums.values)
    spread = torch.zeros(len(ids), 1, 1, dtype=torch.float64) if vectors == "exact" else sums.spread
    return InputTraces(
        names=tuple(norms.names),
        values=sums.values.cpu(),
        excluded=tuple(norms.excluded),
        weights=marked.sum(dim=1).double().cpu(),
        spread=None if spread is None else spread.cpu(),
        control=None if control is None else sums.statistics.cpu(),
        # With labels the estimate is left as published.
        places=places_of(ids, positions, pad_id) if uniform and vectors != "label" else None,
        keys=keys(masked, positions, pad_id),
        drawn=drawn,
        method=norms.method,
        reason=norms.reason,
    )


def _check_numbers(*, seed: int, start: int, draws: int, batch: int | None) -> None:
    """Raise `ConfigError` for arguments that are no whole numbers, or too small."""
    for name, value in (("seed", seed), ("start", start), ("draws", draws), ("batch", batch)):
        if value is not None and not isinstance(value, Integral):
            raise ConfigError(f"{name}={value!r}: give a whole number")
    if draws < 1 or (batch is not None and batch < 1):
        raise ConfigError(f"draws={draws}, batch={batch}: both must be at least 1")


def fisher_trace(
    model: nn.Module,
    ids: Tensor,
    positions: Tensor | None = None,
    *,
    target_rse: float | None = None,
    enlarged_to: str | None = None,
    seed: int = 0,
    start: int = 0,
    vectors: Vectors = "rademacher",
    draws: int = 1,
    batch: int | None = None,
) -> TraceEstimate:
    """Estimate Tr F of `model` on a pool of sentences `ids` [n, T] with masked positions; dropout is off.

    `ids` are right-padded with the model's `pad_id`.  `positions` are one a sentence [n], several [n, m] with
    −1 for none, or a mask [n, T] of bools; when None, one is drawn uniformly over each sentence's words, and
    what its place alone explains is taken off.
    `seed` and the inputs' numbers `start .. start+n-1` key positions and test vectors: the same for every
    model.  `draws` random vectors are averaged at each input (more inputs serve better than more draws).
    Parameters with `requires_grad` False are left out and named in `excluded`.  With `enlarged_to` the trace
    is that of the model seen as one of that shape, in closed form (raysweep.flatness.trace.enlarged).
    `batch` inputs are computed at once, by default as many as suit the device.

    By default all inputs are used.  With `target_rse` the rule is sequential and fixed in advance: the pool
    is taken in its order, looked at after 2,048 inputs and then after as many as the last look says are
    needed, but at most twice as many as at that look, and the first look ends it at which the relative
    standard error is at most `target_rse` and nothing speaks against the interval.  Where the inputs run out
    before, `reached` is False.  In the limit of small targets the interval at such a stop covers what it says
    (Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals for the mean",
    1965).  The rule stops sooner where the standard error comes out small, and at the first looks it comes
    out small where rare large values are missing: hence so many inputs at the first look, and an interval
    that allows for skewness.  raysweep.bench.statistics.trace measures the coverage.

    Raises `DataError` for sentences or positions that are no tensors of whole numbers or do not fit the
    model, and `ConfigError` for options without sense, a shape that cannot hold the model, and a model
    without `pad_id`, without trainable parameters or with inputs that affect one another.
    """
    check_sentences(ids)
    _check_numbers(seed=seed, start=start, draws=draws, batch=batch)
    if target_rse is not None and not 0 < target_rse < 1:
        raise ConfigError(f"target_rse={target_rse}: give a relative standard error in (0, 1), such as 0.01")
    uniform = positions is None
    if positions is None:
        positions = draw_positions(ids, padding_id(model), seed=seed, start=start)

    def measured(rows: slice) -> InputTraces:
        found = input_traces(
            model,
            ids[rows],
            positions[rows],
            seed=seed,
            start=start + rows.start,
            vectors=vectors,
            draws=draws,
            batch=batch,
            uniform=uniform,
        )
        return found if enlarged_to is None else enlarged(found, model, enlarged_to)

    if target_rse is None:
        estimate = summarise(measured(slice(0, len(ids))))
    else:
        done = min(FIRST_LOOK, len(ids))
        traces = measured(slice(0, done))
        while True:
            estimate = summarise(traces, target_rse=target_rse)
            enough = reaches(target_rse, estimate.relative_standard_error, estimate.warning)
            if enough or done == len(ids):
                break
            upto = next_look(done, estimate.relative_standard_error, target_rse, len(ids))
            traces = traces.joined(measured(slice(done, upto)))
            done = upto
        estimate = summarise(traces, target_rse=target_rse, reached=enough)
        if not enough:
            log.warning(
                "the pool's %d inputs give a relative standard error of %.3g, not %.3g; give more",
                *(len(ids), estimate.relative_standard_error, target_rse),
            )
    if estimate.warning is not None:
        log.warning("the interval of this Fisher trace is not to be trusted: %s", estimate.warning)
    return estimate


def next_look(done: int, rse: float, target: float, pool: int) -> int:
    """Return the number of inputs at the next look, after one of `done` inputs with relative error `rse`.

    >>> [next_look(512, rse, 0.01, 1000) for rse in (0.02, 0.0105)]
    [1000, 593]
    """
    # A twentieth more than the last look asks for, so that the next one is seldom a little too short.
    needed = math.ceil(1.05 * done * (rse / target) ** 2) if math.isfinite(rse) else 2 * done
    return min(max(needed, done + 32), 2 * done, pool)
