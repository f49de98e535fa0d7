"""Export encoders to Hugging Face folders, and import encoders from them.

    post-norm encoder   <->  BertForMaskedLM; read from RobertaForMaskedLM too
    pre-norm encoder    <->  RobertaPreLayerNormForMaskedLM

An exported folder keeps the ids of the language: words 0 .. V-1, padding V, mask V+1, sentence-level token
V+2 (see `raysweep.languages.base`); its config.json says so under `raysweep`.  Its segment embeddings, which
an encoder does not have, are zero.  Positions of the RoBERTa family begin after the id of padding, so the
first V+1 rows of its position table are unused.

A folder from elsewhere has its special tokens among its words.  Words keep the ids of the folder's tokenizer;
the rows of its padding, mask and sentence-level tokens are copied to V, V+1 and V+2.  A decoder bias of
`NEVER` keeps these copies and the unused rows out of the softmax, so the conditionals equal those of the
folder's model.  The embedding of the first segment is added to the position embeddings.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from raysweep.errors import ConfigError
from raysweep.languages.base import Language
from raysweep.languages.quiet import quiet
from raysweep.models.base import MaskedLM
from raysweep.models.cls import WithCLS
from raysweep.models.encoder import Encoder
from raysweep.models.folder import Folder, brief

#: The decoder's bias of rows without a word; their probability is zero in any precision.
NEVER = -1e4

_SPECIAL = ("[PAD]", "[MASK]", "[CLS]")  # in the order of their ids


def to_huggingface(
    model: MaskedLM, folder: str | os.PathLike[str], *, words: Sequence[str] | None = None
) -> None:
    """Write `model` to `folder` for AutoModelForMaskedLM; logits agree to 1e-5.

    With the names of the `words` a tokenizer for words between spaces is written too.  Raises `ConfigError`
    for a model that the format cannot hold, and for names that are not V different words.
    """
    import transformers

    if isinstance(model, WithCLS):
        raise ConfigError(
            "a model with `cls: true` puts the sentence-level token in front of sentences, and the format "
            "has no place to say so; export `model.inner`, and put the token there yourself"
        )
    if not isinstance(model, Encoder):
        raise ConfigError(
            f"a model of type {type(model).__name__} cannot be exported, because transformers has no masked "
            "language model of its form; export an encoder"
        )
    epsilons = {module.eps for module in model.modules() if isinstance(module, nn.LayerNorm)}
    if len(epsilons) > 1:
        raise ConfigError(
            f"the LayerNorms of this model have {len(epsilons)} epsilons, as an enlarged model's have, and "
            "the format holds one; export the model it was made from"
        )
    pad, shape = model.pad_id, model.shape
    tokenizer = None if words is None else _tokenizer(words, pad)
    first = 0 if model.norm == "post" else pad + 1
    settings: dict[str, Any] = {
        "vocab_size": model.total_vocabulary,
        "hidden_size": shape.width,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "intermediate_size": shape.intermediate,
        "hidden_act": "gelu",
        "hidden_dropout_prob": model.dropout.p,
        "attention_probs_dropout_prob": model.dropout.p,
        "max_position_embeddings": model.max_length + first,
        "layer_norm_eps": epsilons.pop(),
        "pad_token_id": pad,
        "bos_token_id": None,
        "eos_token_id": None,
        "tie_word_embeddings": True,
        "raysweep": {"vocabulary_size": model.vocabulary_size, "mask_id": pad + 1, "cls_id": pad + 2},
    }
    # The constructor draws weights from the global generator, which must stay as it is.
    with torch.random.fork_rng(devices=[]):
        other: Any
        if model.norm == "post":
            other = transformers.BertForMaskedLM(transformers.BertConfig(**settings))
        else:
            other = transformers.RobertaPreLayerNormForMaskedLM(
                transformers.RobertaPreLayerNormConfig(**settings)
            )
    other.to(model.token_embedding.weight.dtype)
    embeddings = other.base_model.embeddings
    with torch.no_grad():
        for theirs, ours in _pairs(other, model):
            theirs.load_state_dict(ours.state_dict())
        embeddings.word_embeddings.weight.copy_(model.token_embedding.weight)
        embeddings.position_embeddings.weight.zero_()
        embeddings.position_embeddings.weight[first:].copy_(model.position_embedding.weight)
        embeddings.token_type_embeddings.weight.zero_()
        other.get_output_embeddings().bias.copy_(model.decoder.bias)
    with quiet():
        other.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.model_max_length = model.max_length
            tokenizer.save_pretrained(folder)


def from_huggingface(
    folder: str | os.PathLike[str], language: Language, *, dropout: float = 0.1, checkpointing: bool = False
) -> Encoder:
    """Return the model of a folder as an encoder for `language`, float32, in training mode.

    Logits of words agree with the folder's model to 1e-5.  Raises `ConfigError` naming what does not fit: the
    form of the model, its vocabulary or its length.
    """
    import transformers

    found = Folder.read(folder)
    misfit = found.misfit(language)
    if misfit is not None:
        raise ConfigError(misfit)
    found.check_words(language)
    model = found.module(language, dropout=dropout, checkpointing=checkpointing)
    with quiet():
        try:
            loaded: Any = transformers.AutoModelForMaskedLM.from_pretrained(
                found.path, dtype=torch.float32, trust_remote_code=False, output_loading_info=True
            )
        except Exception as error:  # the library and the file formats raise errors of many classes
            raise ConfigError(f"{found.path}: its weights cannot be loaded: {brief(error)}") from error
    other, report = loaded
    missing = sorted(map(str, (*report["missing_keys"], *report["mismatched_keys"])))
    if missing:
        raise ConfigError(
            f"{found.path}: {len(missing)} weights of a {type(other).__name__} are missing or of another "
            f"shape, such as {missing[0]}; save the model with its masked-LM head"
        )
    weight, bias = other.get_output_embeddings().weight, other.get_output_embeddings().bias
    embeddings = other.base_model.embeddings
    if not torch.equal(weight, embeddings.word_embeddings.weight):
        raise ConfigError(f"{found.path}: its decoder is not tied to its embedding, as an encoder's is")
    with torch.no_grad():
        for theirs, ours in _pairs(other, model):
            ours.load_state_dict(theirs.state_dict())
        positions = embeddings.position_embeddings.weight[found.first_position :]
        model.position_embedding.weight.copy_(positions + embeddings.token_type_embeddings.weight[0])
        if found.special is None:
            model.token_embedding.weight.copy_(weight)
            model.decoder.bias.copy_(bias)
        else:
            words = language.vocabulary_size
            rows = torch.tensor([*range(words), *found.special])
            model.token_embedding.weight.zero_()
            model.token_embedding.weight[: len(rows)] = weight[rows]
            model.decoder.bias.fill_(NEVER)
            model.decoder.bias[:words] = bias[:words]
    return model.train()


def _pairs(other: Any, model: Encoder) -> Iterator[tuple[nn.Module, nn.Module]]:
    """Yield modules of a transformers model with ours, where both hold the same parameters."""
    body = other.base_model
    yield body.embeddings.LayerNorm, model.embedding_norm
    for theirs, ours in zip(body.encoder.layer, model.layers, strict=True):
        layer: Any = ours
        attention = theirs.attention
        yield attention.self.query, layer.query
        yield attention.self.key, layer.key
        yield attention.self.value, layer.value
        yield attention.output.dense, layer.output
        yield theirs.intermediate.dense, layer.up
        yield theirs.output.dense, layer.down
        if model.norm == "post":
            yield attention.output.LayerNorm, layer.attention_norm
            yield theirs.output.LayerNorm, layer.mlp_norm
        else:
            yield attention.LayerNorm, layer.attention_norm
            yield theirs.intermediate.LayerNorm, layer.mlp_norm
    if model.final_norm is not None:
        yield body.LayerNorm, model.final_norm
    head = other.cls.predictions.transform if other.config.model_type == "bert" else other.lm_head
    yield head.dense, model.head_dense
    yield head.LayerNorm if other.config.model_type == "bert" else head.layer_norm, model.head_norm


def _tokenizer(words: Sequence[str], pad: int) -> Any:
    """Return a tokenizer of words between spaces, with the special tokens after them."""
    import tokenizers
    import transformers

    ids = {word: k for k, word in enumerate(words)}
    if len(words) != pad or len(ids) != pad or any(not w or w != "".join(w.split()) for w in words):
        raise ConfigError(f"words: a tokenizer takes {pad} different names without spaces")
    taken = [token for token in _SPECIAL if token in ids]
    if taken:
        raise ConfigError(f"words: '{taken[0]}' is the name of a special token; rename it")
    ids |= {token: pad + k for k, token in enumerate(_SPECIAL)}
    # An unknown word is an error, because there is no token for it.
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    names = dict(zip(("pad_token", "mask_token", "cls_token"), _SPECIAL, strict=True))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names)


def word_names(language: Language) -> list[str] | None:
    """Return the names of a language's words, or None if text between spaces does not name them.

    A language of word pieces has special tokens of its own among its words.
    """
    names = [language.text(torch.tensor([k])) for k in range(language.vocabulary_size)]
    sound = len(set(names)) == len(names) and all(name and name == "".join(name.split()) for name in names)
    return names if sound and not set(names) & set(_SPECIAL) else None
