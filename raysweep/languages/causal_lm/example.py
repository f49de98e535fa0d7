"""A causal language model small enough for tests, written as the Hugging Face libraries write theirs."""

from __future__ import annotations

from pathlib import Path

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

BEGINNING, PADDING, WORDS = "</s>", "<pad>", "abcdefgh"


def write_model(folder: Path, *, seed: int = 0) -> None:
    """Write an OPT over the words a .. h into `folder`: two layers, random weights, far from uniform."""
    words = {token: k for k, token in enumerate([BEGINNING, PADDING, *WORDS])}
    inner = tokenizers.Tokenizer(models.WordLevel(words, unk_token="a"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=BEGINNING, eos_token=BEGINNING, pad_token=PADDING
    )
    config = OPTConfig(
        vocab_size=len(words), hidden_size=16, word_embed_proj_dim=16, num_attention_heads=2,
        num_hidden_layers=2, ffn_dim=32, max_position_embeddings=32, init_std=0.3, dropout=0.0,
        bos_token_id=0, eos_token_id=0, pad_token_id=1,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = OPTForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
