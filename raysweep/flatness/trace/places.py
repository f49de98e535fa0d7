"""Control variates of a trace by the places of masked words.

Where the masked word of a sentence of L words is drawn uniformly, each of its places has probability 1/L,
whatever the sentence.  So for any group of places, the indicator that the masked word is in it, less the
share of the sentence's words in it, has mean zero.  A regression on these statistics
(`raysweep.flatness.trace.regression`) takes off what the place alone explains.  At initial weights that is
most of the spread between inputs: each place has a random vector of its own there.  It costs no look at the
model.

Source of the method: Cochran, "Sampling techniques" (1977), section 5A.9, on stratification after selection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from raysweep.errors import DataError
from raysweep.flatness.trace.regression import CONTROL_INPUTS


def places_of(ids: Tensor, positions: Tensor, pad_id: int) -> Tensor:
    """Return the place of the masked word and the number of words [n, 2] of sentences `ids` [n, T].

    Raises `DataError` unless there is one position a sentence [n].
    """
    if positions.dim() != 1:
        raise DataError(
            f"positions of shape {list(positions.shape)}: uniform=True is for one a sentence, {[len(ids)]}"
        )
    return torch.stack([positions, (ids != pad_id).sum(dim=1)], dim=1).int().cpu()


def place_statistics(places: Tensor, groups: int) -> Tensor:
    """Return a statistic of mean zero [n, groups − 1], float64, for each group of neighbouring places.

    `places` [n, 2] are those of `places_of`.  The groups are of one width, and the last one has no statistic,
    because all together add up to zero.

    >>> place_statistics(torch.tensor([[0, 4], [3, 4]]), 2)
    tensor([[ 0.5000],
            [-0.5000]], dtype=torch.float64)
    """
    place, words = places.long().unbind(dim=1)
    longest = int(words.max())
    inside = torch.nn.functional.one_hot(torch.arange(longest) * groups // longest, groups).double()[:, :-1]
    # Of sentences of 1, 2, ... words.
    shares = inside.cumsum(dim=0) / torch.arange(1, longest + 1)[:, None]
    return inside[place].sub_(shares[words - 1])


def beside(control: Tensor | None, places: Tensor | None) -> Tensor | None:
    """Return all statistics of mean zero [n, K]: `control` [n, k] and those of places; None without any.

    There are as many groups of places as there are inputs for: `CONTROL_INPUTS` for each coefficient.
    """
    if places is None:
        return control
    used = 1 + (0 if control is None else control.shape[1])
    groups = min(int(places[:, 1].max()), len(places) // CONTROL_INPUTS - used + 1)
    if groups < 2:
        return control
    found = place_statistics(places, groups)
    return found if control is None else torch.cat([control, found], dim=1)
