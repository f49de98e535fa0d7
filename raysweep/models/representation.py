"""Representations of a sentence by the hidden states of a masked language model.

    concatenated   (h_1, ..., h_T), zero at padding
    mean           the mean of h_t over the words
    cls            h_0, with the sentence-level token before the words
    masked word    (g_1, ..., g_T), zero at padding, with g_t the state at word t where that word is masked

A masked word's state is what the model predicts the word from, so this representation is the counterpart of
the look-up table's: the conditionals of every word.  It takes a pass for each position.

`layers: all` gives the states before the first layer and after each layer, the last of them as `encode`
returns them.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.languages.base import Language
from raysweep.models.base import MaskedLM

Representation = Literal["concatenated", "mean", "cls", "masked word"]
Layers = Literal["last", "all"]


def misfits(
    model: MaskedLM, language: Language, representation: Representation, layers: Layers
) -> list[tuple[str, str]]:
    """Return (field, message) for what a model does not offer: `representation` or `layers`."""
    found = []
    if representation == "cls":
        model = model.with_token()
    if representation == "cls" and model.max_length <= language.max_length:
        found.append(
            (
                "representation",
                f"sentences of {language.max_length} words leave no place for the sentence-level token in a "
                f"model of {model.max_length} positions; use mean or concatenated",
            )
        )
    inside = model.with_token()
    if layers == "all" and not isinstance(getattr(inside, "layers", None), nn.ModuleList):
        found.append(
            ("layers", f"{type(inside).__name__} does not name its layers in a ModuleList `layers`; use last")
        )
    return found


def represent(
    model: MaskedLM, ids: Tensor, representation: Representation, layers: Layers, *, length: int
) -> Tensor:
    """Return representations [B, L, F] of sentences ids [B, T], padded to `length` words."""
    padding = (ids == model.pad_id)[:, None, :, None]
    if representation == "cls":
        read = F.pad(ids, (1, 0), value=model.vocabulary_size + 2)
        return states_at(model.with_token(), read, layers, 0)
    if representation == "masked word":
        found = masked_states(model, ids, layers)
    else:
        found = states(model, ids, layers)
    found = found.masked_fill(padding, 0.0)
    if representation == "mean":
        return found.sum(dim=2) / (~padding).sum(dim=2)
    return F.pad(found, (0, 0, 0, length - ids.shape[1])).flatten(2)


def states(model: MaskedLM, ids: Tensor, layers: Layers) -> Tensor:
    """Return hidden states [B, L, T, D] of the last layer, or of all."""
    if layers == "last" and model.fused:
        index = (ids != model.pad_id).flatten().nonzero()[:, 0]
        last = torch.zeros(*ids.shape, model.width)
        last.flatten(0, 1)[index] = model.read_at(ids, index)
        return last[:, None]
    if layers == "last":
        return model.encode(ids)[:, None]
    if model.with_token() is not model:
        read = F.pad(ids, (1, 0), value=model.vocabulary_size + 2)
        return states(model.with_token(), read, layers)[:, :, 1:]
    found: list[Tensor] = []
    modules = list(model.get_submodule("layers").children())
    hooks = [modules[0].register_forward_pre_hook(lambda module, given: found.append(given[0]))]
    hooks += [
        module.register_forward_hook(lambda module, given, out: found.append(out)) for module in modules[:-1]
    ]
    try:
        last = model.encode(ids)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([*found, last], dim=1)


def masked_states(model: MaskedLM, ids: Tensor, layers: Layers) -> Tensor:
    """Return hidden states [B, L, T, D] at every position, each from a pass in which its word is masked."""
    found = []
    for t in range(ids.shape[1]):
        masked = ids.clone()
        # Padding stays: its states are meaningless, and a mask there would be a word to the others.
        masked[:, t] = torch.where(ids[:, t] == model.pad_id, ids[:, t], model.vocabulary_size + 1)
        found.append(states_at(model, masked, layers, t))
    return torch.stack(found, dim=2)


def states_at(model: MaskedLM, ids: Tensor, layers: Layers, position: int) -> Tensor:
    """Return hidden states [B, L, D] at one position, of the last layer or of all; any at padding."""
    if layers == "last" and model.fused:
        # The last layer is computed for these words alone.
        rows = (ids[:, position] != model.pad_id).nonzero()[:, 0]
        last = torch.zeros(len(ids), model.width)
        last[rows] = model.read_at(ids, rows * ids.shape[1] + position)
        return last[:, None]
    return states(model, ids, layers)[:, :, position]
