"""Fine-tuning of `transformers`' BertForSequenceClassification in the usual few lines."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raysweep.algorithms.base import decay_groups
from raysweep.downstream.classifier import Classifier
from raysweep.downstream.finetune import Recipe
from raysweep.languages.quiet import quiet
from raysweep.models.huggingface import to_huggingface


class SequenceClassifier:
    """A BertForSequenceClassification with the weights and the dropout of a classifier, and its optimizer.

    The classifier has the head `bert` and the state of the sentence-level token.
    """

    def __init__(self, classifier: Classifier, recipe: Recipe, precision: torch.dtype) -> None:
        import transformers

        if classifier.dense is None or classifier.pooling != "cls":
            raise ValueError("a BertForSequenceClassification has the head 'bert' on the state of 'cls'")
        with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as folder, quiet():
            to_huggingface(classifier.model, folder)
            made: Any = transformers.BertForSequenceClassification.from_pretrained(
                folder, num_labels=classifier.out.out_features
            )
        made.bert.pooler.dense.load_state_dict(classifier.dense.state_dict())
        made.classifier.load_state_dict(classifier.out.state_dict())
        # Encoders of raysweep have no segments.
        made.bert.embeddings.token_type_embeddings.requires_grad_(False)
        self.model = made.train()
        self.recipe, self.precision = recipe, precision
        self.pad_id, self.cls_id = classifier.model.pad_id, classifier.cls_id
        self.optimizer = torch.optim.AdamW(
            decay_groups(self.model, recipe.weight_decay),
            lr=recipe.lr,
            betas=recipe.betas,
            eps=recipe.eps,
            fused=True,
        )

    def train(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Do a step on each batch of sentences ids [b, T] and labels [b]; return the losses [steps]."""
        given, schedule = list(batches), self.recipe.algorithm()
        losses = []
        for step, (ids, labels) in enumerate(given, start=1):
            loss = self._loss(ids, labels)
            torch.autograd.backward(loss)
            if self.recipe.clip_norm is not None:
                torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.clip_norm)
            for group in self.optimizer.param_groups:
                group["lr"] = schedule.learning_rate(step, len(given))
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.detach())
        return torch.stack(losses)

    def _loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch."""
        with torch.autocast("cpu", self.precision, enabled=self.precision != torch.float32):
            loss: Tensor = self.model(**self._inputs(ids), labels=labels).loss
        return loss

    @torch.no_grad()
    def answers(self, ids: Tensor) -> Tensor:
        """Return the predicted classes [n] of sentences ids [n, T], without dropout."""
        self.model.eval()
        found = [self.model(**self._inputs(rows)).logits.argmax(dim=1) for rows in ids.split(256)]
        self.model.train()
        return torch.cat(found)

    def _inputs(self, ids: Tensor) -> dict[str, Tensor]:
        """Return sentences cut to the longest of them, with the token in front."""
        longest = int((ids != self.pad_id).sum(dim=1).max())
        ids = F.pad(ids[:, :longest], (1, 0), value=self.cls_id)
        return {"input_ids": ids, "attention_mask": (ids != self.pad_id).long()}
