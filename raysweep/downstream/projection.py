"""The inputs of a linear probe: features that are standardised and projected at random.

    features φ [F]  →  standardised  →  z = (R φ, 1),  R [K, F] with independent N(0, 1/F) entries

Every seed draws its own R.  Without a projection z = (φ, 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep import seeding
from raysweep.downstream.logistic import Inputs
from raysweep.errors import DataError, RunFailedError


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Features of some sentences [n, F], or [n, L, F] of L layers, and their labels [n] by task.

    `chooses` [n] marks the training sentences on which settings are chosen; None where nothing is.
    """

    features: Tensor
    labels: Mapping[str, Tensor]
    chooses: Tensor | None = None

    @property
    def layers(self) -> Tensor:
        """The features [n, L, F]."""
        return self.features if self.features.ndim == 3 else self.features[:, None]


class Projection:
    """Makes inputs of features.

    These are standardised by the `statistics` [n, L, F], or by the features that it meets first where None is
    given.  Features that do not vary there are dropped.  `width` is K; None is without a projection.
    """

    def __init__(
        self,
        *,
        seeds: int,
        seed: int,
        width: int | None,
        standardize: bool,
        statistics: Tensor | None = None,
    ) -> None:
        self.seeds, self.seed, self.width, self.standardize = seeds, seed, width, standardize
        self._matrix: Tensor | None = None
        self._moments = None if statistics is None else _moments(_by_layer(statistics))

    def span(self, layers: int) -> Tensor | None:
        """Return columns [L·S, K+1, F+1]; all inputs are weighted sums of them.  None where K ≤ F.

        For the features of the last call.
        """
        matrix = self._matrix
        if matrix is None or matrix.shape[2] <= matrix.shape[1]:
            return None
        columns = F.pad(matrix.mT, (0, 1, 0, 1))
        columns[:, -1, -1] = 1
        return columns.repeat(layers, 1, 1)

    def __call__(self, features: Tensor, of: int | None = None) -> Tensor:
        """Return inputs [L·S, n, K+1] of features [n, L, F] for all S seeds, or [L, n, K+1] for one.

        Raises `RunFailedError` for features that are not finite.
        """
        features = self.standardised(features)
        if self.width is None:
            return self.shared(_with_one(features)) if of is None else _with_one(features)
        matrix = self._drawn(features)
        matrix = matrix if of is None else matrix[of : of + 1]
        return _with_one((features[:, None] @ matrix).flatten(0, 1))

    def standardised(self, features: Tensor) -> Tensor:
        """Return features [n, L, F] as [L, n, F], standardised if they are to be."""
        features = _by_layer(features)
        if not self.standardize:
            return features
        if self._moments is None:
            self._moments = _moments(features)
        mean, factor = self._moments
        return (features - mean) * factor

    def unprojected(self, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Return W R [L, F, S·H] and biases [L, 1, S·H] of heads [L·S, H, K+1], after a call.

        Scores (W R) φ cost no projection of a sentence.
        """
        weights, bias = (part.unflatten(0, (-1, self.seeds)) for part in (heads[..., :-1], heads[..., -1]))
        if self._matrix is not None:
            weights = torch.stack([layer @ self._matrix.mT for layer in weights])
        return weights.flatten(1, 2).mT, bias.flatten(1, 2)[:, None]

    def shared(self, x: Tensor) -> Tensor:
        """Return inputs [L·S, n, K+1] of seeds that share x [L, n, K+1]; a view where L is one."""
        return x[:, None].expand(-1, self.seeds, -1, -1).flatten(0, 1)

    def _drawn(self, features: Tensor) -> Tensor:
        """Return R transposed [S, F, K]."""
        if self._matrix is None:
            size, width = features.shape[2], self.width or 0
            drawn = [
                torch.randn(size, width, generator=seeding.generator(self.seed, "projection", s))
                for s in range(self.seeds)
            ]
            self._matrix = torch.stack(drawn).to(features.device) * size**-0.5
        return self._matrix


def gather(
    sets: Sequence[Iterable[Chunk]], tasks: Sequence[str], project: Projection, *, sentences: int
) -> Inputs:
    """Return the inputs of one training set for all seeds, or of one for each, all of `sentences` sentences.

    `counts` of the result are the sentences that do not choose settings.  Raises `DataError` for another
    number of sentences.
    """
    if len(sets) > 1:
        found = [_training_set(chunks, tasks, project, sentences, k) for k, chunks in enumerate(sets)]
        x = torch.stack([part.x for part in found], dim=1).flatten(0, 1)
    elif project.width is None:
        found = [_training_set(sets[0], tasks, project, sentences, 0)]
        x = project.shared(found[0].x)
    else:
        found = [_training_set(sets[0], tasks, project, sentences, None)]
        x = found[0].x
    repeats = len(x) // len(sets)
    y = torch.cat([part.y for part in found]).repeat(repeats, 1, 1)
    counts = [part.counts for part in found if part.counts is not None]
    counted = torch.cat(counts).repeat(repeats, 1) if counts else None
    return Inputs(x=x, y=y, counts=counted, span=project.span(len(x) // project.seeds))


def _training_set(
    chunks: Iterable[Chunk], tasks: Sequence[str], project: Projection, sentences: int, of: int | None
) -> Inputs:
    """Return one training set: x as `Projection` makes them, y [1, n, tasks] and counts [1, n]."""
    x: Tensor | None = None
    labels, counts, at = [], [], 0
    for chunk in chunks:
        made = project(chunk.layers, of)
        if x is None:
            x = made.new_empty(len(made), sentences, made.shape[2])
        x[:, at : at + made.shape[1]] = made[:, : sentences - at]
        at += made.shape[1]
        labels.append(torch.stack([chunk.labels[task] for task in tasks], dim=1).to(made.device))
        if chunk.chooses is not None:
            counts.append((~chunk.chooses).to(made))
    if x is None or at != sentences:
        raise DataError(f"the linear probe was given {at} training sentences, and not {sentences}")
    return Inputs(x=x, y=torch.cat(labels)[None], counts=torch.cat(counts)[None] if counts else None)


def _by_layer(features: Tensor) -> Tensor:
    """Return features [n, L, F] as [L, n, F] in float32.  Raises `RunFailedError` where one is not finite."""
    features = features.to(torch.float32).transpose(0, 1)
    if not bool(features.isfinite().all()):
        raise RunFailedError(
            "the representations are not finite, so nothing can be read off them; "
            "look at the training loss, and lower the learning rate"
        )
    return features


def _moments(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and 1 / standard deviation [L, 1, F] of features [L, n, F]; 0 where these do not vary."""
    wide = features.double()
    mean = wide.mean(dim=1, keepdim=True)
    spread = wide.sub_(mean).square_().mean(dim=1, keepdim=True).sqrt_()
    # A feature that varies by less than a millionth of the others is rounding; do not amplify it.
    varies = spread > 1e-6 * spread.square().mean(dim=2, keepdim=True).sqrt()
    return mean.to(features), torch.where(varies, 1 / spread, 0.0).to(features)


def _with_one(x: Tensor) -> Tensor:
    """Return x [G, n, K] with a column of ones behind."""
    return torch.cat([x, x.new_ones(*x.shape[:2], 1)], dim=2)
