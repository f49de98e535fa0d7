"""Control variates of a trace by the places of masked words.

Where the masked word of a sentence of L words is drawn uniformly, each of its places has probability 1/L,
whatever the sentence.  So for any group of places, the indicator that the masked word is in it, less the
share of the sentence's words in it, has mean zero.  A regression on these statistics
(`raysweep.flatness.trace.regression`) takes off what the place alone explains.  At initial weights that may
be most of the spread between inputs: each place has a random vector of its own there.  It costs no look at
the model.

Each group of neighbouring places is as large as is needed for enough inputs to have their masked word in it.
Places that few sentences reach would otherwise have coefficients from a handful of inputs, and single
adjusted values many times as large as all others.  The groups depend on the lengths of the sentences alone,
not on the places drawn, so that the means stay zero.

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
            f"positions of shape {list(positions.shape)}: with uniform=True give one a sentence, "
            f"[{len(ids)}], or leave it out"
        )
    return torch.stack([positions, (ids != pad_id).sum(dim=1)], dim=1).int().cpu()


def groups_of(words: Tensor, most: int) -> Tensor:
    """Return the number of the group of each place [T], of at most `most` groups of neighbouring places.

    `words` [n] are the lengths of sentences, T at most.  Groups are as equal in their expected number of
    masked words as places allow, and none has less than n / (2 `most`) of them.

    >>> groups_of(torch.tensor([4, 4, 4, 4]), 2)
    tensor([0, 0, 1, 1])
    >>> groups_of(torch.tensor([2, 2, 2, 4]), 2)
    tensor([0, 1, 1, 1])
    """
    longest = int(words.max())
    # A sentence of L words gives each of its places 1 / L.
    sentences = torch.bincount(words, minlength=longest + 1)[1:]
    expected = (sentences / torch.arange(1, longest + 1).double()).flip(0).cumsum(dim=0).flip(0)
    middles = expected.cumsum(dim=0) - expected / 2
    part = (middles * most / len(words)).long().tolist()
    least, found, group, held = len(words) / (2 * most), list[int](), 0, 0.0
    for place, count in enumerate(expected.tolist()):
        if place > 0 and part[place] > part[place - 1] and held >= least:
            group, held = group + 1, 0.0
        found.append(group)
        held += count
    # A last group that is too small joins the one before.
    return torch.tensor(found).clamp(max=max(0, group - (held < least)))


def place_statistics(places: Tensor, most: int) -> Tensor:
    """Return a statistic of mean zero [n, G − 1], float64, for each of G ≤ `most` groups of places but one.

    `places` [n, 2] are those of `places_of`.  All statistics add up to zero, so the last is left out.

    >>> place_statistics(torch.tensor([[0, 4], [3, 4]]), 2)
    tensor([[ 0.5000],
            [-0.5000]], dtype=torch.float64)
    """
    place, words = places.long().unbind(dim=1)
    inside = torch.nn.functional.one_hot(groups_of(words, most)).double()[:, :-1]
    # Of sentences of 1, 2, ... words.
    shares = inside.cumsum(dim=0) / torch.arange(1, len(inside) + 1)[:, None]
    return inside[place].sub_(shares[words - 1])


def all_statistics(control: Tensor | None, places: Tensor | None) -> Tensor | None:
    """Return all statistics of mean zero [n, K]: `control` [n, k] and those of places; None without any.

    There are so many groups of places that each coefficient of the regression has `CONTROL_INPUTS` inputs.
    """
    if places is None:
        return control
    used = 1 + (0 if control is None else control.shape[1])
    most = len(places) // CONTROL_INPUTS - used + 1
    if most < 2:
        return control
    found = place_statistics(places, most)
    return found if control is None else torch.cat([control, found], dim=1)
