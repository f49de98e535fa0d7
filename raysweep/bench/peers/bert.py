"""Pre-training of `transformers`' BertForMaskedLM in the usual few lines."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysweep.algorithms.adamw import AdamWConfig
from raysweep.algorithms.base import decay_groups
from raysweep.bench.harness import UnavailableError
from raysweep.languages.quiet import quiet
from raysweep.models.base import MaskedLM
from raysweep.models.batch import Batch
from raysweep.models.huggingface import to_huggingface

#: The label of words that are not masked.
IGNORED = -100

#: Models of more layers are compiled layer by layer.  All layers share one compiled form then, which takes a
#: small part of the time that the whole takes, and hardly anything could be fused between two layers.
COMPILED_WHOLE = 4


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The choices of a training that the work leaves open.

    A `precision` other than float32 is that of autocast.  `fused` is the option of torch's AdamW; None leaves
    it to torch.  `attention` is the implementation that `transformers` uses.
    """

    precision: torch.dtype = torch.float32
    attention: str = "sdpa"
    fused: bool | None = None
    compiled: bool = False


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """A batch in the form that BertForMaskedLM takes, [B, T] each."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor

    @classmethod
    def of(cls, batch: Batch, pad_id: int) -> Inputs:
        """Return a batch of one masked word a sentence, no wider than its longest sentence."""
        real = batch.ids != pad_id
        width = int(real.sum(dim=1).max())
        labels = torch.full_like(batch.ids, IGNORED).scatter(1, batch.index[:, None], batch.targets[:, None])
        return cls(
            input_ids=batch.ids[:, :width].contiguous(),
            attention_mask=real[:, :width].long(),
            labels=labels[:, :width].contiguous(),
        )


def check_compiler(device: str) -> None:
    """Raise `UnavailableError` where torch.compile fails, for example without a C compiler."""
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.ones(8, device=device))
    except RuntimeError as error:
        told = str(error).strip().splitlines() or [type(error).__name__]
        raise UnavailableError(f"torch.compile does not work here: {told[0]}") from error


class Bert:
    """A BertForMaskedLM with the weights and the dropout of an encoder, and its optimizer."""

    def __init__(
        self, model: MaskedLM, algorithm: AdamWConfig, recipe: Recipe, *, steps: int, device: str
    ) -> None:
        import transformers

        with tempfile.TemporaryDirectory(prefix="raysweep-bench-") as folder, quiet():
            to_huggingface(model, folder)
            made: Any = transformers.BertForMaskedLM.from_pretrained(
                folder, attn_implementation=recipe.attention
            )
        # Encoders of raysweep have no segments.
        made.bert.embeddings.token_type_embeddings.requires_grad_(False)
        self.algorithm, self.recipe, self.steps, self.device = algorithm, recipe, steps, device
        self.model = made.to(device).train()
        self.optimizer = torch.optim.AdamW(
            decay_groups(self.model, algorithm.weight_decay),
            lr=algorithm.lr,
            betas=algorithm.betas,
            eps=algorithm.eps,
            fused=recipe.fused,
        )
        if recipe.compiled:
            # Beyond its limit of forms, the compiler would leave the rest as it is, and slow.
            torch._dynamo.config.fail_on_recompile_limit_hit = True
            layers = self.model.bert.encoder.layer
            parts = [self.model.bert.embeddings, *layers, self.model.cls]
            for part in [self.model] if len(layers) <= COMPILED_WHOLE else parts:
                part.compile()

    def update(self, inputs: Inputs, step: int) -> Tensor:
        """Do step `step`, counted from 1; return the loss, detached, on the device."""
        half = self.recipe.precision != torch.float32
        with torch.autocast(self.device, self.recipe.precision, enabled=half):
            loss: Tensor = self.model(
                input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, labels=inputs.labels
            ).loss
        torch.autograd.backward(loss)
        for group in self.optimizer.param_groups:
            group["lr"] = self.algorithm.learning_rate(step, self.steps)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def train(self, batches: Sequence[Inputs]) -> Tensor:
        """Do a step on each batch, from step 1 on; return the losses [steps]."""
        return torch.stack([self.update(inputs, step) for step, inputs in enumerate(batches, start=1)])
