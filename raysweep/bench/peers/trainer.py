"""Fine-tuning with the Trainer of `transformers`, which needs `accelerate`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from raysweep.bench.peers import peer
from raysweep.bench.peers.sequence_classifier import SequenceClassifier
from raysweep.languages.quiet import quiet


class WithTrainer:
    """A sequence classifier that the Trainer trains, with the classifier's optimizer.

    The optimizer and the schedule are handed over, because the Trainer's own schedule warms up a step later.
    Raises `UnavailableError` where `accelerate` is absent.
    """

    def __init__(self, classifier: SequenceClassifier) -> None:
        peer("accelerate")
        self.inner = classifier

    def train(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
        """Do a step on each batch of sentences ids [b, T] and labels [b]; return the losses [steps].

        All batches but the last have one size.
        """
        import transformers

        given, inner = list(batches), self.inner
        recipe, schedule = inner.recipe, inner.recipe.algorithm()
        rate = torch.optim.lr_scheduler.LambdaLR(
            inner.optimizer, lambda done: schedule.learning_rate(done + 1, len(given)) / recipe.lr
        )
        losses: list[Tensor] = []

        def loss_of(outputs: Any, labels: Tensor, num_items_in_batch: object = None) -> Tensor:
            loss = F.cross_entropy(outputs.logits, labels)
            losses.append(loss.detach())
            return loss

        with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as folder, quiet():
            settings = transformers.TrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=len(given[0][0]),
                train_sampling_strategy="sequential",
                max_grad_norm=recipe.clip_norm or 0.0,
                bf16=inner.precision == torch.bfloat16,
                use_cpu=True,
                logging_strategy="no",
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
            )
            trainer: Any = transformers.Trainer(
                model=inner.model,
                args=settings,
                train_dataset=self._rows(given),
                data_collator=self._collated,
                compute_loss_func=loss_of,
                optimizers=(inner.optimizer, rate),
            )
            # It prints what is logged at the end.
            trainer.remove_callback(transformers.PrinterCallback)
            trainer.train()
        return torch.stack(losses)

    def _rows(self, given: Sequence[tuple[Tensor, Tensor]]) -> list[dict[str, Tensor]]:
        """Return the sentences without their padding, the token in front, with their labels."""
        pad_id, token = self.inner.pad_id, torch.tensor([self.inner.cls_id])
        return [
            {"input_ids": torch.cat([token, words[words != pad_id]]), "labels": label}
            for ids, labels in given
            for words, label in zip(ids, labels, strict=True)
        ]

    def _collated(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return a batch that is padded to its longest sentence."""
        ids = pad_sequence(
            [row["input_ids"] for row in rows], batch_first=True, padding_value=self.inner.pad_id
        )
        return {
            "input_ids": ids,
            "attention_mask": (ids != self.inner.pad_id).long(),
            "labels": torch.stack([row["labels"] for row in rows]),
        }
