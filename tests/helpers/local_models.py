"""Small causal language models in folders of this machine, made when first asked for.

`random_opt` is an OPT of eight words with random weights; `trained_opt` one that was trained for a moment on
docstrings of the standard library, with a byte-level tokenizer trained on the same text.
"""

from __future__ import annotations

import argparse
import ast
import atexit
import collections
import functools
import inspect
import json
import logging
import os
import pathlib
import shutil
import tempfile
from pathlib import Path
from types import ModuleType

import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers, trainers
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from raysweep.languages.causal_lm.example import write_model

BOS, PAD = "</s>", "<pad>"
MODULES = (argparse, ast, collections, functools, inspect, json, logging, os, pathlib, shutil, tempfile)


@functools.cache
def folder() -> Path:
    """Return a folder that is gone when the process ends; what languages cache goes there too."""
    path = Path(tempfile.mkdtemp(prefix="raysweep-models-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    os.environ.setdefault("RAYSWEEP_CACHE", str(path / "cache"))
    return path


def docstrings(modules: tuple[ModuleType, ...] = MODULES) -> list[str]:
    """Return the paragraphs of the modules' documentation, each on one line."""
    found = []
    for module in modules:
        texts = [module.__doc__] + [
            thing.__doc__ for _, thing in inspect.getmembers(module) if inspect.isroutine(thing)
        ]
        for text in texts:
            found += [" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n")]
    return [text for text in dict.fromkeys(found) if len(text) > 20]


def save(model: OPTForCausalLM, tokenizer: PreTrainedTokenizerFast, name: str) -> Path:
    path = folder() / name
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def opt(vocabulary: int, **fields: int | float) -> OPTForCausalLM:
    settings = {"hidden_size": 32, "num_attention_heads": 2, "num_hidden_layers": 2, "ffn_dim": 64} | fields
    settings = {"max_position_embeddings": 32, "word_embed_proj_dim": settings["hidden_size"]} | settings
    return OPTForCausalLM(
        OPTConfig(
            vocab_size=vocabulary, bos_token_id=0, eos_token_id=0, pad_token_id=1, dropout=0.0, **settings
        )
    )


@functools.cache
def random_opt(seed: int = 0) -> Path:
    """Return the folder of a random OPT over the words a .. h, far from uniform."""
    path = folder() / f"random-{seed}"
    write_model(path, seed=seed)
    return path


@functools.cache
def trained_opt() -> Path:
    """Return the folder of an OPT trained on docstrings: 2 layers, width 32, 512 tokens."""
    texts = docstrings()
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=[BOS, PAD],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token=BOS, eos_token=BOS, pad_token=PAD)
    stream = [token for ids in tokenizer(texts)["input_ids"] for token in ids]
    rows = torch.tensor(stream[: len(stream) // 23 * 23]).view(-1, 23)
    rows = torch.cat([torch.zeros(len(rows), 1, dtype=torch.int64), rows], dim=1)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = opt(len(tokenizer)).train()
        optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
        for _ in range(150):
            batch = rows[torch.randint(len(rows), (64,))]
            logits = model(batch[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    # Untrained, it would be at log(512) = 6.2 nats.
    assert loss.item() < 4.5
    return save(model.eval(), tokenizer, "trained")
