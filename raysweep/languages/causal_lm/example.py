"""A causal language model small enough for tests, written as the Hugging Face libraries write theirs."""

from __future__ import annotations

from pathlib import Path

import torch

from raysweep.languages.causal_lm.small import small_opt

WORDS = "abcdefgh"


def write_model(folder: Path, *, seed: int = 0) -> None:
    """Write an OPT over the words a .. h into `folder`: two layers, random weights, far from uniform."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model, tokenizer = small_opt(
            [*WORDS], unknown="a", positions=32, hidden_size=16, word_embed_proj_dim=16,
            num_attention_heads=2, num_hidden_layers=2, ffn_dim=32, init_std=0.3,
        )  # fmt: skip
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
