"""Masked language models of `transformers`, measured as they are."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from raysweep.errors import ConfigError


class HuggingFaceMaskedLM(nn.Module):
    """A model such as `BertForMaskedLM` or `RobertaForMaskedLM`, as `fisher_trace` takes it.

    Its vocabulary and tied weights stay its own; parameters are named as there, behind `model.`.  `mask_id`
    is its tokenizer's `mask_token_id`, `pad_id` by default that of its configuration.  Sentences are
    right-padded with it and hold their sentence-level tokens already, so positions are to be given, or these
    would be masked too.

    The head is computed at masked positions alone where it is one submodule.  Raises `ConfigError` for a
    model that has no head over its vocabulary or no padding token.
    """

    def __init__(self, model: nn.Module, *, mask_id: int, pad_id: int | None = None) -> None:
        super().__init__()
        config: Any = getattr(model, "config", None)
        pad_id = getattr(config, "pad_token_id", None) if pad_id is None else pad_id
        if pad_id is None:
            raise ConfigError("pad_id: the model's configuration names no padding token; give it here")
        find: Any = getattr(model, "get_output_embeddings", None)
        decoder = None if find is None else find()
        if decoder is None:
            raise ConfigError(
                f"{type(model).__name__} has no head over its vocabulary; load it with AutoModelForMaskedLM"
            )
        self.pad_id, self.mask_id = int(pad_id), int(mask_id)
        self.width = int(getattr(config, "hidden_size", 512))
        self.total_vocabulary = int(getattr(config, "vocab_size", 0))
        self.model = model
        # The head is the top-level part that has the decoder; it gets masked positions alone.
        (self._head_name,) = (
            name for name, child in model.named_children() if any(m is decoder for m in child.modules())
        )

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Return logits [B, V] at `positions` [B] of masked `ids` [B, T], or [B, m, V] at [B, m]."""
        several = positions if positions.dim() == 2 else positions[:, None]
        at = several.clamp(min=0)[:, :, None]

        def narrow(head: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
            hidden, *others = args
            return (hidden.gather(1, at.expand(-1, -1, hidden.shape[-1])), *others)

        handle = self.model.get_submodule(self._head_name).register_forward_pre_hook(narrow)
        try:
            made = self.model(input_ids=ids, attention_mask=(ids != self.pad_id).long())
        finally:
            handle.remove()
        logits: Tensor = made.logits
        return logits if positions.dim() == 2 else logits[:, 0]
