"""A classifier of sentences on top of a masked language model: a representation and a head.

    cls      r = h_0                 the state of the sentence-level token, which stands before the sentence
    mean     r = 1/n Σ_t h_t         the mean state of the n words
    bert     z = W drop(tanh(A r + a)) + b
    linear   z = W drop(r) + b

with h the states of `MaskedLM.encode`.  z [C] are the logits of C classes, or one number for a regression.
A, W have independent N(0, 0.02²) entries at first, a and b are zero.  The head `bert` is that of Devlin,
Chang, Lee and Toutanova, "BERT", NAACL 2019, in Hugging Face's BertForSequenceClassification, where A is
random too for a model that was pre-trained without next-sentence prediction.

Sentences go through `MaskedLM.hidden_at`, so training and evaluation have no padding where the model's
pre-training has none.

>>> from raysweep.languages.hmm import HMM
>>> from raysweep.models.encoder import EncoderConfig
>>> language = HMM.random(states=4, vocabulary=6, length=5, blocks=2, tasks=(2,))
>>> classifier = Classifier(
...     EncoderConfig(shape="8/1/2/16").build(language, seed=0),
...     outputs=3, longest=5, pooling="mean", head="linear", dropout=0.0,
...     generator=torch.Generator().manual_seed(0),
... )
>>> classifier.scores(language.sample(2, seed=0)).shape
torch.Size([2, 3])
"""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysweep.errors import DataError
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.dropout import Dropout

Pooling = Literal["cls", "mean"]
Head = Literal["bert", "linear"]

INITIAL_STD = 0.02  # of the head's matrices, as in BERT
_ROWS = 256  # sentences at a time where no gradient is wanted


class Classifier(nn.Module):
    """A copy of `model` with a head of `outputs` numbers; the head's weights come from `generator`.

    `dropout` replaces the model's own rate and is that of the head; None takes the model's in both places.
    Raises `DataError` where the sentence-level token does not fit in front of sentences of `longest` words.
    """

    def __init__(
        self,
        model: MaskedLM,
        *,
        outputs: int,
        longest: int,
        pooling: Pooling,
        head: Head,
        dropout: float | None,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        if pooling == "cls" and model.with_token().max_length <= longest:
            raise DataError(
                f"pooling: sentences of {longest} words leave no place for the sentence-level token in "
                f"a model of {model.with_token().max_length} positions; use mean"
            )
        self.model, self.pooling, self.cls_id = deepcopy(model), pooling, model.vocabulary_size + 2
        rates = [module for module in self.model.modules() if isinstance(module, Dropout | nn.Dropout)]
        if dropout is not None:
            for module in rates:
                module.p = dropout
        own = rates[0].p if rates else 0.0
        device = next(model.parameters()).device
        self.dense = nn.Linear(model.width, model.width) if head == "bert" else None
        self.dropout = Dropout(own if dropout is None else dropout)
        self.out = nn.Linear(model.width, outputs)
        for linear in filter(None, (self.dense, self.out)):
            nn.init.normal_(linear.weight, std=INITIAL_STD, generator=generator)
            nn.init.zeros_(linear.bias)
        self.to(device)

    def batch(self, ids: Tensor, lengths: Tensor) -> Batch:
        """Return sentences ids [b, T] of `lengths` [b] words, both on the CPU, as the model takes them.

        The batch asks for the states that the representation is made of, and is on the model's device.
        """
        ids = ids[:, : int(lengths.max())]
        if self.pooling == "cls":
            ids = F.pad(ids, (1, 0), value=self.cls_id)
            lengths, index = lengths + 1, torch.zeros_like(lengths)
        else:
            index = (ids != self.model.pad_id).flatten().nonzero()[:, 0]
        device = self.out.weight.device
        return Batch(
            ids=ids.to(device),
            index=index.to(device),
            targets=torch.zeros_like(index),
            lengths=lengths,
            count=len(ids),
            rows=range(len(ids)),
            single=self.pooling == "cls",
        )

    def forward(self, words: Batch, *, seed: int, dtype: torch.dtype) -> Tensor:
        """Return z [b, C] of a batch of `batch`.

        Products are in `dtype`.  The model's dropout is keyed by `seed` where the model can do so; else it
        comes, as the head's does, from torch's generator.
        """
        # The batch holds the token itself where its state is wanted.
        model = self.model.with_token() if self.pooling == "cls" else self.model
        states = model.hidden_at(words, seed=seed, dtype=dtype)
        if self.pooling == "mean":
            # Sums of padded rows have one order on every device; adding by index has none on a GPU.
            padded = states.new_zeros(words.ids.numel(), states.shape[1]).index_copy(0, words.index, states)
            sums = padded.unflatten(0, words.ids.shape).sum(dim=1)
            states = sums / words.lengths.to(states.device)[:, None]
        states = states.to(self.out.weight.dtype)
        if self.dense is not None:
            states = self.dense(states).tanh()
        z: Tensor = self.out(self.dropout(states))
        return z

    @torch.no_grad()
    def scores(self, ids: Tensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
        """Return z [n, C] of sentences ids [n, T], on the CPU, without dropout."""
        training = self.training
        self.eval()
        out = torch.empty(len(ids), self.out.out_features)
        for rows, words in self._batches(ids):
            out[rows] = self(words, seed=0, dtype=dtype).float().cpu()
        self.train(training)
        return out

    def _batches(self, ids: Tensor) -> Iterator[tuple[Tensor, Batch]]:
        """Yield row numbers and batches of sentences of about the same length."""
        lengths = (ids != self.model.pad_id).sum(dim=1)
        for rows in lengths.argsort(stable=True).split(_ROWS):
            yield rows, self.batch(ids[rows], lengths[rows])
