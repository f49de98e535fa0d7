"""The trace of the Fisher matrix of a masked language model, with its standard error.

    Tr F = E_{x,t} E_{y ~ f(x)} ‖∇_θ log f_y(x)‖²

over sentences x with one uniformly drawn masked position t.  Where the model has reached the conditionals of
its language this is the trace of the Hessian of the pre-training loss (Liu, Xie, Li and Ma, "Same
pre-training loss, better downstream", ICML 2023, section 4); away from there it is the trace of the
Gauss-Newton matrix and differs from it.

Each input gives one unbiased value from one backward pass (raysweep.flatness.vectors) by ghost norms
(raysweep.flatness.ghost).  Inputs are independent, so the mean's standard error is that of their values,
which holds both the spread over inputs and that of the test vectors.

>>> from raysweep.languages.hmm import HMM
>>> from raysweep.models.encoder import EncoderConfig
>>> language = HMM.random(states=4, vocabulary=6, length=3, blocks=2, tasks=(2,))
>>> model = EncoderConfig(shape="8/1/1/16").build(language, seed=0)
>>> estimate = fisher_trace(model, language.sample(64, seed=0))
>>> estimate.n, list(estimate.per_group)
(64, ['embedding', 'layers.0', 'head'])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from raysweep import seeding
from raysweep.errors import ConfigError, DataError
from raysweep.flatness.ghost import GhostNorms
from raysweep.flatness.vectors import Vectors, cotangents
from raysweep.languages.base import Estimate
from raysweep.models.base import MaskedLM

_HEAD = {"final_norm", "head_dense", "head_norm", "decoder"}


@dataclass(frozen=True, kw_only=True)
class TraceEstimate:
    """A Fisher trace in nats: the mean of `n` independent inputs, and what it is made of.

    `per_input` [n] float64 are the inputs' own values; `per_group` and `per_parameter` split the mean;
    `excluded` names the frozen parameters, which are not part of it.
    """

    value: float
    standard_error: float
    n: int
    per_group: Mapping[str, Estimate]
    per_parameter: Mapping[str, Estimate]
    per_input: Tensor
    excluded: tuple[str, ...]

    @property
    def effective_sample_size(self) -> float:
        """(Σ x)² / Σ x² of the inputs' values: n if all are equal, 1 if one of them is everything."""
        return effective_sample_size(self.per_input)

    @property
    def largest_share(self) -> float:
        """The share of the sum that the largest input contributes."""
        return (self.per_input.max() / self.per_input.sum()).item()


@dataclass(frozen=True, kw_only=True)
class InputTraces:
    """Values of single inputs: `values` [n, P] float64, a column for each of the parameters `names`."""

    names: tuple[str, ...]
    values: Tensor
    excluded: tuple[str, ...]

    def by_group(self) -> dict[str, Tensor]:
        """Return the values [n] of each parameter group, in the model's order."""
        groups: dict[str, Tensor] = {}
        for column, name in enumerate(self.names):
            group = parameter_group(name)
            value = self.values[:, column]
            groups[group] = groups[group] + value if group in groups else value
        return groups


def parameter_group(name: str) -> str:
    """Return the group of a parameter: `embedding`, `layers.<i>` or `head`; else its first name.

    A decoder tied to the token embedding counts there, with all of its gradient.

    >>> [parameter_group(n) for n in ("token_embedding.weight", "layers.3.up.bias", "decoder.bias")]
    ['embedding', 'layers.3', 'head']
    """
    first, *rest = name.split(".")
    if first in _HEAD:
        return "head"
    if first.endswith("embedding") or first == "embedding_norm":
        return "embedding"
    return f"{first}.{rest[0]}" if len(rest) > 1 and rest[0].isdigit() else first


def effective_sample_size(values: Tensor) -> float:
    """Return (Σ x)² / Σ x² of non-negative `values` [n]."""
    return (values.sum().square() / values.square().sum()).item()


def draw_positions(ids: Tensor, pad_id: int, *, seed: int, start: int = 0) -> Tensor:
    """Draw one position [n] uniformly from the words of each sentence of `ids` [n, T].

    Row i is keyed by (seed, start + i).
    """
    _check_sentences(ids)
    index = torch.arange(start, start + len(ids))
    lengths = (ids != pad_id).sum(dim=1).cpu()
    draws = seeding.uniforms(seed, "position", index, 1)[:, 0]
    return (draws * lengths).long().to(ids.device)


def input_traces(
    model: MaskedLM,
    ids: Tensor,
    positions: Tensor,
    *,
    seed: int = 0,
    start: int = 0,
    vectors: Vectors = "rademacher",
    draws: int = 1,
    batch: int = 64,
) -> InputTraces:
    """Return an unbiased value of Tr F at each sentence of `ids` [n, T] with `positions` [n] masked.

    Arguments and errors are those of `fisher_trace`.
    """
    _check_sentences(ids)
    _check_positions(model, ids, positions)
    if draws < 1 or batch < 1:
        raise ConfigError(f"draws={draws}, batch={batch}: both must be at least 1")
    device = next(model.parameters()).device
    ids, positions = ids.to(device), positions.to(device)
    masked = ids.scatter(1, positions[:, None], model.pad_id + 1)
    index = torch.arange(start, start + len(ids), device=device)
    lengths = (ids != model.pad_id).sum(dim=1)
    # Neighbours in length share a batch, cut to its longest: most batches then hold no padding at all.
    order = lengths.argsort(stable=True)
    with _evaluating(model), GhostNorms(model) as ghost:
        ends = order[[0, -1]]
        ghost.verify(masked[ends], positions[ends])
        values = torch.empty(len(ids), len(ghost.names), dtype=torch.float64, device=device)
        for rows in torch.split(order, batch):
            longest = int(lengths[rows[-1]])
            logits = ghost.forward(masked[rows, :longest], positions[rows])
            total = torch.zeros(len(rows), len(ghost.names), dtype=torch.float64, device=device)
            count = logits.shape[1] if vectors == "exact" else draws
            pairs = cotangents(logits, index[rows], kind=vectors, seed=seed, draws=draws)
            for k, (v, weight) in enumerate(pairs):
                total += weight * ghost.norms(v, last=k + 1 == count)
            values[rows] = total
        return InputTraces(names=tuple(ghost.names), values=values.cpu(), excluded=tuple(ghost.excluded))


def fisher_trace(
    model: MaskedLM,
    ids: Tensor,
    positions: Tensor | None = None,
    *,
    seed: int = 0,
    start: int = 0,
    vectors: Vectors = "rademacher",
    draws: int = 1,
    batch: int = 64,
) -> TraceEstimate:
    """Estimate Tr F of `model` on sentences `ids` [n, T], one masked position each; dropout is off.

    `ids` are right-padded with the model's `pad_id`.  `positions` [n] are drawn uniformly over each
    sentence's words when None.  `seed` and the inputs' numbers `start .. start+n-1` key positions and test
    vectors: the same for every model.  `draws` random vectors are averaged at each input (more inputs serve
    better than more draws).  Parameters with `requires_grad` False are left out and named in `excluded`.

    Raises `DataError` for sentences or positions that do not fit the model, `ConfigError` for a model with
    trainable parameters whose gradient norms are not known.
    """
    if positions is None:
        positions = draw_positions(ids, model.pad_id, seed=seed, start=start)
    traces = input_traces(
        model, ids, positions, seed=seed, start=start, vectors=vectors, draws=draws, batch=batch
    )
    return summarise(traces)


def summarise(traces: InputTraces) -> TraceEstimate:
    """Return the mean over inputs with its standard error, and its parts."""
    per_input = traces.values.sum(dim=1)
    whole = Estimate.of(per_input)
    return TraceEstimate(
        value=whole.value,
        standard_error=whole.standard_error,
        n=whole.n,
        per_group={group: Estimate.of(value) for group, value in traces.by_group().items()},
        per_parameter={
            name: Estimate.of(traces.values[:, column]) for column, name in enumerate(traces.names)
        },
        per_input=per_input,
        excluded=traces.excluded,
    )


def _check_sentences(ids: Tensor) -> None:
    if ids.dim() != 2 or len(ids) == 0:
        raise DataError(f"ids of shape {list(ids.shape)}: give at least one sentence, as [n, T]")


def _check_positions(model: MaskedLM, ids: Tensor, positions: Tensor) -> None:
    if positions.shape != ids.shape[:1]:
        raise DataError(f"positions of shape {list(positions.shape)} for {len(ids)} sentences: give one each")
    lengths = (ids != model.pad_id).sum(dim=1)
    wrong = (positions < 0) | (positions.to(ids.device) >= lengths)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise DataError(
            f"sentence {row}: masked position {int(positions[row])} is not one of its "
            f"{int(lengths[row])} words"
        )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and every module back as it was."""
    modes: Sequence[tuple[nn.Module, bool]] = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
