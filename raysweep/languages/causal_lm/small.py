"""Small causal LMs that are made here: an OPT over whole words that learns a language of raysweep.

Such a model stands for OPT-125M where that one cannot be had or is too large.  It is a language of its own,
so it need not be perfect.  But labelled texts of the language that it has learnt, from
`raysweep.languages.spelled`, are made of its words, as GLUE's are of those of OPT-125M.

A row of training is the beginning and as many words as the longest sentence has: those of a sentence and,
where it is shorter, of the sentences that follow it.  Training is AdamW on fresh rows, with a rate that falls
to 0, in float32 on one thread.  So one processor gives the same bytes for the same arguments.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

from raysweep.compiled.threads import one_thread
from raysweep.errors import ConfigError
from raysweep.files import make_directory, rename
from raysweep.languages.base import Estimate, Language
from raysweep.languages.quiet import quiet
from raysweep.languages.spelled import word_names
from raysweep.seeding import derive

BEGINNING, PADDING, UNKNOWN = "</s>", "<pad>", "<unk>"

_HEAD = 16  # width of a head; OPT-125M has 64
_BATCH = 128
_BLOCK = 128 * _BATCH  # sentences drawn at once
_RATE = 5e-3
_WARMUP = 100  # steps
_MEASURED = 4096  # sentences


@dataclass(frozen=True, kw_only=True)
class Learnt:
    """A small causal LM that was trained, measured on sentences that it was not trained on.

    `loss` is in nats a word, where only words can come.  `excess` is what it is above the language's own,
    which is KL(language ‖ model) a word; None where sentences differ in length, because the model does not
    know where they end.
    """

    parameters: int
    loss: Estimate
    excess: Estimate | None


def small_opt(
    words: Sequence[str], *, positions: int, unknown: str = UNKNOWN, **shape: Any
) -> tuple[Any, PreTrainedTokenizerFast]:
    """Return an OPT with random weights whose tokens are two special ones and `words`, and its tokenizer.

    Texts are words between spaces; others are the token `unknown`, a third special one unless it is among
    `words`.  `shape` are fields of `OPTConfig`.
    """
    special = [BEGINNING, PADDING, *([] if unknown in words else [unknown])]
    tokens = {token: k for k, token in enumerate([*special, *words])}
    inner = tokenizers.Tokenizer(models.WordLevel(tokens, unk_token=unknown))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {"bos_token": BEGINNING, "eos_token": BEGINNING, "pad_token": PADDING}
    if unknown in special:
        names["unk_token"] = unknown
    config = OPTConfig(
        vocab_size=len(tokens), max_position_embeddings=positions, dropout=0.0,
        bos_token_id=0, eos_token_id=0, pad_token_id=1, **shape,
    )  # fmt: skip
    return OPTForCausalLM(config), PreTrainedTokenizerFast(tokenizer_object=inner, **names)


def train_small(
    language: Language,
    folder: Path,
    *,
    sentences: int,
    width: int,
    layers: int,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Learnt:
    """Train an OPT on fresh sentences of a language and write it into `folder`, whole or not at all.

    `AutoModelForCausalLM` and `CausalLMConfig` load the folder.  `progress` gets the numbers of sentences
    that are done and of all.  Raises `ConfigError` for a folder that holds something, for a language that
    is not known, and for sizes that make no model.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"output: {folder} already exists; name a new folder")
    if not language.exact:
        raise ConfigError(
            "a small causal LM learns a language that is known exactly, and a corpus is not; name the file "
            "of a pcfg or an hmm"
        )
    if width % _HEAD:
        raise ConfigError(f"width: {width} is no multiple of {_HEAD}, the width of a head")
    if sentences < 1:
        raise ConfigError(f"sentences: {sentences}, so there is nothing to learn from; give at least 1")
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive(seed, "small causal_lm", "init"))
        model, tokenizer = small_opt(
            word_names(language), positions=language.max_length, hidden_size=width, word_embed_proj_dim=width,
            num_attention_heads=width // _HEAD, num_hidden_layers=layers, ffn_dim=4 * width,
        )  # fmt: skip
        first = len(tokenizer) - language.vocabulary_size
        _train(model, _rows(language, sentences, first, seed), sentences, progress)
        learnt = _measured(model, language, first, seed)
    beside = folder.absolute().parent
    make_directory(beside)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=beside) as made, quiet():
        inside = Path(made) / "model"
        model.save_pretrained(inside)
        tokenizer.save_pretrained(inside)
        rename(inside, folder.absolute())
    return learnt


def _train(
    model: Any, batches: Iterator[Tensor], sentences: int, progress: Callable[[int, int], None] | None
) -> None:
    """Train on batches of rows [b, 1+T] of tokens, which are `sentences` rows in all."""
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98), weight_decay=0.0)
    steps, done = -(-sentences // _BATCH), 0
    if progress is not None:
        progress(0, sentences)
    model.train()
    for step, rows in enumerate(batches):
        for group in optimizer.param_groups:
            group["lr"] = _RATE * min(1.0, (step + 1) / _WARMUP) * (1 - step / steps)
        optimizer.zero_grad()
        _losses(model, rows).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done += len(rows)
        if progress is not None:
            progress(done, sentences)
    model.eval()


@torch.no_grad()
def _measured(model: Any, language: Language, first: int, seed: int) -> Learnt:
    drawn = language.sample(_MEASURED, seed=derive(seed, "small causal_lm", "measure"))
    # As a language, the model writes nothing but words.
    losses = _losses(model, _tokens(language, drawn, first), first).mean(dim=1).double()
    lengths = language.lengths(drawn)
    excess = None
    if int(lengths.min()) == language.max_length:
        excess = Estimate.of(losses + language.log_prob(drawn) / language.max_length)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return Learnt(parameters=parameters, loss=Estimate.of(losses), excess=excess)


def _rows(language: Language, sentences: int, first: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of rows [b, 1+T] of tokens; word w is token `first` + w."""
    for start in range(0, sentences, _BLOCK):
        n = min(_BLOCK, sentences - start)
        drawn = language.sample(n, seed=derive(seed, "small causal_lm", "train"), start=start)
        yield from _tokens(language, drawn, first).split(_BATCH)


def _tokens(language: Language, ids: Tensor, first: int) -> Tensor:
    """Return rows [n, 1+T] of tokens that begin with each of the sentences `ids` [n, T].

    Behind a shorter sentence come those that follow it, and behind the last one the first.
    """
    lengths = language.lengths(ids)
    words = ids[ids != language.pad_id]
    place = (lengths.cumsum(dim=0) - lengths)[:, None] + torch.arange(language.max_length)
    return functional.pad(words[place % len(words)] + first, (1, 0), value=0)


def _losses(model: Any, rows: Tensor, first: int = 0) -> Tensor:
    """Return -log p(token | those before it) [n, T], in nats, of rows [n, 1+T], among tokens from `first`."""
    logits = model(rows[:, :-1], use_cache=False).logits[:, :, first:]
    losses = functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten() - first, reduction="none")
    return losses.view(len(rows), -1)
